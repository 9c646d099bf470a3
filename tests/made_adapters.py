"""Adapters and bases for tests, written by the safetensors library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from harness.artifacts.adapter import Adapter


FIXTURES = Path(__file__).parent.parent / "fixtures"
BASE = FIXTURES / "base"
ROOT = "model.language_model.layers"
WIDTHS = {  # (in, out) of the small base below
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (32, 16),
    "self_attn.v_proj": (32, 16),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (32, 48),
    "mlp.up_proj": (32, 48),
    "mlp.down_proj": (48, 32),
}
BF16 = np.dtype(ml_dtypes.bfloat16)


def adapters() -> list[Path]:
    """The fixtures' adapters."""
    return sorted(p for p in (FIXTURES / "adapters").iterdir() if p.is_dir())


def path_of(layer: int, module: str) -> str:
    return f"{ROOT}.{layer}.{module}"


def factors(
    rank: int, *, layers: int = 2, modules: Any = WIDTHS, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random tensors of an adapter for the small base, bfloat16."""
    draw = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        for module in modules:
            width, out = WIDTHS[module]
            stem = f"base_model.model.{path_of(layer, module)}"
            tensors[f"{stem}.lora_A.weight"] = draw.normal(0, 0.3, (rank, width))
            tensors[f"{stem}.lora_B.weight"] = draw.normal(0, 0.3, (out, rank))
    return {n: v.astype(BF16) for n, v in tensors.items()}


def write_adapter(
    folder: Path, tensors: Mapping[str, np.ndarray], **config: Any
) -> Path:
    """An adapter folder; `config` is put over a plain configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": [m.rpartition(".")[2] for m in WIDTHS],
        **config,
    }
    fields = {k: v for k, v in fields.items() if v is not ...}
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    arrays = {n: np.ascontiguousarray(v) for n, v in tensors.items()}
    save_file(arrays, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def write_base(
    folder: Path,
    *,
    layers: int = 2,
    prefix: str = ROOT,
    bias: bool = False,
    without: str = "",
) -> Path:
    """A checkpoint of zeros with the small base's linears."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {"model.visual.blocks.0.attn.qkv.weight": np.zeros((6, 2), np.float32)}
    for layer in range(layers):
        for module, (width, out) in WIDTHS.items():
            name = f"{prefix}.{layer}.{module}"
            weights[f"{name}.weight"] = np.zeros((out, width), BF16)
            if bias and module == "self_attn.q_proj":
                weights[f"{name}.bias"] = np.zeros(out, BF16)
    weights.pop(without, None)
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "tie_word_embeddings": True,
        "text_config": {
            "num_hidden_layers": layers,
            "hidden_size": 32,
            "vocab_size": 64,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("template")
    return folder


def deltas(folder: Path) -> dict[str, np.ndarray]:
    """Delta W `[out, in]` by module path, float64: scale · B @ A."""
    adapter = Adapter.open(folder)
    found = {}
    for module in adapter.modules:
        a, b = (f.astype(np.float64) for f in adapter.factors(module.path))
        found[module.path] = module.scale * (b @ a)
    return found


def differing(left: dict, right: dict) -> set[str]:
    """Modules whose delta W differs by more than rounding."""
    changed = set()
    for path in left.keys() | right.keys():
        mine = left.get(path, np.zeros(1))
        theirs = right.get(path, np.zeros(1))
        if np.abs(mine - theirs).max() > 1e-6 * np.abs(mine).max():
            changed.add(path)
    return changed

"""A Hugging Face checkpoint as the simulated compilers read it, or refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ConversionRefused
from harness.errors import UsageFault
from harness.golden.tensors import TensorFile
from harness.simulator.decoder import LINEARS
from harness.simulator.decoder import Architecture


__all__ = ["PREFIX", "Checkpoint"]

PREFIX = "model.language_model"
HEAD = "lm_head.weight"
MODEL = "Qwen3VLForConditionalGeneration"


class Checkpoint:
    """A checkpoint this compiler takes.

    :param base: its folder.
    :raises ConversionRefused: of an architecture or form it does not take.
    :raises UsageFault: missing, damaged or incomplete.
    """

    def __init__(self, base: Path) -> None:
        self.config = _config(base)
        self.architecture = _architecture(base, self.config)
        # Every tensor of the checkpoint, the vision tower's too, by its name.
        self.files = _files(base)
        # Tensors of the model in order, each with the checkpoint's name of it.
        self.sources = _sources(base, self.architecture, self.config, self.files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor of the model."""
        source = self.sources[name]
        return self.files[source].tensors[source].shape

    def array(self, name: str) -> np.ndarray:
        """A tensor of the model in the checkpoint's dtype."""
        source = self.sources[name]
        return self.files[source].array(source)


def _config(base: Path) -> dict[str, Any]:
    path = base / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageFault(
            f"cannot read: {error.strerror}",
            where=str(path),
            cure="give the folder of a checkpoint",
        ) from error
    except ValueError as error:
        raise UsageFault(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config"), dict):
        raise _refusal(path, "no text_config", f"only {MODEL} is compiled")
    return config


def _architecture(base: Path, config: dict[str, Any]) -> Architecture:
    path, text = base / "config.json", config["text_config"]
    if config.get("architectures") != [MODEL]:
        raise _refusal(
            path,
            f"architecture {config.get('architectures')}",
            f"only {MODEL} is compiled",
        )
    if text.get("attention_bias") or text.get("mlp_bias"):
        raise _bias(path)
    if "quantization_config" in config or "quantization_config" in text:
        raise _refusal(path, "the checkpoint is quantised", "give the unquantised one")
    if text.get("hidden_act") != "silu":
        raise _refusal(path, f"hidden_act {text.get('hidden_act')!r}", "silu is known")
    rope = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
    if (
        rope.get("rope_type", rope.get("type", "default")) not in ("default", "mrope")
        or rope.get("mrope_interleaved") is not True
    ):
        raise _refusal(
            path, f"rope_scaling {rope}", "default interleaved M-RoPE is known"
        )
    try:
        temporal, height, width = (int(n) for n in rope["mrope_section"])
        architecture = Architecture(
            layers=int(text["num_hidden_layers"]),
            hidden=int(text["hidden_size"]),
            intermediate=int(text["intermediate_size"]),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_dim=int(text["head_dim"]),
            vocab=int(text["vocab_size"]),
            eps=float(text["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or text["rope_theta"]),
            mrope_section=(temporal, height, width),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(path, f"unreadable text_config: {error!r}") from error
    a = architecture
    sound = (
        min(a.layers, a.hidden, a.intermediate, a.kv_heads, a.head_dim, a.vocab) > 0
        and a.heads % a.kv_heads == 0
        and a.head_dim % 2 == 0
        and sum(a.mrope_section) == a.head_dim // 2
    )
    if not sound:
        raise _refusal(path, f"sizes do not fit together: {a}")
    return architecture


def _files(base: Path) -> dict[str, TensorFile]:
    """The file of each tensor of the checkpoint."""
    index = base / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            shards = [base / Path(n).name for n in names]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageFault("no index of shards", where=str(index)) from error
    else:
        shards = [base / names[0]]
    return {t: f for f in map(TensorFile, shards) for t in f.tensors}


def _sources(
    base: Path,
    architecture: Architecture,
    config: dict[str, Any],
    files: dict[str, TensorFile],
) -> dict[str, str]:
    """Tensors of the model in order, each with the checkpoint's name of it."""
    a = architecture
    shapes: dict[str, tuple[int, ...]] = {
        f"{PREFIX}.embed_tokens.weight": (a.vocab, a.hidden)
    }
    for layer in range(a.layers):
        place = f"{PREFIX}.layers.{layer}"
        for module in LINEARS:
            width, out = a.width(module)
            shapes[f"{place}.{module}.weight"] = (out, width)
        for norm, extent in (
            ("input_layernorm", a.hidden),
            ("post_attention_layernorm", a.hidden),
            ("self_attn.q_norm", a.head_dim),
            ("self_attn.k_norm", a.head_dim),
        ):
            shapes[f"{place}.{norm}.weight"] = (extent,)
    shapes[f"{PREFIX}.norm.weight"] = (a.hidden,)
    shapes[HEAD] = (a.vocab, a.hidden)
    if any(n.startswith(f"{PREFIX}.layers.") and n.endswith(".bias") for n in files):
        raise _bias(base)
    sources = {name: name for name in shapes}
    tied = config.get("tie_word_embeddings") or config["text_config"].get(
        "tie_word_embeddings"
    )
    if HEAD not in files and tied:
        sources[HEAD] = f"{PREFIX}.embed_tokens.weight"
    missing = sorted({s for s in sources.values() if s not in files})
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise _refusal(base, f"tensor {missing[0]} is missing{more}")
    for name, source in sources.items():
        tensor = files[source].tensors[source]
        if tensor.shape != shapes[name]:
            raise _refusal(
                files[source].path,
                f"{source} is {list(tensor.shape)}, not {list(shapes[name])}",
            )
        if tensor.dtype not in ("BF16", "F16", "F32"):
            raise _refusal(files[source].path, f"{source} is {tensor.dtype}")
    return sources


def _bias(path: Path) -> ConversionRefused:
    return _refusal(
        path, "linears with bias cannot carry low-rank slots", "give a base without"
    )


def _refusal(path: Path, cause: str, cure: str = "") -> ConversionRefused:
    return ConversionRefused(cause, where=str(path), cure=cure)

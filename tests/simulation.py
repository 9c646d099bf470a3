"""A simulated BM1688 inside the test's own process, and adapters for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from harness.probes.loader import Loader
from harness.probes.program import Conversation
from harness.probes.program import Program
from harness.probes.slots import Slots
from harness.simulator.bm1688 import bmrt
from harness.simulator.bm1688.convert import convert
from harness.simulator.decoder import LINEARS
from harness.simulator.decoder import Architecture


ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "fixtures" / "base"
ADAPTERS = ROOT / "fixtures" / "adapters"
TINY = Architecture(4, 128, 256, 2, 1, 64, 512, 1e-6, 5e6, (12, 10, 10))
PROMPT = np.arange(40, 60, dtype=np.int32)
CONTINUATION = np.arange(70, 78, dtype=np.int32)


def compiled(folder: Path, **options: Any) -> Path:
    """The fixture base as a model file."""
    out = folder / "model"
    convert(BASE, out, **options)
    return out


class Bench:
    """A loaded model with a loader; scores through the nets, as the probe does."""

    def __init__(self, model: Path, make: Any = Loader) -> None:
        self.runtime = bmrt.Runtime()
        self.runtime.load(str(model))
        self.slots = Slots(self.runtime)
        self.loader = make(self.slots)
        self.program = Program(self.runtime)

    def score(
        self,
        phase: str = "prefill",
        prompt: np.ndarray = PROMPT,
        continuation: np.ndarray = CONTINUATION,
    ) -> np.ndarray:
        """Teacher-forced logits from an empty cache, `[t, vocab]`."""
        return Conversation(self.program).score(prompt, continuation, phase, False)

    def content(self) -> dict[str, bytes]:
        """Bytes of every slot."""
        return {
            s["name"]: self.slots.read(s).tobytes()
            for s in self.slots.slots()
            if not s["net"].startswith("block_cache")
        }


@contextmanager
def bench(model: Path, make: Any = Loader) -> Iterator[Bench]:
    """A `Bench` that is closed at the end."""
    made = Bench(model, make)
    try:
        yield made
    finally:
        made.runtime.close()


def adapter(
    folder: Path,
    *,
    rank: int = 8,
    alpha: float = 16,
    modules: Sequence[str] = LINEARS,
    layers: Sequence[int] = range(TINY.layers),
    seed: int = 0,
    spoil: tuple[str, float] | None = None,
) -> Path:
    """A PEFT folder with a visible effect.

    :param spoil: `A` or `B` and a value put into it in the last layer's last
        module.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in layers:
        for module in modules:
            width, out = TINY.width(module)
            place = f"base_model.model.model.language_model.layers.{layer}.{module}"
            a = random.normal(size=(rank, width)) * width**-0.5
            b = random.normal(size=(out, rank)) * 0.1 * rank**-0.5
            tensors[f"{place}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = b.astype(np.float32)
    if spoil is not None:
        tensors[f"{place}.lora_{spoil[0]}.weight"][-1, -1] = spoil[1]
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(m.split(".")[1] for m in modules),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Relative L2 of a to b."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))

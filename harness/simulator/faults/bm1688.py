"""Faults of the device or of the compiled model; the loader is sound."""

from __future__ import annotations

import zlib
from typing import Dict
from typing import Optional

import numpy as np

from ..bm1688.device import Device
from ..bm1688.device import Where
from ..bm1688.memory import Piece


__all__ = [
    "AdapterIgnored",
    "BaseChanged",
    "DecodeGraphIgnoresAdapter",
    "NoSlots",
    "Noisy",
]


class AdapterIgnored(Device):
    """Slots are written and read back right, and no graph computes with them."""

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, where: Where
    ) -> Optional[np.ndarray]:
        return None


class DecodeGraphIgnoresAdapter(Device):
    """The prefill graph applies the adapter, the decode graph does not."""

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, where: Where
    ) -> Optional[np.ndarray]:
        if where.graph == "decode":
            return None
        return super().branch(x, a, b, where)


class BaseChanged(Device):
    """Another base of equal shapes: the linears of every layer are off by 2 %.

    In one layer alone it would stay below what the reference can see in bf16.
    """

    RELATIVE = 0.02

    def base(self, weights: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        changed = dict(weights)
        for name, weight in weights.items():
            if ".layers." not in name or weight.ndim != 2:
                continue
            # Of the name, so that every start gives the same wrong base.
            noise = np.random.RandomState(zlib.crc32(name.encode()))
            error = noise.standard_normal(weight.shape) * weight.std() * self.RELATIVE
            changed[name] = self.precision.round(weight + error.astype(np.float32))
        return changed


class NoSlots(Device):
    """A model compiled without low-rank branches, as far as it reports."""

    def coefficients(self, net: str, pieces: Dict[str, Piece]) -> Dict[str, Piece]:
        return {n: p for n, p in pieces.items() if not n.startswith("lora.")}

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, where: Where
    ) -> Optional[np.ndarray]:
        return None


class Noisy(Device):
    """Benign: right, but repeats differ by 1e-3 of the centred logits' rms."""

    RELATIVE = 1e-3

    def logits(self, logits: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng().standard_normal(logits.shape, np.float32)
        noise *= np.float32(self.RELATIVE * logits.std())
        noise += logits
        return noise

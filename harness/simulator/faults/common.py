"""Faults that any simulated device can have; mixed into a platform's own."""

from __future__ import annotations

import zlib
from typing import Dict

import numpy as np

from ..board import Device


__all__ = ["BaseChanged", "Noisy"]


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


class Noisy(Device):
    """Benign: right, but repeats differ by 1e-3 of the centred logits' rms."""

    RELATIVE = 1e-3

    def logits(self, logits: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng().standard_normal(logits.shape, np.float32)
        noise *= np.float32(self.RELATIVE * logits.std())
        noise += logits
        return noise

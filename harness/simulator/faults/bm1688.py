"""Faults of the device or of the compiled model; the loader is sound."""

from __future__ import annotations

from typing import Dict
from typing import Optional

import numpy as np

from ..bm1688.device import Device
from ..bm1688.device import Where
from ..bm1688.memory import Piece
from . import common


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


class BaseChanged(common.BaseChanged, Device):
    __doc__ = common.BaseChanged.__doc__


class NoSlots(Device):
    """A model compiled without low-rank branches, as far as it reports."""

    def coefficients(self, net: str, pieces: Dict[str, Piece]) -> Dict[str, Piece]:
        return {n: p for n, p in pieces.items() if not n.startswith("lora.")}

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, where: Where
    ) -> Optional[np.ndarray]:
        return None


class Noisy(common.Noisy, Device):
    __doc__ = common.Noisy.__doc__

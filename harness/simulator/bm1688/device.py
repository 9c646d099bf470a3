"""The seams of the simulated device: what a fault may change."""

from __future__ import annotations

import importlib
import json
import os
from typing import Dict
from typing import NamedTuple
from typing import Optional

import numpy as np

from ..precision import Precision
from .memory import Piece


__all__ = ["FAULT_FILE", "ROOT", "Device", "Where", "chosen"]

# The board's root folder, set by whoever starts the board.
ROOT = "SIMULATED_BOARD_ROOT"
FAULT_FILE = "fault.json"


class Where(NamedTuple):
    """The place of a branch; graph is `prefill` or `decode`."""

    graph: str
    layer: int
    module: str


class Device:
    """A sound device. A fault overrides one of its methods.

    :param precision: the arithmetic of the compiled model.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def base(self, weights: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """The weights of one net as they take effect.

        :param weights: float32 by full name, fresh copies; `[out, in]` for linears.
        """
        return weights

    def branch(
        self,
        x: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        where: Where,
    ) -> Optional[np.ndarray]:
        """A low-rank branch, `(x A^T) B`; None where it has no effect.

        Not asked while both slots are zero.

        :param x: float32 `[n, in]`; a `[rank, in]`; b `[rank, out]`.
        """
        rounded = self.precision.round
        return rounded(rounded(x @ a.T) @ b)

    def coefficients(self, net: str, pieces: Dict[str, Piece]) -> Dict[str, Piece]:
        """What the runtime reports as the coefficients of a net."""
        return pieces

    def write(self, piece: Piece, data: np.ndarray, offset: int) -> None:
        """A copy of bytes (uint8) to the device."""
        piece.write(data, offset)

    def zero(self, piece: Piece) -> None:
        """A fill with zero."""
        piece.write(np.zeros(piece.size, np.uint8))

    def read(self, piece: Piece, size: int) -> np.ndarray:
        """A copy of bytes from the device, uint8 `[size]`."""
        return piece.read(size)

    def launch(self, net: str) -> None:
        """A launch begins."""

    def logits(self, logits: np.ndarray) -> np.ndarray:
        """What the lm_head net hands out, float32 `[1, vocab]`."""
        return logits


def chosen(precision: Precision) -> Device:
    """The device that this board's root asks for, the sound one by default."""
    root = os.environ.get(ROOT)
    path = os.path.join(root, FAULT_FILE) if root else ""
    if not path or not os.path.exists(path):
        return Device(precision)
    with open(path, encoding="utf-8") as file:
        module, _, name = json.load(file)["device"].partition(":")
    device = getattr(importlib.import_module(module), name)(precision)
    if not isinstance(device, Device):
        raise TypeError("%s:%s is no Device" % (module, name))
    return device

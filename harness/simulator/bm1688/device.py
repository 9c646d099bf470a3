"""The seams of the simulated device: what a fault may change."""

from __future__ import annotations

from typing import Dict
from typing import NamedTuple
from typing import Optional

import numpy as np

from .. import board
from ..precision import Precision
from .memory import Piece


__all__ = ["Device", "Where", "chosen"]


class Where(NamedTuple):
    """The place of a branch; graph is `prefill` or `decode`."""

    graph: str
    layer: int
    module: str


class Device(board.Device):
    """A sound device. A fault overrides one of its methods.

    Weights of the base are asked for net by net.
    """

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


def chosen(precision: Precision) -> Device:
    """The device that this board's root asks for, the sound one by default."""
    return board.chosen(Device)(precision)

"""Device memory: named pieces at addresses, of which some are low-rank slots."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import Tuple

import numpy as np

from ..headed import ALIGN
from ..precision import bf16_values


__all__ = ["Pair", "Piece", "as_bytes"]


class Piece:
    """A named array in device memory.

    :param address: where it lies on the device.
    :param stored: uint16 (bf16) or float32; its bytes become the content. A
        read-only array is copied at the first write.
    """

    def __init__(self, name: str, address: int, stored: np.ndarray) -> None:
        self.name = name
        self.address = address
        self.shape: Tuple[int, ...] = stored.shape
        self.dtype = "bf16" if stored.dtype == np.uint16 else "f32"
        # The runtime reports whole pages.
        self.size = -(-stored.nbytes // ALIGN) * ALIGN
        self.version = 0
        self._stored = stored
        self._pages = np.zeros(0, np.uint8)

    def read(self, size: int) -> np.ndarray:
        """The first `size` bytes, uint8."""
        if self.version:
            return self._pages[:size].copy()
        data = np.zeros(size, np.uint8)
        raw = self._stored.reshape(-1).view(np.uint8)[:size]
        data[: raw.size] = raw
        return data

    def write(self, data: np.ndarray, offset: int = 0) -> None:
        """Put bytes (uint8) at `offset`."""
        if not self.version:
            self._pages = self.read(self.size)
            count = self._stored.nbytes
            self._stored = (
                self._pages[:count].view(self._stored.dtype).reshape(self.shape)
            )
        self.version += 1
        self._pages[offset : offset + data.size] = data

    @property
    def stored(self) -> np.ndarray:
        """The content as stored: uint16 or float32 of the piece's shape."""
        return self._stored

    def values(self) -> np.ndarray:
        """The content, float32 of the piece's shape."""
        if self.dtype == "bf16":
            return bf16_values(self._stored)
        return np.array(self._stored, np.float32)

    @property
    def zero(self) -> bool:
        """Whether every byte of the array is zero."""
        return not self._stored.reshape(-1).view(np.uint8).any()


class Pair:
    """The two slots of a linear, decoded anew when their content changed."""

    def __init__(self, a: Piece, b: Piece) -> None:
        self._pieces = (a, b)
        self._versions = (-1, -1)
        self._a = self._b = np.zeros(0, np.float32)
        self._zero = True

    def values(self) -> Tuple[np.ndarray, np.ndarray, bool]:
        """A `[rank, in]`, B `[rank, out]` float32, and whether both are all zero."""
        a, b = self._pieces
        versions = (a.version, b.version)
        if versions != self._versions:
            self._a, self._b = a.values(), b.values()
            self._zero = a.zero and b.zero
            self._versions = versions
        return self._a, self._b, self._zero


class Space(Dict[int, Piece]):
    """The pieces of a model by address, laid out one behind the other."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self._next = start

    def place(self, name: str, stored: np.ndarray) -> Piece:
        """Put an array behind the last piece."""
        piece = Piece(name, self._next, stored)
        self[piece.address] = piece
        self._next += piece.size
        return piece

    @property
    def used(self) -> int:
        """Bytes taken."""
        return sum(p.size for p in self.values())


def as_bytes(data: Any) -> np.ndarray:
    """A bytes-like object or array of any dtype as uint8 `[n]`."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)

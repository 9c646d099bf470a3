"""Device faults that need a history, see `history_faults`."""

from __future__ import annotations

from harness.simulator.bm1688.device import Device


class DecodeKeepsItsCopy(Device):
    """The decode graph copies the slots at its first launch after a clear."""

    def __init__(self, precision):
        super().__init__(precision)
        self._copies = {}

    def branch(self, x, a, b, where):
        if where.graph == "decode":
            key = (where.layer, where.module)
            a, b = self._copies.setdefault(key, (a.copy(), b.copy()))
        return super().branch(x, a, b, where)

    def zero(self, piece):
        super().zero(piece)
        self._copies.clear()

"""Device memory as the vendor counts it: bytes on each of eight nodes."""

from __future__ import annotations

from typing import List

from .refused import Refused


__all__ = ["Nodes", "share"]

MIB = 1 << 20
# What boards report: eight nodes of 614.5 to 639.5 MiB, none like another.
TOTALS = tuple(int((614.5 + 25 * i / 7) * MIB) for i in range(8))
PAGE = 4096


class Nodes:
    """The nodes; whatever is taken lies on all of them in equal parts."""

    totals = TOTALS

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> int:
        """Take `size` bytes.

        :returns: bytes of each node, to be given back.
        :raises Refused: the smallest node has no room for its part.
        """
        part = share(size)
        if part > min(self.free):
            raise Refused("out of memory: %d bytes on each node are needed" % part)
        self._taken += part
        return part

    def give(self, part: int) -> None:
        """Give back what `take` took."""
        self._taken -= part

    @property
    def free(self) -> List[int]:
        """Free bytes by node."""
        return [total - self._taken for total in self.totals]


def share(size: int) -> int:
    """Bytes of each node, in whole pages."""
    return -(-size // (len(TOTALS) * PAGE)) * PAGE

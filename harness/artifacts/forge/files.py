"""Files of an unknown format, damaged as copying and storing damage them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field


__all__ = ["DamagedFile", "damaged_files"]


@dataclass(frozen=True)
class DamagedFile:
    """The content of a file that is not what was written.

    :param structural: whether a reader without a checksum must notice it.
    """

    name: str
    structural: bool
    data: bytes = field(repr=False)


def damaged_files(data: bytes) -> Iterator[DamagedFile]:
    """Every damage, done to the content of a sound file."""
    yield DamagedFile("empty", True, b"")
    yield DamagedFile("cut in its head", True, data[: min(64, len(data) // 2)])
    yield DamagedFile("cut in the middle", True, data[: len(data) // 2])
    yield DamagedFile("of another kind", True, b"PK\3\4" + bytes(len(data) - 4))
    yield DamagedFile("cut by a byte", False, data[:-1])
    yield DamagedFile("with bytes too many", False, data + bytes(64))
    for name, place in (("middle", len(data) // 2), ("end", len(data) - 1)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        yield DamagedFile(f"with a bit flipped in its {name}", False, bytes(changed))

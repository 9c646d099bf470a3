"""Files of an unknown format, damaged as copying and storing damage them."""

from __future__ import annotations

from collections.abc import Iterator


__all__ = ["damaged_files"]


def damaged_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every damage by its name, done to the content of a sound file."""
    yield "empty", b""
    yield "cut in its head", data[: min(64, len(data) // 2)]
    yield "cut in the middle", data[: len(data) // 2]
    yield "cut by a byte", data[:-1]
    yield "with bytes too many", data + bytes(64)
    yield "of another kind", b"PK\3\4" + bytes(len(data) - 4)
    for name, place in (("middle", len(data) // 2), ("end", len(data) - 1)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        yield f"with a bit flipped in its {name}", bytes(changed)

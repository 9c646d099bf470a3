"""Files of a JSON header and raw arrays: compiled models and bundles of adapters.

Layout: 8 bytes magic, 8 bytes little-endian length N, N bytes of JSON, arrays at the
offsets the header gives, each at a multiple of `ALIGN`. An array's entry in the
header holds `dtype`, `shape` and `offset`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from typing import Dict
from typing import List

import numpy as np

from .decoder import Architecture


__all__ = [
    "ALIGN",
    "DTYPES",
    "FileError",
    "architecture_of",
    "array_of",
    "check_seal",
    "header_of",
    "layout",
    "mapped",
    "sealed",
    "shape_of",
]

ALIGN = 4096
# bf16 as its 16 bits.
DTYPES: Dict[str, np.dtype[Any]] = {
    "bf16": np.dtype("<u2"),
    "f16": np.dtype("<f2"),
    "f32": np.dtype("<f4"),
    "u8": np.dtype("u1"),
}
# 36 layers of 11 tensors make about 60 kB, 32 adapters of them about 4 MB.
MOST_HEADER = 16 << 20
# Bytes of a sha256.
SEAL = 32


class FileError(Exception):
    """The file is not a whole one of its format; says why in one line."""


def mapped(path: str) -> np.ndarray:
    """A file's bytes, uint8 `[size]`, mapped and not read yet.

    :raises FileError: it is missing or empty.
    """
    try:
        # One mapping; an array is read when it is first computed with.
        return np.asarray(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise FileError(error.strerror or str(error)) from None
    except ValueError:
        raise FileError("the file is empty") from None


def header_of(raw: np.ndarray, magic: bytes, version: int) -> Dict[str, Any]:
    """The header of a file.

    :param raw: the whole file, uint8 `[size]`.
    :param version: what its field `format` must say.
    :raises FileError: not of this format or version, or cut within the header.
    """
    head = raw[:16].tobytes()
    length = int.from_bytes(head[8:], "little")
    if head[:8] != magic or length > MOST_HEADER:
        raise FileError("not a file of this format")
    try:
        header = json.loads(raw[16 : 16 + length].tobytes().decode("utf-8"))
    except (ValueError, RecursionError):
        raise FileError("damaged header") from None
    if not isinstance(header, dict) or header.get("format") != version:
        raise FileError("made for another version")
    return header


def sealed(body: bytes) -> bytes:
    """A file with the sha256 of all before as its last bytes."""
    return body + hashlib.sha256(body).digest()


def check_seal(raw: np.ndarray) -> None:
    """See to the sha256 at a file's end.

    :raises FileError: it is another one's.
    """
    if hashlib.sha256(raw[:-SEAL].data).digest() != raw[-SEAL:].tobytes():
        raise FileError("cut or damaged: its sha256 is another one")


def array_of(raw: np.ndarray, entry: Dict[str, Any]) -> np.ndarray:
    """An array of a file as it is stored, read-only.

    :raises FileError: it reaches beyond the end of the file.
    :raises KeyError, TypeError, ValueError: the entry is malformed.
    """
    dtype, shape = DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
    offset, size = int(entry["offset"]), dtype.itemsize
    for extent in shape:
        size *= extent
    if min(shape) < 1 or offset < 0 or offset + size > raw.size:
        raise FileError("cut off at %d bytes" % raw.size)
    return raw[offset : offset + size].view(dtype).reshape(shape)


def architecture_of(fields: Dict[str, Any]) -> Architecture:
    """The sizes as the header of a compiled model keeps them.

    :raises KeyError, TypeError, ValueError: they are malformed.
    """
    sections = tuple(int(n) for n in fields["mrope_section"])
    return Architecture(**dict(fields, mrope_section=sections))


def shape_of(dtype: str, *shape: int) -> Dict[str, Any]:
    """An array's entry; `layout` gives it its place."""
    return {"dtype": dtype, "shape": list(shape), "offset": 0}


def layout(
    magic: bytes, header: Dict[str, Any], entries: List[Dict[str, Any]]
) -> bytes:
    """The head of a file, after each array was given its place behind it.

    :param entries: the arrays' entries, which lie in `header`, in the file's order.
    """
    # Offsets are 64-bit numbers of at most 20 digits: room for all of them first.
    start = 16 + len(json.dumps(header)) + 20 * len(entries)
    for entry in entries:
        entry["offset"] = start = -(-start // ALIGN) * ALIGN
        size = DTYPES[entry["dtype"]].itemsize
        for extent in entry["shape"]:
            size *= extent
        start += size
    text = json.dumps(header).encode()
    return magic + len(text).to_bytes(8, "little") + text

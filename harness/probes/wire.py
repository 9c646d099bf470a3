"""The frames that probe and harness exchange: a JSON header, then arrays.

    4 bytes  length N of the header, little-endian
    N bytes  header, JSON in UTF-8; its `arrays` lists name, dtype and shape
    ...      the arrays' bytes, back to back, row-major

Neither side trusts the other: every size is bounded before memory is taken.
"""

from __future__ import annotations

import json
import struct
from typing import Any
from typing import Callable
from typing import Dict
from typing import List
from typing import Mapping
from typing import Optional
from typing import Tuple
from typing import Union

import numpy as np


__all__ = [
    "ARRAY_BYTES",
    "DTYPES",
    "HEADER_BYTES",
    "VERSION",
    "StreamCut",
    "WireError",
    "read_frame",
    "write_frame",
]

VERSION = 1
DTYPES = ("<f4", "<f2", "<i4", "<i8", "|u1", "<u2")
HEADER_BYTES = 4 << 20  # ten thousand slots take 2.5 MB
ARRAY_BYTES = 2 << 30  # 3,500 rows of a vocabulary of 151,936 in float32
ARRAYS = 64
DIMENSIONS = 4
# Below this an array is sent in one piece with the header: one packet, no wait.
SMALL = 1 << 16

Read = Callable[[int], Union[bytes, bytearray, memoryview]]
Write = Callable[[Union[bytes, memoryview]], Any]


class WireError(Exception):
    """What came is not a frame, or what should go does not fit one."""


class StreamCut(WireError):
    """The stream ended inside a frame."""

    def __init__(self) -> None:
        super().__init__("the stream ended inside a frame")


def write_frame(
    write: Write, header: Mapping[str, Any], arrays: Optional[Mapping[str, Any]] = None
) -> None:
    """Send a frame.

    :param write: sends all of what it is given.
    :param header: JSON-like, without `arrays`.
    :param arrays: numpy arrays by name; copied only where not row-major.
    :raises WireError: a dtype, a size or a value that no frame can hold.
    """
    given = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    listed = [
        {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        for name, array in given.items()
    ]
    _layout(listed, ARRAY_BYTES)
    bodies = [
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for array in given.values()
    ]
    try:
        text = json.dumps(
            dict(header, arrays=listed), separators=(",", ":"), allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError("header: %s" % error) from None
    raw = text.encode("utf-8", "replace")
    if len(raw) > HEADER_BYTES:
        raise WireError("header of %d bytes" % len(raw))
    head = struct.pack("<I", len(raw)) + raw
    if sum(len(b) for b in bodies) <= SMALL:
        write(b"".join([head] + [bytes(b) for b in bodies]))
        return
    write(head)
    for body in bodies:
        if len(body):
            write(body)


def read_frame(
    read: Read, limit: int = ARRAY_BYTES
) -> Tuple[Dict[str, Any], Dict[str, np.ndarray]]:
    """Receive a frame.

    :param read: gives exactly as many bytes as asked for, fewer only at the end.
    :param limit: bytes of arrays at most.
    :returns: the header without `arrays`, and the arrays by name (read-only views
        of what was received).
    :raises EOFError: the stream ended between two frames.
    :raises StreamCut: it ended inside one.
    :raises WireError: this is no frame.
    """
    head = read(4)
    if not head:
        raise EOFError("the stream ended")
    if len(head) < 4:
        raise StreamCut
    length = struct.unpack("<I", head)[0]
    if not 2 <= length <= HEADER_BYTES:
        raise WireError("header of %d bytes" % length)
    try:
        header = json.loads(
            _exactly(read, length).decode("utf-8"), parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        raise WireError("header is not JSON") from None
    if not isinstance(header, dict):
        raise WireError("header is not a JSON object")
    arrays = {}
    for name, dtype, shape, size in _layout(header.pop("arrays", []), limit):
        data = _exactly(read, size) if size else b""
        arrays[name] = np.frombuffer(data, dtype).reshape(shape)
    return header, arrays


def _no_constant(text: str) -> None:
    raise ValueError("%s is not JSON" % text)


def _exactly(read: Read, size: int) -> bytes:
    data = read(size)
    if len(data) != size:
        raise StreamCut
    return bytes(data)


def _layout(listed: Any, limit: int) -> List[Tuple[str, str, Tuple[int, ...], int]]:
    """Name, dtype, shape and bytes of each array, all checked."""
    if not isinstance(listed, list) or len(listed) > ARRAYS:
        raise WireError("not a list of at most %d arrays" % ARRAYS)
    layout: List[Tuple[str, str, Tuple[int, ...], int]] = []
    total = 0
    for item in listed:
        if not isinstance(item, dict):
            raise WireError("an array is not described by an object")
        name, dtype, shape = item.get("name"), item.get("dtype"), item.get("shape")
        if not isinstance(name, str) or not 0 < len(name) <= 64:
            raise WireError("an array's name is %.40r" % (name,))
        if any(name == other[0] for other in layout):
            raise WireError("array %r is listed twice" % name)
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise WireError("array %r has dtype %.40r" % (name, dtype))
        if (
            not isinstance(shape, list)
            or len(shape) > DIMENSIONS
            or not all(type(s) is int and 0 <= s <= ARRAY_BYTES for s in shape)
        ):
            raise WireError("array %r has shape %.80r" % (name, shape))
        size = np.dtype(dtype).itemsize
        for extent in shape:
            size *= extent
        total += size
        if total > limit:
            raise WireError("arrays of %d bytes, at most %d" % (total, limit))
        layout.append((name, dtype, tuple(shape), size))
    return layout

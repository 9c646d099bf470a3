"""What a call is given as a file or as memory."""

from __future__ import annotations

from ctypes import c_char_p
from ctypes import c_uint8
from ctypes import c_void_p
from ctypes import cast
from typing import Any
from typing import Optional

import numpy as np

from .refused import Refused


__all__ = ["content"]


def content(path: Optional[str], data: Any, size: int) -> Any:
    """The bytes of a file, or memory of the caller as it is, uint8 `[size]`.

    :param data: a buffer, an address as an int, or a pointer of ctypes to bytes.
    :raises Refused: both or neither are given, or the memory is too small.
    :raises OSError: the file cannot be read.
    """
    if (path is None) == (data is None):
        raise Refused("give a path or data")
    if path is not None:
        with open(path, "rb") as file:
            return file.read()
    if isinstance(data, (int, c_void_p, c_char_p)):
        address = data if isinstance(data, int) else cast(data, c_void_p).value
        if not address or size < 1:
            raise Refused("no data of %d bytes" % size)
        return np.ctypeslib.as_array((c_uint8 * size).from_address(address))
    raw = np.frombuffer(data, np.uint8)
    if not 1 <= size <= raw.size:
        raise Refused("%d bytes of data, its size is given as %d" % (raw.size, size))
    return raw[:size]

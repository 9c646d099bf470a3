"""A bounded reader of safetensors files."""

from __future__ import annotations

import json
import os
import struct
from typing import Any
from typing import BinaryIO
from typing import Dict
from typing import List
from typing import NamedTuple
from typing import Tuple

import numpy as np


__all__ = ["SafetensorsError", "Tensor", "Tensors"]

# Bytes per element of every dtype the format has in whole bytes.
SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
# The format's own bound of a header (its reference implementation refuses more).
HEADER_LIMIT = 100_000_000
# An adapter's largest tensor is a few million elements; this only keeps the
# product of a lying shape inside 64 bits.
ELEMENT_LIMIT = 1 << 40
DIMENSIONS = 8  # more than any weight has


class SafetensorsError(Exception):
    """The file is not a sound safetensors file; says what is wrong, in one line."""


class Tensor(NamedTuple):
    """What the header says about a tensor.

    `start` and `stop` are bytes from the start of the file.
    """

    dtype: str
    shape: Tuple[int, ...]
    start: int
    stop: int


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        names = [k for k, _ in pairs]
        twice = next(k for k in names if names.count(k) > 1)
        raise SafetensorsError("header names %r twice" % twice[:200])
    return seen


def _no_constant(text: str) -> None:
    raise SafetensorsError("header holds %s" % text)


class Tensors:
    """The tensors of one file; everything is checked before the first is read.

    :param path: the file.
    :raises SafetensorsError: not a sound file.
    :raises OSError: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, begin = self._header(file, size)
        self.metadata = header.pop("__metadata__", {})
        if not isinstance(self.metadata, dict) or not all(
            isinstance(v, str) for v in self.metadata.values()
        ):
            raise SafetensorsError("__metadata__ is not a map of strings")
        self._tensors = {
            name: self._tensor(name, item, begin, size) for name, item in header.items()
        }
        self._check_cover(begin, size)

    @staticmethod
    def _header(file: BinaryIO, size: int) -> Tuple[Dict[str, Any], int]:
        head = file.read(8)
        if len(head) < 8:
            raise SafetensorsError("cut off: %d bytes, no header length" % len(head))
        length = struct.unpack("<Q", head)[0]
        if length > HEADER_LIMIT:
            raise SafetensorsError("header of %d bytes is too large" % length)
        if 8 + length > size:
            raise SafetensorsError(
                "cut off: %d bytes, its header alone is %d" % (size, length)
            )
        raw = file.read(length)
        if not raw.startswith(b"{"):
            raise SafetensorsError("header does not begin with '{'")
        try:
            header = json.loads(
                raw.decode("utf-8"),
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
            )
        except (ValueError, RecursionError) as error:
            raise SafetensorsError("header is not JSON: %s" % error) from None
        return header, 8 + length

    @staticmethod
    def _tensor(name: str, item: Any, begin: int, size: int) -> Tensor:
        label = repr(name[:200])
        if not isinstance(item, dict) or set(item) != {
            "dtype",
            "shape",
            "data_offsets",
        }:
            raise SafetensorsError(
                "tensor %s lacks dtype, shape or data_offsets" % label
            )
        dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
        if not isinstance(dtype, str) or dtype not in SIZES:
            raise SafetensorsError("tensor %s has unknown dtype %.40r" % (label, dtype))
        if not _naturals(shape) or len(shape) > DIMENSIONS:
            raise SafetensorsError("tensor %s has shape %.80r" % (label, shape))
        if not _naturals(offsets) or len(offsets) != 2:
            raise SafetensorsError("tensor %s has offsets %.80r" % (label, offsets))
        count = 1
        for extent in shape:
            count *= extent
            if count > ELEMENT_LIMIT:
                raise SafetensorsError("tensor %s has shape %.80r" % (label, shape))
        start, stop = begin + offsets[0], begin + offsets[1]
        if start > stop or stop > size:
            raise SafetensorsError(
                "tensor %s lies at bytes %d to %d of a file of %d"
                % (label, start, stop, size)
            )
        if stop - start != count * SIZES[dtype]:
            raise SafetensorsError(
                "tensor %s: %d bytes do not hold %s %s"
                % (label, stop - start, dtype, shape)
            )
        return Tensor(dtype, tuple(shape), start, stop)

    def _check_cover(self, begin: int, size: int) -> None:
        """The data must be covered without holes or overlaps."""
        end = begin
        for name, tensor in sorted(self._tensors.items(), key=lambda i: i[1][2:]):
            if tensor.start != end:
                fault = "overlaps another" if tensor.start < end else "leaves a hole"
                raise SafetensorsError("tensor %r %s" % (name[:200], fault))
            end = tensor.stop
        if end != size:
            raise SafetensorsError("%d bytes behind the last tensor" % (size - end))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def names(self) -> List[str]:
        """Names in the order of the header."""
        return list(self._tensors)

    def values(self, name: str) -> np.ndarray:
        """A floating tensor's values, float32 (F64 is rounded to it).

        :raises SafetensorsError: not F64, F32, F16 or BF16; the file changed.
        """
        tensor = self._tensors[name]
        if tensor.dtype not in ("F64", "F32", "F16", "BF16"):
            raise SafetensorsError("tensor %r is %s" % (name[:200], tensor.dtype))
        with open(self.path, "rb") as file:
            file.seek(tensor.start)
            data = file.read(tensor.stop - tensor.start)
        if len(data) != tensor.stop - tensor.start:
            raise SafetensorsError("the file shrank while it was read")
        if tensor.dtype == "BF16":
            wide = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
            values = wide.view(np.float32)
        else:
            kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[tensor.dtype]
            with np.errstate(over="ignore"):
                values = np.frombuffer(data, kind).astype(np.float32)
        return values.reshape(tensor.shape)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(v) is int and 0 <= v < 1 << 62 for v in value
    )

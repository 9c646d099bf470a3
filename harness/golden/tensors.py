"""The tensors of a safetensors file, read without trusting it.

Every fault of the file is one `UsageFault`; bytes are streamed, so that a
checkpoint of many gigabytes is hashed in a few megabytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from harness.errors import UsageFault


__all__ = ["Tensor", "TensorFile"]

# The header of a checkpoint with 100,000 tensors is about 15 MB; the format's own
# limit is 100 MB.
MOST_HEADER = 100_000_000
CHUNK = 4 << 20
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies in its file: `size` bytes at `start`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


class TensorFile:
    """One safetensors file.

    :param path: the file.
    :raises UsageFault: it is missing, empty, truncated or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Tensor] = {}
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(8)
                length = int.from_bytes(head, "little")
                if size == 0:
                    raise self._fault("the file is empty")
                if len(head) < 8 or length > MOST_HEADER or 8 + length > size:
                    raise self._fault("not a safetensors file, or truncated")
                header = json.loads(file.read(length))
        except OSError as error:
            raise self._fault(f"cannot read: {error.strerror or error}") from error
        except ValueError as error:
            raise self._fault("the safetensors header is not JSON") from error
        try:
            entries = {k: v for k, v in header.items() if k != "__metadata__"}
            for name, entry in entries.items():
                self.tensors[name] = self._tensor(name, entry, 8 + length)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._fault("the safetensors header is malformed") from error
        end = 8 + length
        for tensor in sorted(self.tensors.values(), key=lambda t: (t.start, t.size)):
            # A byte outside every tensor would be in no digest.
            if tensor.start != end:
                raise self._fault(f"a gap or an overlap before {tensor.name!r}")
            end += tensor.size
        if end > size:
            raise self._fault(f"truncated: {size} bytes, {end} expected")
        if end < size:
            raise self._fault(f"{size - end} bytes too many after the last tensor")

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of one tensor, in pieces of at most 4 MiB."""
        tensor = self._find(name)
        with self.path.open("rb") as file:
            file.seek(tensor.start)
            left = tensor.size
            while left:
                piece = file.read(min(CHUNK, left))
                if not piece:
                    raise self._fault(f"truncated within {name}")
                left -= len(piece)
                yield piece

    def array(self, name: str) -> np.ndarray:
        """One tensor in its own dtype and shape."""
        tensor = self._find(name)
        data = b"".join(self.chunks(name))
        return np.frombuffer(data, DTYPES[tensor.dtype]).reshape(tensor.shape)

    def _tensor(self, name: str, entry: Any, base: int) -> Tensor:
        start, end = (int(n) for n in entry["data_offsets"])
        shape = tuple(int(n) for n in entry["shape"])
        dtype = str(entry["dtype"])
        size = math.prod(shape) * DTYPES[dtype].itemsize
        if start < 0 or min(shape, default=0) < 0 or end - start != size:
            raise ValueError(name)
        return Tensor(name, dtype, shape, base + start, size)

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise self._fault(f"has no tensor {name!r}")
        return self.tensors[name]

    def _fault(self, cause: str) -> UsageFault:
        return UsageFault(
            cause, where=str(self.path), cure="copy the file again from its source"
        )

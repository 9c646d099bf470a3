"""The simulated board's compiled model: a JSON header, then raw arrays.

Layout: 8 bytes magic, 8 bytes little-endian length N, N bytes of JSON, arrays at the
offsets the header gives, each at a multiple of 4096. Weights are stored in the
dtype the device computes in, bf16 as its 16 bits.
"""

from __future__ import annotations

import json
from typing import Any
from typing import Dict

import numpy as np

from ..decoder import Architecture


__all__ = ["ALIGN", "FORMAT", "MAGIC", "STORED", "ModelFile", "ModelFileError"]

MAGIC = b"SIMBM168"
FORMAT = 1
ALIGN = 4096
STORED: Dict[str, np.dtype[Any]] = {"bf16": np.dtype("<u2"), "f32": np.dtype("<f4")}
# 36 layers of 11 tensors make about 60 kB.
MOST_HEADER = 16 << 20


class ModelFileError(Exception):
    """The file is not a whole model of this format; says why in one line."""


class ModelFile:
    """A model file, its arrays mapped and not read yet.

    :param path: the file.
    :raises ModelFileError: missing, cut, or not of this format.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        header = self._header()
        try:
            self.architecture = Architecture(
                **dict(
                    header["architecture"],
                    mrope_section=tuple(header["architecture"]["mrope_section"]),
                )
            )
            self.prefix = str(header["prefix"])
            self.quantize = str(header["quantize"])
            self.reserved_rank = int(header["reserved_rank"])
            self.max_input = int(header["max_input"])
            self.max_context = int(header["max_context"])
            self.digest = str(header["digests"]["weights"])
            self.converter = str(header["converter"])
            # One mapping; a weight is read when a net is first launched.
            raw = np.asarray(np.memmap(path, np.uint8, "r"))
            self.tensors: Dict[str, np.ndarray] = {
                str(t["name"]): self._tensor(t, raw) for t in header["tensors"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError("%s: damaged header: %r" % (path, error)) from None

    def _header(self) -> Dict[str, Any]:
        try:
            with open(self.path, "rb") as file:
                head = file.read(16)
                length = int.from_bytes(head[8:], "little")
                if head[:8] != MAGIC or length > MOST_HEADER:
                    raise ModelFileError("%s: not a compiled model" % self.path)
                header = json.loads(file.read(length).decode("utf-8"))
        except OSError as error:
            raise ModelFileError("%s: %s" % (self.path, error.strerror)) from None
        except ValueError:
            raise ModelFileError("%s: damaged header" % self.path) from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ModelFileError("%s: compiled for another version" % self.path)
        return header

    def _tensor(self, entry: Dict[str, Any], raw: np.ndarray) -> np.ndarray:
        """uint16 (bf16) or float32 of the tensor's shape, read-only."""
        dtype, shape = STORED[entry["dtype"]], tuple(int(n) for n in entry["shape"])
        offset, size = int(entry["offset"]), dtype.itemsize
        for extent in shape:
            size *= extent
        if min(shape) < 1 or offset < 0 or offset + size > raw.size:
            raise ModelFileError("%s: cut off at %d bytes" % (self.path, raw.size))
        return raw[offset : offset + size].view(dtype).reshape(shape)

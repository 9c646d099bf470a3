"""The simulated BM1688's compiled model: a headed file of its weights.

Weights are stored in the dtype the device computes in, bf16 as its 16 bits.
"""

from __future__ import annotations

from typing import Dict

import numpy as np

from ..headed import DTYPES
from ..headed import FileError
from ..headed import architecture_of
from ..headed import array_of
from ..headed import header_of
from ..headed import mapped


__all__ = ["FORMAT", "MAGIC", "STORED", "ModelFile", "ModelFileError"]

MAGIC = b"SIMBM168"
FORMAT = 1
STORED = {name: DTYPES[name] for name in ("bf16", "f32")}


class ModelFileError(Exception):
    """The file is not a whole model of this format; says why in one line."""


class ModelFile:
    """A model file, its arrays mapped and not read yet.

    :param path: the file.
    :raises ModelFileError: missing, cut, or not of this format.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            raw = mapped(path)
            header = header_of(raw, MAGIC, FORMAT)
            self.architecture = architecture_of(header["architecture"])
            self.prefix = str(header["prefix"])
            self.quantize = str(header["quantize"])
            self.reserved_rank = int(header["reserved_rank"])
            self.max_input = int(header["max_input"])
            self.max_context = int(header["max_context"])
            self.digest = str(header["digests"]["weights"])
            self.converter = str(header["converter"])
            self.tensors: Dict[str, np.ndarray] = {
                str(t["name"]): array_of(raw, t) for t in header["tensors"]
            }
        except FileError as error:
            raise ModelFileError("%s: %s" % (path, error)) from None
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError("%s: damaged header: %r" % (path, error)) from None

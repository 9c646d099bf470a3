"""A bundle of named adapters for the simulated RK1828 (`.lora_weight`).

A headed file, and as its last 32 bytes the sha256 of all before them. The vendor's
format is not public, only that one file holds several adapters.
"""

from __future__ import annotations

import math
from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple
from typing import Tuple

import numpy as np

from ..decoder import LINEARS
from ..headed import FileError
from ..headed import array_of
from ..headed import check_seal
from ..headed import header_of
from ..headed import mapped


__all__ = [
    "FORMAT",
    "MAGIC",
    "MOST_ADAPTERS",
    "MOST_NAME",
    "BundleFile",
    "BundleFileError",
    "BundledAdapter",
    "Factors",
]

MAGIC = b"SIMRKLW\0"
FORMAT = 1
# `RKNN3_MAX_LORA_NUM` of version 1.1.0; a name and its end fill `lora_name[256]`.
MOST_ADAPTERS = 32
MOST_NAME = 255


class BundleFileError(Exception):
    """The file is no whole bundle of this format; says why in one line."""


class Factors(NamedTuple):
    """A module's branch: y += fp16(fp16(fp16(x aᵀ) b) · scale).

    :param a: float32 `[r, in]` of fp16 values.
    :param b: float32 `[r, out]` of fp16 values, transposed on conversion.
    :param scale: alpha/r as float32, kept apart from B.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float


class BundledAdapter(NamedTuple):
    """One adapter.

    :param modules: by layer and path inside the layer, as in `decoder.LINEARS`.
    """

    name: str
    modules: Dict[Tuple[int, str], Factors]


class BundleFile:
    """A bundle.

    :param data: the whole file, bytes or anything with a buffer.
    :raises BundleFileError: cut, damaged, or not of this format.
    """

    def __init__(self, data: Any) -> None:
        try:
            raw = np.frombuffer(data, np.uint8)
            header = header_of(raw, MAGIC, FORMAT)
            check_seal(raw)
            self.base_digest = str(header["base"])
            self.dtype = str(header["dtype"])
            self.adapters = _adapters(raw, header["adapters"])
        except FileError as error:
            raise BundleFileError("not a bundle of adapters: %s" % error) from None
        except (KeyError, TypeError, ValueError) as error:
            raise BundleFileError("damaged header: %r" % error) from None

    @classmethod
    def open(cls, path: str) -> BundleFile:
        """The bundle in a file.

        :raises BundleFileError: see the class; also where there is no file.
        """
        try:
            return cls(mapped(path))
        except (BundleFileError, FileError) as error:
            raise BundleFileError("%s: %s" % (path, error)) from None


def _adapters(
    raw: np.ndarray, entries: List[Dict[str, Any]]
) -> Dict[str, BundledAdapter]:
    if not 1 <= len(entries) <= MOST_ADAPTERS:
        raise FileError("%d adapters" % len(entries))
    adapters: Dict[str, BundledAdapter] = {}
    for entry in entries:
        name = str(entry["name"])
        if name in adapters or not 1 <= len(name.encode()) <= MOST_NAME:
            raise FileError("adapter name %.80r" % name)
        modules: Dict[Tuple[int, str], Factors] = {}
        for module in entry["modules"]:
            modules[int(module["layer"]), _path(module)] = _factors(raw, module)
        adapters[name] = BundledAdapter(name, modules)
    return adapters


def _path(module: Dict[str, Any]) -> str:
    path = str(module["module"])
    if path not in LINEARS:
        raise FileError("module %.80r" % path)
    return path


def _factors(raw: np.ndarray, module: Dict[str, Any]) -> Factors:
    a = array_of(raw, module["a"]).astype(np.float32)
    b = array_of(raw, module["b"]).astype(np.float32)
    scale = float(module["scale"])
    if a.ndim != 2 or b.ndim != 2 or len(a) != len(b) or not math.isfinite(scale):
        raise FileError("factors %s and %s" % (a.shape, b.shape))
    return Factors(a, b, scale)

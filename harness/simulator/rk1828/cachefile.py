"""A session's cache in a file, with what it was computed with.

A headed file of one array, with the sha256 of all of it as its last 32 bytes. The
vendor's format is not public.
"""

from __future__ import annotations

import hashlib
from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple

import numpy as np

from ..headed import FileError
from ..headed import array_of
from ..headed import header_of
from ..headed import layout
from ..headed import shape_of
from .device import Origin
from .refused import Refused


__all__ = ["Saved", "packed", "unpacked"]

MAGIC = b"SIMRKKV\0"
FORMAT = 1
SHA256 = 32


class Saved(NamedTuple):
    """A cache that is not empty.

    :param rows: fp16 `[2, layers, tokens, kv_heads, head_dim]`.
    :param aged: rows in int4, from the first on.
    :param tokens: ids of what it holds.
    """

    rows: np.ndarray
    aged: int
    tokens: List[int]
    origin: Origin


def packed(saved: Saved) -> bytes:
    """The content of a cache file."""
    rows = shape_of("f16", *saved.rows.shape)
    header: Dict[str, Any] = {
        "format": FORMAT,
        "model": saved.origin.model,
        "adapters": saved.origin.adapters,
        "tokens": saved.tokens,
        "aged": saved.aged,
        "rows": rows,
    }
    head = layout(MAGIC, header, [rows])
    body = head.ljust(rows["offset"], b"\0") + saved.rows.astype("<f2").tobytes()
    return body + hashlib.sha256(body).digest()


def unpacked(data: Any) -> Saved:
    """The cache in a file's content.

    :raises Refused: cut, damaged, or not of this format.
    """
    raw = np.frombuffer(data, np.uint8)
    try:
        header = header_of(raw, MAGIC, FORMAT)
        if hashlib.sha256(raw[:-SHA256].tobytes()).digest() != raw[-SHA256:].tobytes():
            raise FileError("cut or damaged: its sha256 is another one")
        origin = Origin(
            str(header["model"]),
            tuple((str(n), float(s), str(d)) for n, s, d in header["adapters"]),
        )
        tokens = [int(token) for token in header["tokens"]]
        rows, aged = array_of(raw, header["rows"]), int(header["aged"])
        fits = rows.ndim == 5 and rows.shape[2] == len(tokens)
        if not (fits and 0 <= aged <= len(tokens)):
            raise FileError("rows %s of %d tokens" % (rows.shape, len(tokens)))
    except FileError as error:
        raise Refused("not a cache file: %s" % error) from None
    except (KeyError, TypeError, ValueError) as error:
        raise Refused("damaged cache file: %r" % error) from None
    return Saved(rows, aged, tokens, origin)

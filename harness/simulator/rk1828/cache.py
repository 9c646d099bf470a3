"""The KV cache of a session: its newest rows in fp16, older ones in int4.

Its file is a headed one of one array, with what the cache was computed with in the
header and the sha256 of all of it as the last 32 bytes. The vendor's is not public.
"""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple
from typing import Sequence
from typing import Tuple

import numpy as np

from ..headed import FileError
from ..headed import array_of
from ..headed import check_seal
from ..headed import header_of
from ..headed import layout
from ..headed import sealed
from ..headed import shape_of
from .device import Origin
from .device import Refused
from .modelfile import ModelFile


__all__ = ["Cache", "Saved", "packed", "quantised", "size_of", "unpacked"]

MAGIC = b"SIMRKKV\0"
FORMAT = 1
# Asymmetric int4 has 16 levels (`kvcache_dtype` INT4_TO_F16).
STEPS = np.float32(15)


class Cache:
    """Rows of keys and values of all layers, as attention reads them.

    A row is fp16 while it is among the newest `kv_residual`, and then int4 for good,
    as of the end of the chunk or step in which it ages. Rounding is an assumption;
    the vendor names dtype, group and residual depth.

    :param capacity: tokens.
    """

    def __init__(self, file: ModelFile, capacity: int) -> None:
        a = file.architecture
        self.capacity = capacity
        self._group = file.kv_group
        self._residual = file.kv_residual
        # float32 of fp16 values; keys, then values.
        self._rows = np.zeros(
            (2, a.layers, capacity, a.kv_heads, a.head_dim), np.float32
        )
        # Ids of what it holds.
        self.tokens: List[int] = []
        # Rows in int4, from the first on.
        self.aged = 0

    def __len__(self) -> int:
        """Tokens held."""
        return len(self.tokens)

    @property
    def rows(self) -> np.ndarray:
        """Keys and values, float32 `[2, layers, tokens, kv_heads, head_dim]`."""
        return self._rows[:, :, : len(self)]

    def history(self, layer: int) -> Tuple[np.ndarray, np.ndarray]:
        """Keys and values of a layer, float32 `[tokens, kv_heads, head_dim]`."""
        keys, values = self._rows[:, layer, : len(self)]
        return keys, values

    def put(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Rows of new tokens, float32 `[n, kv_heads, head_dim]`; `grow` adds them."""
        new = self._rows[:, layer, len(self) : len(self) + len(keys)]
        new[0] = keys
        new[1] = values

    def grow(self, tokens: Sequence[int]) -> None:
        """Add the tokens that were put into every layer; what ages turns int4."""
        self.tokens.extend(tokens)
        end = len(self) - self._residual
        if end > self.aged:
            old = self._rows[:, :, self.aged : end]
            old[...] = quantised(old, self._group)
            self.aged = end

    def cut(self, n: int) -> None:
        """Keep the first `n` tokens alone; 0 empties it."""
        del self.tokens[n:]
        self.aged = min(self.aged, n)

    def fill(self, rows: np.ndarray, aged: int, tokens: Sequence[int]) -> None:
        """Hold these rows, of the shape of `rows`, `aged` of them in int4 already."""
        self._rows[:, :, : len(tokens)] = rows
        self.tokens = list(tokens)
        self.aged = aged


def size_of(file: ModelFile, capacity: int) -> int:
    """Bytes of device memory for a cache: int4 with two fp16 a group, and fp16."""
    a = file.architecture
    width = 2 * a.layers * a.kv_heads * a.head_dim
    old = width // 2 + width // file.kv_group * 4
    return capacity * old + file.kv_residual * width * 2


def quantised(rows: np.ndarray, group: int) -> np.ndarray:
    """Rows as int4 holds them, float32 `[..., head_dim]` of fp16 values.

    A group of neighbours has its least value and a step, both fp16.
    """
    grouped = rows.reshape(*rows.shape[:-1], -1, group)
    low = grouped.min(-1, keepdims=True)
    step = grouped.max(-1, keepdims=True)
    step -= low
    step /= STEPS
    step = step.astype(np.float16).astype(np.float32)
    step[step == 0] = 1
    codes = grouped - low
    codes /= step
    np.rint(codes, out=codes)
    np.clip(codes, 0, STEPS, out=codes)
    codes *= step
    codes += low
    return np.asarray(codes, np.float16).reshape(rows.shape)


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
    return sealed(body)


def unpacked(data: Any) -> Saved:
    """The cache in a file's content.

    :raises Refused: cut, damaged, or not of this format.
    """
    raw = np.frombuffer(data, np.uint8)
    try:
        header = header_of(raw, MAGIC, FORMAT)
        check_seal(raw)
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

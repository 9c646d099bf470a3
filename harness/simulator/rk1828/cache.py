"""The KV cache of a session: its newest rows in fp16, older ones in int4."""

from __future__ import annotations

from typing import List
from typing import Sequence
from typing import Tuple

import numpy as np

from .modelfile import ModelFile


__all__ = ["Cache", "size_of"]

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

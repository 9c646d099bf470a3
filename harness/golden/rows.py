"""Sums over rows of logits: distances, deltas, log partitions.

All are taken over a few rows at a time, in buffers that stay in the cache: a
vocabulary of 151,936 makes whole-array temporaries slow, and one of 512 makes a
single row too little work for a call. Products of a row are dot products of centred
values in the arrays' own dtype (float32: relative error 1e-6), and in float64 where
float32 would overflow; all results are float64 `[rows]`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


__all__ = [
    "blocks",
    "change_gaps",
    "delta_products",
    "distances",
    "log_partition",
    "unequal",
]

# Of one array: two buffers and four inputs of it fit into a core's second-level
# cache of a megabyte or two.
BLOCK_BYTES = 1 << 18


def blocks(logits: np.ndarray) -> Iterator[slice]:
    """Slices over the rows of `[rows, vocab]`, of `BLOCK_BYTES` or one row."""
    step = max(1, BLOCK_BYTES // max(1, logits[:1].nbytes))
    for start in range(0, len(logits), step):
        yield slice(start, min(start + step, len(logits)))


def log_partition(logits: np.ndarray) -> np.ndarray:
    """log sum exp over the vocabulary, nats."""
    result = np.empty(len(logits))
    buffer = _buffer(logits)
    for rows in blocks(logits):
        part = logits[rows]
        shifted = buffer[: len(part)]
        top = part.max(axis=1)
        with np.errstate(over="ignore"):
            np.subtract(part, top[:, None], out=shifted)
        np.exp(shifted, out=shifted)
        sums = shifted.sum(axis=1, dtype=np.float64)
        result[rows] = top.astype(np.float64) + np.log(sums)
    return result


def unequal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether a row differs in any value, bool `[rows]`; 0.0 and -0.0 are equal."""
    result = np.empty(len(a), bool)
    for rows in blocks(a):
        result[rows] = (a[rows] != b[rows]).any(axis=1)
    return result


def distances(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """||got - want||^2 and ||want||^2 of finite logits centred per row.

    Centred, since a constant added to a row of logits changes no probability.
    """
    error, norm = np.empty(len(want)), np.empty(len(want))
    buffer = _buffer(want)
    for rows in blocks(want):
        x, y = got[rows], want[rows]
        error[rows] = _spread(x, y, buffer[: len(y)])
        norm[rows] = _spread(y, None, buffer[: len(y)])
    for t in _overflown(error, norm):
        wide = want[t : t + 1].astype(np.float64)
        error[t] = _spread(got[t : t + 1], wide, np.empty_like(wide))[0]
        norm[t] = _spread(wide, None, wide)[0]
    return error, norm


def change_gaps(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray
) -> np.ndarray:
    """||(a - b) - (c - d)||^2 of finite logits centred per row."""
    result = np.empty(len(a))
    first, second = _buffer(a), _buffer(a)
    for rows in blocks(a):
        n = len(a[rows])
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(a[rows], b[rows], out=first[:n])
            np.subtract(c[rows], d[rows], out=second[:n])
            result[rows] = _spread(first[:n], second[:n], first[:n])
    for t in _overflown(result):
        e, f, g, h = (x[t : t + 1].astype(np.float64) for x in (a, b, c, d))
        result[t] = _spread(e - f, g - h, e)[0]
    return result


def delta_products(
    four: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    partitions: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """<e, e>, <e, d*> and <d*, d*> of two deltas of log-probabilities.

    d = logp(got) - logp(got base) and d* = logp(want) - logp(want base), over the
    full vocabulary; e = d - d*. From the residual e, scale and direction follow
    without cancellation: <d, d*> = <e, d*> + <d*, d*>.

    :param four: got, got base, want, want base; finite logits `[rows, vocab]`.
    :param partitions: their `log_partition`.
    """
    shifts = np.stack([partitions[0] - partitions[1], partitions[2] - partitions[3]])
    sums = np.empty((3, len(four[0])))
    buffers = _buffer(four[0]), _buffer(four[0])
    for rows in blocks(four[0]):
        parts = [logits[rows] for logits in four]
        sums[:, rows] = _products(parts, shifts[:, rows], buffers)
    for t in _overflown(*sums):
        row = slice(t, t + 1)
        parts = [logits[row] for logits in four]
        wide = np.empty(parts[0].shape), np.empty(parts[0].shape)
        sums[:, row] = _products(parts, shifts[:, row], wide)
    return sums[0], sums[1], sums[2]


def _products(
    parts: list[np.ndarray],
    shifts: np.ndarray,
    buffers: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """The three sums of some rows `[3, n]`, in the dtype of the buffers.

    Logits are subtracted first, the log partitions after: log-probabilities in
    float32 would be rounded at the size of the constants.
    """
    n = len(parts[0])
    error, right = buffers[0][:n], buffers[1][:n]
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(parts[0], parts[1], out=error, dtype=error.dtype)
        np.subtract(parts[2], parts[3], out=right, dtype=error.dtype)
        right -= shifts[1][:, None].astype(error.dtype)
        error -= shifts[0][:, None].astype(error.dtype)
        error -= right
        return np.stack(
            [
                np.vecdot(error, error),
                np.vecdot(error, right),
                np.vecdot(right, right),
            ]
        )


def _spread(x: np.ndarray, y: np.ndarray | None, out: np.ndarray) -> np.ndarray:
    """Sums of squares of x - y about their mean, per row; `out` is overwritten."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(x, 0 if y is None else y, out=out)
        mean = out.sum(axis=1, dtype=np.float64) / out.shape[1]
        out -= mean[:, None].astype(out.dtype)
        squares: np.ndarray = np.vecdot(out, out)
    return squares


def _buffer(logits: np.ndarray) -> np.ndarray:
    """Room for one block."""
    first = next(blocks(logits), slice(0, 0))
    return np.empty_like(logits[first])


def _overflown(*sums: np.ndarray) -> np.ndarray:
    """Rows with a sum that float32 could not hold."""
    result: np.ndarray = np.flatnonzero(~np.isfinite(sums).all(axis=0))
    return result

"""How equal two adapters are on a correct board.

On a BM1688 it is known what a correct loader puts into its slots: they are bf16 and
always have the reserved rank; the graph computes
`(x A^T) B` with A `[reserved, in]`, B `[reserved, out]` and holds no scale, so
alpha/r is multiplied into B before the write (vendor's layout). Loaders may
compute scale and product in float32 or float64; a relation counts as exact only
where all of them agree, so that no correct loader is blamed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import ml_dtypes
import numpy as np

from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import Part


__all__ = ["Compare", "Exactness", "by_content", "in_slots"]

Exactness = Literal["bytes", "exact", "rounded"]
"""How equal two adapters are on such a device.

`bytes`: every slot holds the same bytes.
`exact`: the slots differ by powers of two or signs that cancel, or in rows that
meet zeros, so every intermediate is the same number scaled: equal logits.
`rounded`: equal within the numeric floor only.
"""

# Dtypes of scale and product.
ARITHMETIC = (
    (np.float32, np.float32),
    (np.float64, np.float32),
    (np.float64, np.float64),
)
BF16 = np.dtype(ml_dtypes.bfloat16)
# The smallest normal bf16; below it a factor of two loses bits.
TINY = 2.0**-126
# Room for the scaled x A^T: with |x| up to 2^40 and half of bf16's 2^127 left,
# products of A up to 2^40 stay finite.
ROOM = 2.0**40


Compare = Callable[[Draft, Draft], Exactness]


def by_content(left: Draft, right: Draft) -> Exactness:
    """How equal two adapters are wherever nothing is known of how they are held.

    Equal factors and scales give equal everything, and a branch that is zero gives
    the base; whatever else means the same function may be rounded on its way.
    """
    worst: Exactness = "bytes"
    for path in left.parts.keys() | right.parts.keys():
        pair = [draft.parts.get(path) for draft in (left, right)]
        if all(part is None or _silent(part) for part in pair):
            worst = "exact"
            continue
        if None in pair or left.scale(path) != right.scale(path):
            return "rounded"
        one, other = pair
        assert one is not None and other is not None
        if not (_equal(one.a, other.a) and _equal(one.b, other.b)):
            return "rounded"
    return worst


def _silent(part: Part) -> bool:
    return part.alpha == 0 or not part.a.any() or not part.b.any()


def _equal(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.astype(np.float64), right.astype(np.float64))


def in_slots(left: Draft, right: Draft) -> Exactness:
    """How equal two adapters are in BM1688 slots, computed on their own values."""
    worst: Exactness = "bytes"
    for path in left.parts.keys() | right.parts.keys():
        for kinds in ARITHMETIC:
            grade = _module(_slots(left, path, *kinds), _slots(right, path, *kinds))
            if grade == "rounded":
                return grade
            if grade == "exact":
                worst = grade
    return worst


Slots = tuple[np.ndarray, np.ndarray]


def _slots(draft: Draft, path: str, scaling: type, product: type) -> Slots | None:
    """A `[rank, in]` and B^T · scale `[rank, out]`, bf16; None: zeros."""
    part = draft.parts.get(path)
    if part is None:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        alpha, rank = scaling(part.alpha), scaling(part.rank)
        scale = alpha / np.sqrt(rank) if draft.rslora else alpha / rank
        a = part.a.astype(np.float32).astype(BF16)
        b = _bf16(part.b.astype(product).T * product(scale))
    return a, b


def _bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to bf16 once, to nearest even, from float64 too."""
    near = values.astype(np.float32)
    # Round to odd first: what float32 drops must not turn a near tie into a tie.
    near = np.where(np.abs(near) > np.abs(values), np.nextafter(near, 0), near)
    near = near.astype(np.float32)
    bits = near.view(np.uint32) | (near != values).astype(np.uint32)
    return np.asarray(bits.view(np.float32).astype(BF16))


def _module(left: Slots | None, right: Slots | None) -> Exactness:
    if left is None or right is None:
        other = left or right
        if other is None or not (other[0].any() or other[1].any()):
            return "bytes"
        # Adding A x times zero adds a zero.
        return "exact" if not other[1].any() and _finite(other[0]) else "rounded"
    rows = max(left[0].shape[0], right[0].shape[0])
    left_a, left_b, right_a, right_b = (
        _padded(v, rows) for v in (left[0], left[1], right[0], right[1])
    )
    if _same(left_a, right_a) and _same(left_b, right_b):
        return "bytes"
    if not _finite(left_a) or not _finite(right_a):
        return "rounded"
    if not left_b.any() and not right_b.any():
        return "exact"
    factor = _factor(left_a, right_a)
    if factor and _factor(left_b, right_b) == 1 / factor:
        return "exact"
    return "rounded"


def _factor(left: np.ndarray, right: np.ndarray) -> float:
    """The power of two, perhaps negative, that makes `left` `right`; 0: none."""
    x, y = left.astype(np.float64), right.astype(np.float64)
    peak = np.unravel_index(np.abs(x).argmax(), x.shape)
    if x[peak] == 0:
        return 0.0
    factor = float(y[peak] / x[peak])
    power = abs(np.frexp(factor)[0]) == 0.5
    values = np.abs(np.concatenate([x[x != 0], y[y != 0]]))
    normal = values.size > 0 and values.min() >= TINY and values.max() < ROOM
    return factor if power and normal and np.array_equal(x * factor, y) else 0.0


def _padded(values: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros((rows, values.shape[1]), BF16)
    out[: values.shape[0]] = values
    return out


def _same(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def _finite(values: np.ndarray) -> bool:
    return bool(np.isfinite(values.astype(np.float32)).all())

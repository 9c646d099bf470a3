"""How far apart two sets of logits are, and what a delta's scale is.

The few formulas that describe a reference: its adapter's effect and its numeric
floor. Verdicts have their own room; nothing here decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from dataclasses import dataclass

import numpy as np

from harness.golden.rows import delta_products
from harness.golden.rows import distances
from harness.golden.rows import log_partition


__all__ = ["Block", "Gap", "effect_of", "gap_of", "relative_l2"]


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """||got - want|| / ||want||, over the logits centred per row, no unit."""
    error, norm = distances(got, want)
    return math.sqrt(math.fsum(error) / math.fsum(norm))


def effect_of(base: np.ndarray, adapter: np.ndarray) -> float:
    """The adapter's effect: ||delta of log-probabilities|| / ||centred base||."""
    _, _, effect = _deltas(adapter, base, adapter, base)
    return math.sqrt(math.fsum(effect) / math.fsum(distances(base, base)[1]))


@dataclass(frozen=True, eq=False)
class Block:
    """Logits of some rows, each float `[rows, vocab]`."""

    base: np.ndarray
    base_device: np.ndarray
    adapter: np.ndarray
    adapter_device: np.ndarray


@dataclass(frozen=True)
class Gap:
    """The reference in device arithmetic against the reference in float32.

    :param effect: norm of the delta in units of the centred base.
    :param base: relative L2 of the base's centred logits: its numeric floor.
    :param delta: direction residual ||d - s d*|| / ||d*||.
    :param scale: pooled scale s of the delta; 1 in exact arithmetic.
    :param scale_error: standard error of s, jackknife over prompts.
    """

    effect: float
    base: float
    delta: float
    scale: float
    scale_error: float

    def to_json(self) -> dict[str, float]:
        """JSON form."""
        return asdict(self)


def gap_of(blocks: Iterable[Block]) -> Gap:
    """The gap of one adapter, in one pass over its prompts.

    :param blocks: one block of logits per prompt, so that a vocabulary of 150,000
        and a thousand rows never lie in memory at once.
    """
    sums = []
    for block in blocks:
        delta = _deltas(
            block.adapter_device, block.base_device, block.adapter, block.base
        )
        between = distances(block.base_device, block.base)
        sums.append([math.fsum(rows) for rows in (*delta, *between)])
    # Of the residual e and the delta d*: <e, e>, <e, d*>, <d*, d*>, per prompt.
    error, cross, norm, base_error, base_norm = np.array(sums).T
    off = cross.sum() / norm.sum()
    k = len(sums)
    left_out = (cross.sum() - cross) / (norm.sum() - norm + (k == 1))
    spread = (k - 1) / k * ((left_out - left_out.mean()) ** 2).sum()
    rest = error.sum() - off * cross.sum()
    return Gap(
        effect=math.sqrt(norm.sum() / base_norm.sum()),
        base=math.sqrt(base_error.sum() / base_norm.sum()),
        delta=math.sqrt(max(rest, 0.0) / norm.sum()),
        scale=1 + float(off),
        # One prompt says nothing about its own scatter.
        scale_error=math.sqrt(spread) if k > 1 else math.inf,
    )


def _deltas(
    got: np.ndarray, got_base: np.ndarray, want: np.ndarray, want_base: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    four = got, got_base, want, want_base
    a, b, c, d = (log_partition(logits) for logits in four)
    return delta_products(four, (a, b, c, d))

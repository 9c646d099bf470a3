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


__all__ = ["Block", "Gap", "effect_of", "gap_of", "log_softmax", "relative_l2"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities over the full vocabulary, float64 `[rows, vocab]`, nats."""
    wide: np.ndarray = np.asarray(logits, np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """||got - want|| / ||want||, over the logits centred per row, no unit.

    Centred, since a constant added to a row of logits changes no probability.
    """
    want = _centred(want)
    return float(np.linalg.norm(_centred(got) - want) / np.linalg.norm(want))


def effect_of(base: np.ndarray, adapter: np.ndarray) -> float:
    """The adapter's effect: ||delta of log-probabilities|| / ||centred base||."""
    delta = log_softmax(adapter) - log_softmax(base)
    return float(np.linalg.norm(delta) / np.linalg.norm(_centred(base)))


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
    dots, norms = [], []
    got_square = base_square = error_square = 0.0
    for block in blocks:
        want = log_softmax(block.adapter) - log_softmax(block.base)
        got = log_softmax(block.adapter_device) - log_softmax(block.base_device)
        base = _centred(block.base)
        dots.append(float(np.vdot(got, want)))
        norms.append(float(np.vdot(want, want)))
        got_square += float(np.vdot(got, got))
        base_square += float(np.vdot(base, base))
        error_square += float(((_centred(block.base_device) - base) ** 2).sum())
    dot, norm = sum(dots), sum(norms)
    scale = dot / norm
    rest = got_square - 2 * scale * dot + scale**2 * norm
    left_out = (dot - np.array(dots)) / (norm - np.array(norms) + (len(norms) == 1))
    k = len(dots)
    spread = (k - 1) / k * ((left_out - left_out.mean()) ** 2).sum()
    return Gap(
        effect=math.sqrt(norm / base_square),
        base=math.sqrt(error_square / base_square),
        delta=math.sqrt(max(rest, 0.0) / norm),
        scale=scale,
        # One prompt says nothing about its own scatter.
        scale_error=math.sqrt(spread) if k > 1 else math.inf,
    )


def _centred(logits: np.ndarray) -> np.ndarray:
    wide: np.ndarray = np.asarray(logits, np.float64)
    wide = wide - wide.mean(axis=-1, keepdims=True)
    return wide

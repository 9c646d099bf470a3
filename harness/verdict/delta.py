"""Distances and deltas of scores, as sums per row and per prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.golden.prompts import PromptSet
from harness.golden.rows import change_gaps
from harness.golden.rows import delta_products
from harness.golden.rows import distances
from harness.golden.scores import Scores


__all__ = [
    "Deltas",
    "Distance",
    "aligned",
    "change_gap",
    "deltas",
    "distance",
    "log_likelihood",
    "nonfinite",
    "per_prompt",
    "place",
    "relative",
]

# A relative distance to something of no size at all is called this: a number, so
# that it can be kept, compared and shown.
BOUNDLESS = 1e9


@dataclass(frozen=True)
class Distance:
    """Squared distance of two scorings and squared size of the second, per row.

    Both over logits centred per row (the mean over the vocabulary subtracted), as
    a constant added to a row changes no probability.

    :param error: float64 `[rows]`.
    :param norm: float64 `[rows]`.
    """

    prompts: PromptSet
    error: np.ndarray
    norm: np.ndarray


@dataclass(frozen=True)
class Deltas:
    """Products of the adapter's deltas d (observed) and d* (reference), per row.

    d = logp(adapter) - logp(base) over the full vocabulary. The residual e = d - d*
    is kept rather than d: from it scale and residual follow without cancellation.

    :param error: <e, e>, float64 `[rows]`.
    :param cross: <e, d*>, float64 `[rows]`.
    :param effect: <d*, d*>, float64 `[rows]`.
    """

    prompts: PromptSet
    error: np.ndarray
    cross: np.ndarray
    effect: np.ndarray


def aligned(*scores: Scores) -> None:
    """Check that all are scorings of one prompt set with one vocabulary.

    :raises ValueError: they are not; a bug of the caller, not of a board.
    """
    first = scores[0]
    for other in scores[1:]:
        if other.prompts != first.prompts:
            raise ValueError("these are scores of different prompts")
        if other.logits.shape != first.logits.shape:
            raise ValueError(
                f"logits {other.logits.shape} against {first.logits.shape}: "
                "different vocabularies"
            )


def nonfinite(**scores: Scores) -> dict[str, Any] | None:
    """Where logits are NaN or infinite, None where all are numbers.

    :param scores: by role, such as `observed`; the first one with any is told.
    """
    for whose, one in scores.items():
        if one.finite:
            continue
        bad = ~np.isfinite(one.logits)
        row = int(bad.any(axis=1).argmax())
        return {
            "whose": whose,
            "count": int(bad.sum()),
            "token": int(bad[row].argmax()),
            **place(one.prompts, row),
        }
    return None


def place(prompts: PromptSet, row: int) -> dict[str, Any]:
    """Name of the prompt and the row within it, of row `row` of a set."""
    k = int(np.searchsorted(prompts.starts, row, side="right")) - 1
    return {"prompt": prompts.prompts[k].name, "row": row - int(prompts.starts[k])}


def per_prompt(prompts: PromptSet, values: np.ndarray) -> np.ndarray:
    """Sums of `values` `[rows]` over each prompt's rows, `[K]`."""
    return np.add.reduceat(values, prompts.starts[:-1])


def relative(error: np.ndarray, norm: np.ndarray) -> np.ndarray:
    """sqrt(error / norm) of squared sums; finite whatever they are."""
    size = np.sqrt(norm)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.minimum(np.sqrt(error) / size, BOUNDLESS)
    return np.where(size > 0, ratio, np.where(error > 0, BOUNDLESS, 0.0))


def distance(observed: Scores, expected: Scores) -> Distance:
    """Squared distance per row of two scorings, with finite logits.

    :raises ValueError: other prompts or another vocabulary.
    """
    aligned(observed, expected)
    error, norm = distances(observed.logits, expected.logits)
    return Distance(expected.prompts, error, norm)


def change_gap(pair: tuple[Scores, Scores], other: tuple[Scores, Scores]) -> np.ndarray:
    """||(a - b) - (c - d)||^2 per row, centred, of the changes in two pairs.

    :param pair: (a, b), finite.
    :param other: (c, d), finite.
    :returns: float64 `[rows]`.
    :raises ValueError: other prompts or another vocabulary.
    """
    four = (*pair, *other)
    aligned(*four)
    return change_gaps(*(s.logits for s in four))


def log_likelihood(scores: Scores) -> np.ndarray:
    """Log-probability of the token each row predicts, float64 `[rows]`, nats."""
    chosen = scores.logits[np.arange(scores.prompts.rows), scores.prompts.targets]
    result: np.ndarray = chosen.astype(np.float64) - scores.partition
    return result


def deltas(
    observed: Scores, observed_base: Scores, reference: Scores, reference_base: Scores
) -> Deltas:
    """Products of the observed delta and the reference's (B.7.1), finite logits.

    :raises ValueError: other prompts or another vocabulary.
    """
    a, b, c, d = four = (observed, observed_base, reference, reference_base)
    aligned(*four)
    error, cross, effect = delta_products(
        (a.logits, b.logits, c.logits, d.logits),
        (a.partition, b.partition, c.partition, d.partition),
    )
    return Deltas(reference.prompts, error, cross, effect)

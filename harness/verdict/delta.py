"""Distances and deltas of logits, as sums per prompt.

Everything works a row at a time on buffers that stay in the cache: a vocabulary of
151,936 makes large temporaries slow. Sums are float64; products of one row are
float32 dot products of centred values (relative error 1e-6), and float64 where
float32 would overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores


__all__ = [
    "Deltas",
    "Distance",
    "aligned",
    "change_gap",
    "deltas",
    "distance",
    "log_likelihood",
    "log_partition",
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
    rows, width = expected.logits.shape
    error, norm = np.empty(rows), np.empty(rows)
    buffer = np.empty(width, np.float32)
    for t in range(rows):
        x, y = observed.logits[t], expected.logits[t]
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(x, y, out=buffer)
            error[t] = _centred_square(buffer)
            np.copyto(buffer, y)
            norm[t] = _centred_square(buffer)
        if not (np.isfinite(error[t]) and np.isfinite(norm[t])):
            wide = y.astype(np.float64)
            norm[t] = _centred_square(wide)
            error[t] = _centred_square(x - wide)
    return Distance(expected.prompts, error, norm)


def change_gap(pair: tuple[Scores, Scores], other: tuple[Scores, Scores]) -> np.ndarray:
    """||(a - b) - (c - d)||^2 per row, centred, of the changes in two pairs.

    :param pair: (a, b), finite.
    :param other: (c, d), finite.
    :returns: float64 `[rows]`.
    :raises ValueError: other prompts or another vocabulary.
    """
    aligned(*pair, *other)
    result = np.empty(pair[0].prompts.rows)
    for t in range(len(result)):
        a, b, c, d = (s.logits[t] for s in (*pair, *other))
        with np.errstate(over="ignore", invalid="ignore"):
            result[t] = _centred_square((a - b) - (c - d))
        if not np.isfinite(result[t]):
            wide = (a.astype(np.float64) - b) - (c.astype(np.float64) - d)
            result[t] = _centred_square(wide)
    return result


def log_partition(logits: np.ndarray) -> np.ndarray:
    """log sum exp over the vocabulary, float64 `[rows]`, nats."""
    result = np.empty(len(logits))
    buffer = np.empty(logits.shape[1], np.float32)
    for t, row in enumerate(logits):
        top = row.max()
        with np.errstate(over="ignore"):
            np.subtract(row, top, out=buffer)
        np.exp(buffer, out=buffer)
        result[t] = np.float64(top) + np.log(buffer.sum(dtype=np.float64))
    return result


def log_likelihood(scores: Scores) -> np.ndarray:
    """Log-probability of the token each row predicts, float64 `[rows]`, nats."""
    chosen = scores.logits[np.arange(scores.prompts.rows), scores.prompts.targets]
    result: np.ndarray = chosen.astype(np.float64) - log_partition(scores.logits)
    return result


def deltas(
    observed: Scores, observed_base: Scores, reference: Scores, reference_base: Scores
) -> Deltas:
    """Products of the observed delta and the reference's (B.7.1), finite logits.

    :raises ValueError: other prompts or another vocabulary.
    """
    aligned(observed, observed_base, reference, reference_base)
    four = [s.logits for s in (observed, observed_base, reference, reference_base)]
    logs = [log_partition(logits) for logits in four]
    shifts = np.stack([logs[0] - logs[1], logs[2] - logs[3]], axis=1)
    rows, width = four[0].shape
    sums = np.empty((rows, 3))
    narrow = np.empty((2, width), np.float32)
    for t in range(rows):
        sums[t] = _products([logits[t] for logits in four], shifts[t], narrow)
        if not np.isfinite(sums[t]).all():
            wide = np.empty((2, width))
            sums[t] = _products([logits[t] for logits in four], shifts[t], wide)
    return Deltas(reference.prompts, sums[:, 0], sums[:, 1], sums[:, 2])


def _products(
    rows: list[np.ndarray], shifts: np.ndarray, buffer: np.ndarray
) -> tuple[float, float, float]:
    """<e, e>, <e, d*>, <d*, d*> of one row, in the dtype of `buffer` `[2, vocab]`.

    Logits are subtracted first, the log partitions after: log-probabilities in
    float32 would be rounded at the size of the constants.
    """
    d, right = buffer
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(rows[0], rows[1], out=d, dtype=buffer.dtype)
        np.subtract(rows[2], rows[3], out=right, dtype=buffer.dtype)
        d -= shifts[0]
        right -= shifts[1]
        d -= right
        return float(d @ d), float(d @ right), float(right @ right)


def _centred_square(values: np.ndarray) -> float:
    """Sum of squares about the mean; changes `values`."""
    values -= values.sum(dtype=np.float64) / len(values)
    return float(np.dot(values, values))

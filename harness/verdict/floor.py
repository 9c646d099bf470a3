"""The repeat floor: a board against itself on the same input.

The statistic is T = sqrt(mean over prompts of ||a - b||^2 / ||a||^2), the root mean
square of the prompts' relative L2 distances, logits centred per row. Every prompt
weighs the same, so a residue in one of them is not drowned by a larger one, and the
average over all rows makes T far steadier than any single logit: its scatter is
some per cent of itself, which is what lets a residue as small as the noise be seen.

Three equal repeats: the floor is zero and checks are bit equality. Otherwise
`REPEATS` of them and log T taken as normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtrit

from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.verdict.budget import FLOOR_CONFIDENCE
from harness.verdict.budget import FLOOR_MARGIN
from harness.verdict.budget import POWER
from harness.verdict.delta import distance
from harness.verdict.delta import per_prompt
from harness.verdict.delta import relative
from harness.verdict.equivalence import normal_quantile


__all__ = ["REPEATS", "FloorLaw", "RepeatFloor", "Repeats", "apart", "root_mean_square"]

# Repeats that show a deterministic board.
EQUAL_REPEATS = 3
# 59 distances, so that their largest alone covers 95 % of all with confidence 0.95
# (n >= ln 0.05 / ln 0.95) whatever their law. Distances are between neighbours in
# time: against a common first repeat all would share that repeat's noise, and only
# neighbours need no more than two scorings in memory.
REPEATS = 60
# Neighbouring distances share a scoring: their correlation is 1/4, so n of them
# tell as much as n / (1 + 2/4) independent ones.
SHARED = 1.5


def root_mean_square(values: np.ndarray) -> float:
    """sqrt(mean of squares)."""
    return math.sqrt(float(np.mean(np.square(values))))


def apart(observed: Scores, expected: Scores) -> float:
    """The statistic T of two scorings: relative, no unit."""
    return root_mean_square(_relative(observed, expected))


@dataclass(frozen=True)
class FloorLaw:
    """The law of T of a noisy board: log T is normal.

    :param mean: mean of log T.
    :param deviation: standard deviation of log T.
    :param count: independent distances it is known from.
    :param largest: largest T seen.
    """

    mean: float
    deviation: float
    count: float
    largest: float

    def limit(self, alpha: float) -> float:
        """T that right repeats exceed with probability `alpha` at most.

        exp(mean + k sd), k = t'_{g, n-1}(z_{1-alpha} sqrt n) / sqrt n with the
        noncentral t' (normal tolerance factor, B.7.7) at confidence g = 0.95; never
        below the largest T seen; times FLOOR_MARGIN.
        """
        root = math.sqrt(self.count)
        centre = normal_quantile(1 - alpha) * root
        k = float(nctdtrit(self.count - 1, centre, FLOOR_CONFIDENCE)) / root
        return FLOOR_MARGIN * max(
            math.exp(self.mean + k * self.deviation), self.largest
        )

    def smallest_visible(self, alpha: float) -> float:
        """Smallest fixed residue found wrong with `POWER`, relative L2.

        Noise and residue add in squares, the noise at the low end of its law.
        """
        low = math.exp(self.mean - normal_quantile(POWER) * self.deviation)
        return math.sqrt(max(self.limit(alpha) ** 2 - low**2, 0.0))

    def to_json(self) -> dict[str, float]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class RepeatFloor:
    """How far repeats of the same input lie apart on one board.

    :param exact: all repeats were equal, value for value.
    :param repeats: scorings compared.
    :param prompts: name and rows of each prompt.
    :param distances: relative L2 of neighbouring repeats, `[repeats - 1][K]`; empty
        when exact.
    """

    exact: bool
    repeats: int
    prompts: tuple[tuple[str, int], ...] = ()
    distances: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def measure(cls, score: Callable[[], Scores]) -> RepeatFloor:
        """Score three times, and as often as a noisy board needs."""
        repeats = Repeats()
        while repeats.needed:
            repeats.add(score())
        return repeats.floor()

    def limit(self, alpha: float) -> float:
        """Limit of T on all prompts measured, at this false alarm rate."""
        law = self.law()
        return law.limit(alpha) if law else 0.0

    def law(self, prompts: PromptSet | None = None) -> FloorLaw | None:
        """The law of T on `prompts`, None when the board repeats exactly.

        :param prompts: prompts that were measured, or some of them with all their
            rows; None for all.
        :raises ValueError: the board is noisy and others are asked for, whose noise
            is not known.
        """
        if self.exact:
            return None
        wanted = self.prompts if prompts is None else _keys(prompts)
        unknown = [name for name, rows in wanted if (name, rows) not in self.prompts]
        if unknown:
            raise ValueError(
                f"the repeat floor was not measured on these rows of {unknown[0]!r}"
            )
        columns = [self.prompts.index(key) for key in wanted]
        part = np.asarray(self.distances)[:, columns]
        values = np.sqrt(np.mean(np.square(part), axis=1))
        count = len(values) / SHARED
        positive = values[values > 0]
        if not len(positive):  # they differ by a constant a row only: nothing
            return FloorLaw(math.log(1e-300), 0.0, count, 0.0)
        logs = np.log(np.maximum(values, positive.min()))
        return FloorLaw(
            float(logs.mean()), float(logs.std(ddof=1)), count, float(values.max())
        )


class Repeats:
    """Repeats as they come; keeps only the last one."""

    def __init__(self) -> None:
        self._count = 0
        self._last: Scores | None = None
        self._equal = True
        self._finite = True
        self._distances: list[tuple[float, ...]] = []

    @property
    def needed(self) -> int:
        """How many more repeats the floor needs; 0 when it can be had."""
        enough = EQUAL_REPEATS if self._equal else REPEATS
        return max(0, enough - self._count) if self._finite else 0

    def add(self, scores: Scores) -> None:
        """Take the next repeat.

        :raises ValueError: other prompts or another vocabulary than before.
        """
        self._count += 1
        self._finite = self._finite and scores.finite
        if self._last is not None and self._finite:
            distances = _relative(scores, self._last)
            self._distances.append(tuple(distances.tolist()))
            self._equal &= np.array_equal(scores.logits, self._last.logits)
        self._last = scores

    def floor(self) -> RepeatFloor:
        """The floor.

        A board that answers NaN or infinity gets a floor of zero: no noise excuses
        it, and the first check will say so.

        :raises ValueError: too few repeats.
        """
        if self.needed or self._last is None:
            raise ValueError(f"{self.needed} more repeats are needed")
        prompts = _keys(self._last.prompts)
        if self._equal or not self._finite:
            return RepeatFloor(True, self._count, prompts)
        return RepeatFloor(False, self._count, prompts, tuple(self._distances))


def _keys(prompts: PromptSet) -> tuple[tuple[str, int], ...]:
    return tuple((p.name, len(p.continuation)) for p in prompts)


def _relative(observed: Scores, expected: Scores) -> np.ndarray:
    between = distance(observed, expected)
    prompts = between.prompts
    return relative(
        per_prompt(prompts, between.error), per_prompt(prompts, between.norm)
    )

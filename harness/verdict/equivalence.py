"""Estimates over prompts, their errors, and the equivalence test.

Rows of a prompt share its context, so the prompt is the unit (a cluster). The noise
of logits has at most the rank of the hidden size, so an error computed over the
vocabulary would be too small by sqrt(vocab / hidden).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri
from scipy.special import ndtr
from scipy.special import ndtri
from scipy.special import stdtrit

from harness.verdict.budget import ALPHA_PASS
from harness.verdict.budget import POWER
from harness.verdict.measurement import Outcome


__all__ = [
    "Estimate",
    "Window",
    "minimum_detectable",
    "normal_quantile",
    "prompts_needed",
    "ratio",
    "t_quantile",
]


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error over `prompts` prompts.

    :param error: standard error; infinite where one prompt carries everything.
    """

    value: float
    error: float
    prompts: int

    @property
    def freedom(self) -> int:
        """Degrees of freedom, K - 1."""
        return self.prompts - 1

    def half_width(self, alpha: float) -> float:
        """t_{1-alpha, K-1} times the standard error; infinite for one prompt."""
        if self.freedom < 1 or not math.isfinite(self.error):
            return math.inf
        return t_quantile(1 - alpha, self.freedom) * self.error


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """Ratio of sums over prompts with its jackknife standard error.

    se^2 = (K-1)/K sum_k (s_(-k) - mean s_(-.))^2 (Tukey 1958; B.7.2).

    :param numerators: float64 `[K]`.
    :param denominators: float64 `[K]`, not negative, with a positive sum.
    """
    top, bottom = math.fsum(numerators), math.fsum(denominators)
    count = len(numerators)
    left = bottom - denominators
    if count < 2 or np.any(left <= 0):
        return Estimate(top / bottom, math.inf, count)
    without = (top - numerators) / left
    spread = float(np.sum((without - without.mean()) ** 2))
    return Estimate(top / bottom, math.sqrt((count - 1) / count * spread), count)


def normal_quantile(p: float) -> float:
    """z_p of the standard normal law."""
    return float(ndtri(p))


def t_quantile(p: float, freedom: float) -> float:
    """t_p of Student's law."""
    return float(stdtrit(freedom, p))


def minimum_detectable(
    error: float, freedom: int, alpha: float, power: float = POWER
) -> float:
    """Smallest effect a two-sided t test at `alpha` finds with `power` (B.7.5).

    The noncentrality d with P(T_{freedom, d} > t_{1-alpha/2, freedom}) = power,
    times the standard error: 5.62 errors for many prompts, 9.44 for K = 8, both at
    1e-3 and 0.99. Give 2 alpha for a one-sided test.

    P(T <= t) = E[Phi(t sqrt(W / f) - d)] with W chi-square is averaged over the
    quantiles of W: the inverse of the noncentral t in scipy does not end for one
    degree of freedom and a large t.
    """
    if freedom < 1 or not math.isfinite(error):
        return math.inf
    critical = t_quantile(1 - alpha / 2, freedom)
    upper_tails = (np.arange(4096) + 0.5) / 4096
    thresholds = critical * np.sqrt(chdtri(freedom, upper_tails) / freedom)
    low, high = 0.0, float(thresholds.max()) + 10
    for _ in range(80):
        middle = (low + high) / 2
        if float(ndtr(thresholds - middle).mean()) > 1 - power:
            low = middle
        else:
            high = middle
    return high * error


def prompts_needed(estimate: Estimate, margin: float) -> int:
    """Prompts at which a right board passes 99 times in 100 (B.7.4).

    K >= ((z_{1-a} + z_{1-b/2}) sd / margin)^2 with sd = se sqrt(K), b = 1 - power;
    one at least, 10^6 at most.
    """
    if not math.isfinite(estimate.error):
        return 10**6
    reach = normal_quantile(1 - ALPHA_PASS) + normal_quantile(1 - (1 - POWER) / 2)
    needed = estimate.prompts * (reach * estimate.error / margin) ** 2
    return int(min(10**6, max(1, math.ceil(needed))))


@dataclass(frozen=True)
class Window:
    """An equivalence test: is the value within `margin` of `target`?

    PASS by two one-sided tests (Schuirmann 1987): the interval at ALPHA_PASS lies
    inside the margin. FAIL by either of two tests that share `alpha` in halves:
    the interval lies wholly outside, or the value is further outside than the
    spread `known` of *right* boards can explain (a wrong board often scatters so
    much from prompt to prompt that its own interval proves nothing). Else
    INCONCLUSIVE: more prompts are needed.

    :param alpha: false alarm rate of the whole test.
    :param known: standard error of a right board's value, from the numeric floor.
    """

    target: float
    margin: float
    alpha: float
    known: float

    def outcome(self, estimate: Estimate) -> Outcome:
        """PASS, FAIL or INCONCLUSIVE."""
        off = abs(estimate.value - self.target)
        if off + estimate.half_width(ALPHA_PASS) < self.margin:
            return Outcome.PASS
        outside = off - self.margin
        if outside > estimate.half_width(self.alpha / 2) or outside > self._room:
            return Outcome.FAIL
        return Outcome.INCONCLUSIVE

    def smallest_visible(self, estimate: Estimate) -> float:
        """Smallest distance from the target found wrong with `POWER`.

        The better of the two tests: the noncentral t for the interval, and for the
        known spread its limit plus the estimate's own scatter.
        """
        by_interval = minimum_detectable(
            estimate.error, estimate.freedom, self.alpha
        )  # one-sided at alpha / 2
        by_spread = self._room + estimate.half_width(1 - POWER)
        return self.margin + min(by_interval, by_spread)

    @property
    def _room(self) -> float:
        return normal_quantile(1 - self.alpha / 2) * self.known

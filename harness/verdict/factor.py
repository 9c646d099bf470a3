"""Distances as multiples of a floor, pooled over prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.verdict.budget import ALPHA_PASS
from harness.verdict.budget import POWER
from harness.verdict.budget import SPREAD_FREEDOM
from harness.verdict.decide import Decision
from harness.verdict.decide import digits
from harness.verdict.equivalence import normal_quantile
from harness.verdict.equivalence import t_quantile
from harness.verdict.floor import root_mean_square
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["decide_factor", "largest_by_chance"]

# Prompts nearer than this to their floor count as this near: right boards lie at
# 0.4 and above, and a prompt that is equal to the last bit says nothing about the
# others. It must not narrow the interval either.
NEAREST = 0.25


def decide_factor(
    statistics: Mapping[str, Any],
    parameters: Mapping[str, Any],
    values: np.ndarray,
    floors: np.ndarray,
    missing: np.ndarray | None = None,
    *,
    what: str,
    source: str,
) -> Decision:
    """Relative distances per prompt against `factor` times their floors.

    Pooled is the root mean square of the ratios of value and floor: a fault in a
    few prompts moves it, and no prompt makes up for another.
    FAIL: it is above the factor and above what right boards reach by chance, or one
    prompt is; the two tests halve `alpha`, the prompts divide their half
    (Bonferroni).
    PASS: the upper end of its 90 % interval is below the factor, and a missing
    adapter would have been seen. The interval is a moderated t (Smyth 2004) of its
    logarithm, own and known spread weighed by their degrees of freedom, so that one
    prompt has an interval too. Else INCONCLUSIVE.

    :param parameters: `factor`; `spread` of a right board's log ratio from prompt to
        prompt; `alpha`.
    :param values: relative distances of the board, `[K]`.
    :param floors: relative distances to hold them against, positive, `[K]`.
    :param missing: relative distances that a missing adapter would come to, `[K]`;
        None where there is no adapter in the question.
    """
    factor, spread, alpha = (parameters[k] for k in ("factor", "spread", "alpha"))
    ratios, count = values / floors, len(values)
    pooled, near = root_mean_square(ratios), np.maximum(ratios, NEAREST)
    log = math.log(root_mean_square(near))
    deviation = math.sqrt(_variance(near, spread))
    half = t_quantile(1 - ALPHA_PASS, SPREAD_FREEDOM + count - 1)
    half *= deviation / math.sqrt(count)
    limit = math.log(factor)
    room = max(limit, largest_by_chance(count, spread, alpha / 2))
    alone = max(limit, normal_quantile(1 - alpha / 2 / count) * spread)
    seen = math.exp(room + normal_quantile(POWER) * deviation / math.sqrt(count))
    seen_alone = math.exp(alone + normal_quantile(POWER) * deviation)

    size = math.exp(float(np.log(floors).mean()))  # back from ratios to distances
    value, bound, high = size * pooled, size * factor, size * math.exp(log + half)
    measurement = Measurement(
        name=what,
        value=value,
        unit="relative L2",
        limit=bound,
        limit_source=f"{factor:g} times {source} ({digits(size)})",
        low=value * math.exp(-half),
        high=high,
        smallest_visible=size * seen,
        used=high / bound,
        note=f"{count} prompts; in one of them alone a fault is seen from "
        f"{digits(size * seen_alone)}",
    )
    text = (
        f"{what} {digits(value, bound)}, limit {digits(bound, value)} "
        f"({factor:g} times {source})"
    )
    worst = int(ratios.argmax())
    where = (
        f"worst prompt {statistics['prompts'][worst]!r} {digits(values[worst])}, "
        f"{digits(ratios[worst])} times its floor{_worst_row(statistics)}"
    )
    if log > room or math.log(near[worst]) > alone:
        return Decision(
            Outcome.FAIL,
            measurement,
            f"{text}: {digits(pooled)} times the floor; {where}",
        )
    absent = math.inf if missing is None else root_mean_square(missing / floors)
    if seen >= absent:
        return Decision(
            Outcome.INCONCLUSIVE,
            measurement,
            f"{text}, but the adapter's effect is below what can be seen: missing, it "
            f"would come to {digits(size * absent)}, seen is {digits(size * seen)} and "
            f"more",
        )
    if log + half < limit:
        return Decision(Outcome.PASS, measurement, text)
    return Decision(
        Outcome.INCONCLUSIVE,
        measurement,
        f"{text}, but {count} prompt{'s' * (count > 1)} leave it between "
        f"{digits(value * math.exp(-half))} and {digits(high)}; {where}",
    )


def largest_by_chance(count: int, spread: float, alpha: float) -> float:
    """Log of a root mean square that right boards exceed with `alpha` at most.

    The ratios of right boards are taken as log-normal about 1. Chernoff's bound,
    over a grid of tilts t: mean r^2 <= min_t (log E exp(t r^2) + log(1/alpha) / K) / t.
    Ratios so large that one prompt alone is found are cut off, which makes the
    expectation finite.

    :param count: K.
    :param spread: standard deviation of a log ratio.
    """
    z = np.linspace(-8.0, normal_quantile(1 - alpha / count), 2000)
    weights = np.exp(-z * z / 2)
    squares = np.exp(2 * spread * z)
    tilts = np.geomspace(1e-3, 10.0, 100)
    top = squares[-1]  # taken out of the exponent, which would overflow
    means = np.exp(tilts[:, None] * (squares - top)) @ (weights / weights.sum())
    bounds = top + (np.log(means) + math.log(1 / alpha) / count) / tilts
    return math.log(bounds.min()) / 2


def _variance(ratios: np.ndarray, spread: float) -> float:
    """Of one prompt's part in the log of the root mean square, moderated.

    By the delta method log sqrt(mean u) scatters as u / (2 mean u), u the squares.
    """
    squares = np.square(ratios)
    count = len(squares)
    own = float(np.var(squares / squares.mean(), ddof=1)) / 4 if count > 1 else 0.0
    freedom = SPREAD_FREEDOM + count - 1
    return (SPREAD_FREEDOM * spread**2 + (count - 1) * own) / freedom


def _worst_row(statistics: Mapping[str, Any]) -> str:
    worst = statistics.get("worst")
    if worst is None:
        return ""
    return (
        f"; worst row {worst['row']} of {worst['prompt']!r}: token {worst['token']} "
        f"is {worst['observed']:.4g}, reference {worst['expected']:.4g}"
    )

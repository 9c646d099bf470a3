"""A board against the reference, limited by the reference's numeric floor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from harness.golden.scores import Scores
from harness.verdict.budget import ALPHA_PASS
from harness.verdict.budget import FLOAT32_FLOOR
from harness.verdict.budget import POWER
from harness.verdict.budget import SPREAD_FREEDOM
from harness.verdict.decide import Decision
from harness.verdict.decide import digits
from harness.verdict.decide import rule
from harness.verdict.delta import Deltas
from harness.verdict.delta import change_gap
from harness.verdict.delta import deltas
from harness.verdict.delta import distance
from harness.verdict.delta import per_prompt
from harness.verdict.delta import place
from harness.verdict.delta import relative
from harness.verdict.equivalence import normal_quantile
from harness.verdict.equivalence import t_quantile
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


if TYPE_CHECKING:
    from harness.golden.store import Reference


__all__ = [
    "NOTHING",
    "compare_deltas",
    "compare_gaps",
    "compare_logits",
    "compare_rounding",
    "decide_ratio",
]


# A delta's sum of squares that is no delta: float32 logits near 1 differ by 1e-7 or
# not at all.
NOTHING = 1e-20


def compare_logits(observed: Scores, expected: Scores, floor: Scores) -> dict[str, Any]:
    """Sums of squares per prompt: `observed` and `floor` against `expected`."""
    seen, least = distance(observed, expected), distance(floor, expected)
    prompts = expected.prompts
    row = int(relative(seen.error, seen.norm).argmax())
    gap = np.abs(observed.logits[row].astype(np.float64) - expected.logits[row])
    token = int(gap.argmax())
    return {
        "prompts": [p.name for p in prompts],
        "error": per_prompt(prompts, seen.error).tolist(),
        "norm": per_prompt(prompts, seen.norm).tolist(),
        "floor": per_prompt(prompts, least.error).tolist(),
        "worst": {
            **place(prompts, row),
            "token": token,
            "observed": float(observed.logits[row, token]),
            "expected": float(expected.logits[row, token]),
        },
    }


def compare_rounding(
    expected: Scores, observed: Scores, right: Reference
) -> dict[str, Any]:
    """Sums of squares per prompt of two states, beside the numeric floor."""
    floor = distance(right.device, right.exact)
    sums = compare_logits(observed, expected, expected)
    return sums | {"floor": per_prompt(floor.prompts, floor.error).tolist()}


def compare_deltas(
    observed: Scores, observed_base: Scores, right: Reference, right_base: Reference
) -> dict[str, Any]:
    """Products of deltas per prompt, of the board and of the device reference."""
    seen = deltas(observed, observed_base, right.exact, right_base.exact)
    least = deltas(right.device, right_base.device, right.exact, right_base.exact)
    prompts = right.exact.prompts
    return {
        "prompts": [p.name for p in prompts],
        **_sums("", seen),
        **_sums("floor_", least),
    }


def compare_gaps(
    prefill: Scores, decode: Scores, base_prefill: Scores, base_decode: Scores
) -> dict[str, Any]:
    """Squared gaps per prompt of the deltas and of the base, prefill to decode."""
    prompts = base_prefill.prompts
    in_base = distance(base_decode, base_prefill)
    in_delta = change_gap((decode, base_decode), (prefill, base_prefill))
    return {
        "prompts": [p.name for p in prompts],
        "error": per_prompt(prompts, in_delta).tolist(),
        "norm": per_prompt(prompts, in_base.norm).tolist(),
        "floor": per_prompt(prompts, in_base.error).tolist(),
    }


def decide_ratio(
    statistics: Mapping[str, Any],
    parameters: Mapping[str, Any],
    values: np.ndarray,
    floors: np.ndarray,
    *,
    what: str,
    source: str,
    ceiling: float = math.inf,
) -> Decision:
    """Relative distances per prompt against `factor` times a floor.

    The log ratios of value and floor are averaged over prompts.
    PASS: the upper end of their 90 % interval is below the factor; the interval is
    a moderated t (Smyth 2004), own spread and SPREAD weighed by their degrees of
    freedom, so that one prompt has an interval too.
    FAIL: the mean, or any one prompt, is above the factor and above what *right*
    boards reach by chance, z SPREAD / sqrt(K) and z SPREAD; the two tests halve
    `alpha`, the prompts divide their half (Bonferroni). Else INCONCLUSIVE.

    :param values: relative distances of the board, `[K]`.
    :param floors: relative distances to hold them against, positive, `[K]`.
    :param ceiling: a value that a fault reaches anyhow (1 for an adapter that is
        missing): where even that is below the limit, nothing can be shown.
    """
    factor, spread, alpha = (parameters[k] for k in ("factor", "spread", "alpha"))
    count = len(values)
    # 1e-3 of the floor is as good as zero and has a logarithm.
    logs = np.log(np.maximum(values / floors, 1e-3))
    mean = float(logs.mean())
    own = float(logs.var(ddof=1)) if count > 1 else 0.0
    freedom = SPREAD_FREEDOM + count - 1
    moderated = (SPREAD_FREEDOM * spread**2 + (count - 1) * own) / freedom
    half = t_quantile(1 - ALPHA_PASS, freedom) * math.sqrt(moderated / count)
    limit = math.log(factor)
    room = max(limit, normal_quantile(1 - alpha / 2) * spread / math.sqrt(count))
    alone = max(limit, normal_quantile(1 - alpha / 2 / count) * spread)
    seen = room + normal_quantile(POWER) * math.sqrt(moderated / count)

    size = math.exp(float(np.log(floors).mean()))  # back from ratios to distances
    value, bound, visible = (size * math.exp(x) for x in (mean, limit, seen))
    worst = int(logs.argmax())
    measurement = Measurement(
        name=what,
        value=value,
        unit="relative L2",
        limit=bound,
        limit_source=f"{factor:g} times {source} ({digits(size)})",
        low=size * math.exp(mean - half),
        high=size * math.exp(mean + half),
        smallest_visible=visible,
        used=math.exp(mean + half - limit),
        note=f"{count} prompts, log ratios scatter by {math.sqrt(own):.2f}",
    )
    text = (
        f"{what} {digits(value, bound)}, limit {digits(bound, value)} "
        f"({factor:g} times {source})"
    )
    where = (
        f"worst prompt {statistics['prompts'][worst]!r} {digits(values[worst])}, "
        f"{digits(math.exp(logs[worst]))} times its floor{_worst_row(statistics)}"
    )
    if visible >= ceiling:
        return Decision(
            Outcome.INCONCLUSIVE,
            measurement,
            f"the golden's effect is below what can be seen: a missing adapter would "
            f"come to {ceiling:g}, seen is {digits(visible)} and more",
        )
    if mean > room or logs[worst] > alone:
        return Decision(
            Outcome.FAIL,
            measurement,
            f"{text}: {digits(math.exp(mean))} times the floor; {where}",
        )
    if mean + half < limit:
        return Decision(Outcome.PASS, measurement, text)
    return Decision(
        Outcome.INCONCLUSIVE,
        measurement,
        f"{text}, but {count} prompt{'s' * (count > 1)} leave it between "
        f"{digits(math.exp(mean - half) * size)} and "
        f"{digits(math.exp(mean + half) * size)}; {where}",
    )


@rule("matches")
def decide_matches(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Logits against the reference's, limited by the numeric floor."""
    values, floors = _error_and_floor(statistics, FLOAT32_FLOOR)
    return decide_ratio(
        statistics,
        parameters,
        values,
        floors,
        what="distance from the reference",
        source="the golden's numeric floor",
    )


@rule("close")
def decide_close(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Two states of one board that may round differently, and no more than that."""
    values, floors = _error_and_floor(statistics, FLOAT32_FLOOR)
    return decide_ratio(
        statistics,
        parameters,
        values,
        floors,
        what="distance of two states",
        source="the golden's numeric floor",
    )


@rule("gap")
def decide_gap(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Gap of prefill and decode in the delta, against that in the base."""
    values, floors = _error_and_floor(statistics, parameters["least"])
    return decide_ratio(
        statistics,
        parameters,
        values,
        floors,
        what="gap of prefill and decode in the delta",
        source="the gap in the base",
    )


@rule("delta")
def decide_delta(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Direction residual of the delta, against that of the device reference.

    ||d - s d*|| / ||d*|| with the pooled scale s kept within the margin theta: left
    free, a missing adapter (d = 0) would have s = 0 and no residual at all.
    """
    theta = parameters["theta"]
    effects = np.asarray(statistics["effect"])
    if math.fsum(effects) <= NOTHING:
        return no_effect("direction residual", "relative L2")
    return decide_ratio(
        statistics,
        parameters,
        _residuals(statistics, "", theta),
        np.hypot(_residuals(statistics, "floor_", theta), FLOAT32_FLOOR),
        what="direction residual of the delta",
        source="the residual of the golden's device arithmetic",
        ceiling=1.0,
    )


def no_effect(what: str, unit: str) -> Decision:
    """The decision where the golden's adapter changes nothing."""
    measurement = Measurement(what, None, unit, None, "the golden's own effect is zero")
    return Decision(
        Outcome.INCONCLUSIVE,
        measurement,
        "the golden's effect is below what can be seen: its delta is zero",
    )


def _residuals(statistics: Mapping[str, Any], prefix: str, theta: float) -> np.ndarray:
    """||e - (s - 1) d*|| / ||d*|| per prompt, `[K]`."""
    error, cross, effects = (
        np.asarray(statistics[prefix + "error"]),
        np.asarray(statistics[prefix + "cross"]),
        np.asarray(statistics["effect"]),
    )
    off = min(max(math.fsum(cross) / math.fsum(effects), -theta), theta)
    squared = error - 2 * off * cross + off * off * effects
    return relative(np.maximum(squared, 0.0), effects)


def _error_and_floor(
    statistics: Mapping[str, Any], least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Relative distances of board and floor; the floor `least` at the least."""
    norm = np.asarray(statistics["norm"])
    floors = relative(np.asarray(statistics["floor"]), norm)
    return relative(np.asarray(statistics["error"]), norm), np.hypot(floors, least)


def _sums(prefix: str, products: Deltas) -> dict[str, list[float]]:
    sums = {
        prefix + "error": per_prompt(products.prompts, products.error).tolist(),
        prefix + "cross": per_prompt(products.prompts, products.cross).tolist(),
    }
    if not prefix:
        sums["effect"] = per_prompt(products.prompts, products.effect).tolist()
    return sums


def _worst_row(statistics: Mapping[str, Any]) -> str:
    worst = statistics.get("worst")
    if worst is None:
        return ""
    return (
        f"; worst row {worst['row']} of {worst['prompt']!r}: token {worst['token']} "
        f"is {worst['observed']:.4g}, reference {worst['expected']:.4g}"
    )

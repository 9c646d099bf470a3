"""A board against the reference, limited by the reference's numeric floor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from harness.golden.scores import Scores
from harness.verdict.budget import FLOAT32_FLOOR
from harness.verdict.decide import Decision
from harness.verdict.decide import rule
from harness.verdict.delta import Deltas
from harness.verdict.delta import change_gap
from harness.verdict.delta import deltas
from harness.verdict.delta import distance
from harness.verdict.delta import per_prompt
from harness.verdict.delta import place
from harness.verdict.delta import relative
from harness.verdict.factor import decide_factor
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
    "no_effect",
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
    expected: Scores, observed: Scores, right: Reference, base: Scores | None
) -> dict[str, Any]:
    """Sums of squares per prompt of two states, beside the numeric floor.

    With `base` also the adapter's effect, the distance of `expected` from it.
    """
    floor = distance(right.device, right.exact)
    prompts = expected.prompts
    sums = compare_logits(observed, expected, expected)
    sums["floor"] = per_prompt(prompts, floor.error).tolist()
    if base is not None:
        effect = distance(expected, base)
        sums["effect"] = per_prompt(prompts, effect.error).tolist()
    return sums


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
    """Squared gaps per prompt of the deltas and of the base, prefill to decode.

    The floor is the base's gap over all prompts together: on which of them two
    graphs agree to the last bit in the base is luck.
    """
    prompts = base_prefill.prompts
    in_base = distance(base_decode, base_prefill)
    in_delta = change_gap((decode, base_decode), (prefill, base_prefill))
    effect = distance(prefill, base_prefill)
    norm = per_prompt(prompts, in_base.norm)
    share = math.fsum(in_base.error) / max(math.fsum(in_base.norm), NOTHING)
    return {
        "prompts": [p.name for p in prompts],
        "error": per_prompt(prompts, in_delta).tolist(),
        "norm": norm.tolist(),
        "floor": (share * norm).tolist(),
        "effect": per_prompt(prompts, effect.error).tolist(),
    }


# What is measured and what it is held against, for kinds of one form.
DISTANCES = {
    "matches": ("distance from the reference", "the golden's numeric floor"),
    "close": ("distance of two states", "the golden's numeric floor"),
    "gap": ("gap of prefill and decode in the delta", "the gap in the base"),
}


def _register(kind: str, what: str, source: str) -> None:
    @rule(kind)
    def decide_distance(
        statistics: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> Decision:
        """Distances against their floors, the floors `least` at the least.

        Where the statistics hold the adapter's `effect`, missing it must be seen.
        """
        error, norm, floor = (
            np.asarray(statistics[k]) for k in ("error", "norm", "floor")
        )
        effect = statistics.get("effect")
        return decide_factor(
            statistics,
            parameters,
            relative(error, norm),
            np.hypot(relative(floor, norm), parameters["least"]),
            None if effect is None else relative(np.asarray(effect), norm),
            what=what,
            source=source,
        )


for _kind, _words in DISTANCES.items():
    _register(_kind, *_words)


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
    return decide_factor(
        statistics,
        parameters,
        _residuals(statistics, "", theta),
        np.hypot(_residuals(statistics, "floor_", theta), FLOAT32_FLOOR),
        np.where(effects > 0, 1.0 - theta, 0.0),
        what="direction residual of the delta",
        source="the residual of the golden's device arithmetic",
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


def _sums(prefix: str, products: Deltas) -> dict[str, list[float]]:
    sums = {
        prefix + "error": per_prompt(products.prompts, products.error).tolist(),
        prefix + "cross": per_prompt(products.prompts, products.cross).tolist(),
    }
    if not prefix:
        sums["effect"] = per_prompt(products.prompts, products.effect).tolist()
    return sums

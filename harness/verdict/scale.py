"""The adapter's scale and its gain on a task: equivalence tests over prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from harness.golden.scores import Scores
from harness.verdict.budget import ALPHA_PASS
from harness.verdict.decide import Decision
from harness.verdict.decide import digits
from harness.verdict.decide import rule
from harness.verdict.delta import aligned
from harness.verdict.delta import log_likelihood
from harness.verdict.delta import per_prompt
from harness.verdict.equivalence import Estimate
from harness.verdict.equivalence import Window
from harness.verdict.equivalence import prompts_needed
from harness.verdict.equivalence import ratio
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome
from harness.verdict.reference import NOTHING
from harness.verdict.reference import no_effect


if TYPE_CHECKING:
    from harness.golden.store import Reference


__all__ = ["compare_gains"]

# A direction residual above this leaves a scale that describes less than three
# quarters of the delta: a number without a meaning.
MEANINGLESS = 0.5

# The net behind an adapter is not linear, so s is no scale but its projection: 1 for
# 1, and near it steeper than the scale. Slope of s between 0.98 and 1.02 times alpha,
# by PEFT in float32 on all prompts: 1.07 r16-rslora, 1.09 r8-all, 1.22 patterns,
# 1.26 r8-fp32, 1.31 r32-half, 1.41 r4-qv. Nothing is divided by it: other models have
# other slopes, and above 1 the error that s shows is never less than the scale's own.
SLOPE = "s is a projection, on the fixture 1.07-1.41 times as far off as the scale"


def compare_gains(
    observed: Scores, observed_base: Scores, right: Reference, right_base: Reference
) -> dict[str, Any]:
    """Gains in log-likelihood per prompt, nat, summed over its tokens.

    The gain of an adapter is logp(token | adapter) - logp(token | base).
    """
    prompts = right.exact.prompts
    aligned(observed, observed_base, right.exact, right_base.exact)

    def gain(adapter: Scores, base: Scores) -> list[float]:
        rows = log_likelihood(adapter) - log_likelihood(base)
        return per_prompt(prompts, rows).tolist()  # type: ignore[no-any-return]

    return {
        "prompts": [p.name for p in prompts],
        "tokens": list(prompts.lengths),
        "board": gain(observed, observed_base),
        "reference": gain(right.exact, right_base.exact),
        "device": gain(right.device, right_base.device),
    }


@rule("scale")
def decide_scale(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Pooled scale s of the delta (B.7.1) within theta of the expected one.

    :param parameters: `expected`; `theta`.
    """
    expected, theta = parameters["expected"], parameters["theta"]
    effects, cross = np.asarray(statistics["effect"]), np.asarray(statistics["cross"])
    if math.fsum(effects) <= NOTHING:
        return no_effect("scale of the delta", "")
    off = ratio(cross - (expected - 1) * effects, effects)
    estimate = Estimate(expected + off.value, off.error, off.prompts)
    residual = _residual(statistics)
    window = Window(
        expected,
        theta,
        parameters["alpha"],
        parameters["factor"] * _known(statistics["floor_cross"], effects),
    )
    each = 1 + cross / np.maximum(effects, NOTHING)
    return _decide(
        window,
        estimate,
        name="scale of the delta",
        unit="",
        source=f"{expected:g} +- {theta:g}, product margin",
        note=f"direction residual {residual:.3g}; {SLOPE}",
        worst=_worst(statistics["prompts"], each, expected),
        blind=lambda _: (
            "the delta points elsewhere, so its scale means nothing"
            if residual > MEANINGLESS
            else ""
        ),
    )


@rule("gain")
def decide_gain(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Gain in log-likelihood a token, board minus reference, paired by prompt."""
    tokens = np.asarray(statistics["tokens"], np.float64)
    right = np.asarray(statistics["reference"])
    off = np.asarray(statistics["board"]) - right
    margin = parameters["margin"]
    window = Window(
        0.0,
        margin,
        parameters["alpha"],
        parameters["factor"] * _known(np.asarray(statistics["device"]) - right, tokens),
    )
    reference = float(right.sum() / tokens.sum())
    return _decide(
        window,
        ratio(off, tokens),
        name="gain in log-likelihood, board minus reference",
        unit="nat/token",
        source=f"+- {margin:g}: {math.expm1(margin):.1%} of perplexity",
        note=f"the reference gains {reference:.3g} nat/token",
        worst=_worst(statistics["prompts"], off / tokens, 0.0),
        blind=lambda visible: (
            f"a missing adapter would change the gain by {digits(abs(reference))}, "
            f"less than what can be seen"
            if abs(reference) < visible
            else ""
        ),
    )


def _decide(
    window: Window,
    estimate: Estimate,
    *,
    name: str,
    unit: str,
    source: str,
    note: str,
    worst: str,
    blind: Callable[[float], str],
) -> Decision:
    """Apply the equivalence test and put it into words.

    :param blind: why a PASS would show nothing, given the smallest visible fault;
        empty when it does show something.
    """
    value, half = estimate.value, estimate.half_width(ALPHA_PASS)
    bounded = math.isfinite(half)
    limit = window.target + math.copysign(window.margin, value - window.target)
    visible = window.smallest_visible(estimate)
    measurement = Measurement(
        name=name,
        value=value,
        unit=unit,
        limit=limit,
        limit_source=source,
        low=value - half if bounded else None,
        high=value + half if bounded else None,
        smallest_visible=visible if math.isfinite(visible) else None,
        used=(abs(value - window.target) + half) / window.margin if bounded else None,
        note=note,
    )
    text = (
        f"{name} {digits(value, limit)} +- {digits(half)}, limit {digits(limit, value)}"
        f" ({source}); {note}"
    )
    outcome = window.outcome(estimate)
    if outcome is Outcome.FAIL:
        return Decision(outcome, measurement, f"{text}; farthest prompt {worst}")
    if outcome is Outcome.INCONCLUSIVE:
        text += f"; {_more(estimate, window.margin)}"
    elif why := blind(visible):
        return Decision(Outcome.INCONCLUSIVE, measurement, f"{text}; {why}")
    return Decision(outcome, measurement, text)


def _more(estimate: Estimate, margin: float) -> str:
    """What it would take to decide."""
    if not math.isfinite(estimate.error):
        return "one prompt alone has no standard error, give two or more with an effect"
    needed = prompts_needed(estimate, margin)
    if needed <= estimate.prompts:
        return "too near the margin to decide"
    return f"{estimate.prompts} prompts do not decide, about {needed} would"


def _known(noise: Any, weights: np.ndarray) -> float:
    """Standard error of a right board's ratio: the floor's, about zero."""
    return math.sqrt(float(np.sum(np.square(noise)))) / math.fsum(weights)


def _residual(statistics: Mapping[str, Any]) -> float:
    """||d - s d*|| / ||d*||, pooled, s free."""
    error, cross, effect = (
        math.fsum(statistics[k]) for k in ("error", "cross", "effect")
    )
    return math.sqrt(max(error - cross * cross / effect, 0.0) / effect)


def _worst(prompts: list[str], values: np.ndarray, target: float) -> str:
    k = int(np.abs(values - target).argmax())
    return f"{prompts[k]!r} {digits(float(values[k]))}"

"""The registry of rules: from sufficient statistics to an outcome.

A rule is a pure function of two JSON objects, so that every verdict can be derived
again from the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["Decision", "decide", "digits", "kinds", "rule"]


class Decision(NamedTuple):
    """What a rule comes to."""

    outcome: Outcome
    measurement: Measurement
    reason: str


Rule = Callable[[Mapping[str, Any], Mapping[str, Any]], Decision]
_RULES: dict[str, Rule] = {}


def rule(kind: str) -> Callable[[Rule], Rule]:
    """Register a rule under `kind`."""

    def register(function: Rule) -> Rule:
        if kind in _RULES:
            raise ValueError(f"two rules of kind {kind!r}")
        _RULES[kind] = function
        return function

    return register


def kinds() -> frozenset[str]:
    """All registered kinds."""
    return frozenset(_RULES)


def decide(
    kind: str, statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Derive outcome, measurement and reason; pure.

    Logits that are not numbers are wrong whatever was to be compared.

    :raises ValueError: no such rule, or the statistics are not its own.
    """
    if kind not in _RULES:
        raise ValueError(f"no rule of kind {kind!r}")
    try:
        broken = statistics.get("nonfinite")
        if broken:
            return _nonfinite(broken)
        return _RULES[kind](statistics, parameters)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"not the statistics of {kind!r}: {error!r}") from error


def digits(value: float, other: float | None = None) -> str:
    """A number in three digits, more where it must differ from `other` visibly."""
    if not math.isfinite(value):
        return "unbounded"
    text = f"{value:.3g}"
    for width in range(4, 18):
        if other is None or value == other or text != f"{other:.{width - 1}g}":
            break
        text = f"{value:.{width}g}"
    return text


def _nonfinite(broken: Mapping[str, Any]) -> Decision:
    count = int(broken["count"])
    measurement = Measurement(
        name="logits that are NaN or infinite",
        value=count,
        unit="logits",
        limit=0,
        limit_source="logits are numbers",
        smallest_visible=1,
    )
    return Decision(
        Outcome.FAIL,
        measurement,
        f"{count} logits are NaN or infinite, first in {broken['whose']}, "
        f"prompt {broken['prompt']!r} row {broken['row']} token {broken['token']}",
    )

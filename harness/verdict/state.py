"""A board against itself: after other histories, or on equivalent adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.golden.rows import unequal
from harness.golden.scores import Scores
from harness.verdict.decide import Decision
from harness.verdict.decide import digits
from harness.verdict.decide import rule
from harness.verdict.delta import aligned
from harness.verdict.delta import distance
from harness.verdict.delta import nonfinite
from harness.verdict.delta import per_prompt
from harness.verdict.delta import place
from harness.verdict.delta import relative
from harness.verdict.floor import FloorLaw
from harness.verdict.floor import root_mean_square
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["compare_states"]

UNIT = "relative L2"


def compare_states(expected: Scores, observed: Scores) -> dict[str, Any]:
    """Statistics of two scorings of one board.

    Equality is of values, so 0.0 and -0.0 are equal: their signs depend on which
    of two zero products came last and change no later result.

    :raises ValueError: other prompts or another vocabulary.
    """
    aligned(expected, observed)
    broken = nonfinite(expected=expected, observed=observed)
    if broken:
        return {"nonfinite": broken}
    prompts = expected.prompts
    differing = unequal(expected.logits, observed.logits)
    statistics: dict[str, Any] = {
        "prompts": [p.name for p in prompts],
        "rows": prompts.rows,
        "differing": int(differing.sum()),
        "digest": expected.digest,
    }
    if not differing.any():
        zeros = [0.0] * len(prompts)
        return {**statistics, "error": zeros, "norm": [1.0] * len(prompts)}
    between = distance(observed, expected)
    row = int(differing.argmax())
    a = expected.logits[row].astype(np.float64)
    b = observed.logits[row].astype(np.float64)
    token = int(np.abs(a - b).argmax())
    return {
        **statistics,
        "observed_digest": observed.digest,
        "error": per_prompt(prompts, between.error).tolist(),
        "norm": per_prompt(prompts, between.norm).tolist(),
        "first": {
            **place(prompts, row),
            "token": token,
            "expected": float(a[token]),
            "observed": float(b[token]),
        },
    }


@rule("same")
def decide_same(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Equal value for value, or no further apart than the board's own repeats."""
    if parameters["floor"] is None:
        return _same_bits(statistics)
    law, alpha = FloorLaw(**parameters["floor"]), parameters["alpha"]
    distances = _distances(statistics)
    value, limit = root_mean_square(distances), law.limit(alpha)
    measurement = Measurement(
        name="distance of two states",
        value=value,
        unit=UNIT,
        limit=limit,
        limit_source=f"repeat floor of this board, false alarms {alpha:.1e}",
        smallest_visible=law.smallest_visible(alpha),
        used=value / limit if limit else float(value > 0),
        note=f"largest of the repeats {law.largest:.3g}",
    )
    text = f"relative L2 {digits(value, limit)}, limit {digits(limit, value)}"
    if value <= limit:
        return Decision(Outcome.PASS, measurement, f"{text} (repeat floor)")
    worst = int(np.argmax(distances))
    return Decision(
        Outcome.FAIL,
        measurement,
        f"{text} (repeat floor): {digits(value / limit) if limit else 'far'} times "
        f"as far as repeats lie apart; worst prompt {statistics['prompts'][worst]!r} "
        f"{distances[worst]:.3g}; {_first(statistics)}",
    )


def _same_bits(statistics: Mapping[str, Any]) -> Decision:
    differing, rows = statistics["differing"], statistics["rows"]
    value = root_mean_square(_distances(statistics))
    measurement = Measurement(
        name="rows that differ",
        value=differing,
        unit="rows",
        limit=0,
        limit_source="this board repeats exactly",
        smallest_visible=1,
        used=float(differing > 0),
        note=f"of {rows} rows; relative L2 {value:.3g}",
    )
    if not differing:
        return Decision(Outcome.PASS, measurement, f"all {rows} rows are equal")
    return Decision(
        Outcome.FAIL,
        measurement,
        f"{differing} of {rows} rows differ on a board that repeats exactly, relative "
        f"L2 {value:.3g}; {_first(statistics)}",
    )


@rule("differs")
def decide_differs(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Further apart than the board's own repeats.

    Where nothing is seen and the reference's own effect is below what can be seen,
    nothing was shown either way: INCONCLUSIVE.
    """
    law = FloorLaw(**parameters["floor"]) if parameters["floor"] else None
    alpha, effect = parameters["alpha"], parameters["effect"]
    limit = law.limit(alpha) if law else 0.0
    visible = law.smallest_visible(alpha) if law else 0.0
    value = root_mean_square(_distances(statistics))
    measurement = Measurement(
        name="distance from the other state",
        value=value,
        unit=UNIT,
        limit=limit,
        limit_source="repeat floor",
        smallest_visible=visible,
        used=limit / value if value else 1.0,
    )
    text = f"relative L2 {digits(value, limit)}, at least {digits(limit, value)}"
    if statistics["differing"] and value > limit:
        return Decision(Outcome.PASS, measurement, text)
    if effect is not None and effect <= visible:
        return Decision(
            Outcome.INCONCLUSIVE,
            measurement,
            f"the reference's own effect {digits(effect)} is below what can be seen "
            f"({digits(visible)}); {text}",
        )
    rows = statistics["rows"] - statistics["differing"]
    return Decision(
        Outcome.FAIL,
        measurement,
        f"no different: {text}; {rows} of {statistics['rows']} rows are equal",
    )


def _distances(statistics: Mapping[str, Any]) -> np.ndarray:
    return relative(np.asarray(statistics["error"]), np.asarray(statistics["norm"]))


def _first(statistics: Mapping[str, Any]) -> str:
    first = statistics.get("first")
    if first is None:
        return "no row differs"
    return (
        f"first in prompt {first['prompt']!r} row {first['row']}: token "
        f"{first['token']} is {first['observed']:.6g}, was {first['expected']:.6g}"
    )

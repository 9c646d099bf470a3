"""Exact facts: equal, at most, refused, lives; and negative controls found wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from harness.verdict.decide import Decision
from harness.verdict.decide import decide
from harness.verdict.decide import digits
from harness.verdict.decide import rule
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["REFUSALS", "finite", "shown"]

# Errors by which a platform refuses and lives, by their stable codes.
REFUSALS = frozenset({"runtime-refused", "conversion-refused"})
LONGEST = 120


def shown(value: object) -> str:
    """A value in one short line."""
    text = "none" if value in ([], {}) else repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


@rule("equal")
def decide_equal(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """A fact against the expected one."""
    observed, expected = statistics["observed"], statistics["expected"]
    equal = observed == expected
    number = isinstance(observed, int | float) and not isinstance(observed, bool)
    whole = number and isinstance(observed, int)
    measurement = Measurement(
        name="fact",
        value=observed if number else shown(observed),
        unit=parameters["unit"],
        limit=expected if number else shown(expected),
        limit_source="the expected fact",
        smallest_visible=1 if whole else None,
        used=float(not equal),
        note="any difference is seen",
    )
    if equal:
        return Decision(Outcome.PASS, measurement, f"is {shown(observed)}")
    return Decision(
        Outcome.FAIL,
        measurement,
        f"is {shown(observed)}, expected {shown(expected)}"
        + (f" {parameters['unit']}" if parameters["unit"] else ""),
    )


@rule("at most")
def decide_at_most(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """A number against an upper bound; no number is no pass."""
    value, limit = statistics["value"], parameters["limit"]
    unit = parameters["unit"]
    measurement = Measurement(
        name="value",
        value=value,
        unit=unit,
        limit=limit,
        limit_source=parameters["source"],
        smallest_visible=limit,
        used=value / limit if value is not None and limit > 0 else None,
        note="any excess is seen",
    )
    if value is None:
        return Decision(Outcome.FAIL, measurement, "is no number")
    text = f"{digits(value, limit)} {unit}, limit {digits(limit, value)}".replace(
        " ,", ","
    )
    source = f" ({parameters['source']})" if parameters["source"] else ""
    outcome = Outcome.PASS if value <= limit else Outcome.FAIL
    return Decision(outcome, measurement, text + source)


@rule("note")
def decide_note(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Something seen that is neither right nor wrong: it is said, not judged."""
    text = str(statistics["text"])
    measurement = Measurement(
        name="seen",
        value=text,
        unit="",
        limit="",
        limit_source="not documented, so not judged",
        note="stated, not judged",
    )
    return Decision(Outcome.PASS, measurement, text)


@rule("refused")
def decide_refused(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Refused in time, by a platform that lives.

    A message that does not say what is wrong is noted, and no fault of the check.
    """
    said, says = str(statistics["text"]), str(parameters["says"])
    refused = statistics["raised"] in REFUSALS
    silent = refused and says.casefold() not in said.casefold()
    return _ended(
        statistics,
        parameters,
        what="refusal",
        right=REFUSALS,
        note="an acceptance or a death is seen always"
        + (f"; the message does not mention {says!r}" if silent else ""),
    )


@rule("lives")
def decide_lives(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Accepted or refused in time, by a platform that lives."""
    return _ended(
        statistics,
        parameters,
        what="answer",
        right=REFUSALS | {None},
        note="a death or a hang is seen always",
    )


def _ended(
    statistics: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    what: str,
    right: AbstractSet[str | None],
    note: str,
) -> Decision:
    """An attempt ended as it should, by the codes in `right`, and in time."""
    code, seconds = statistics["raised"], statistics["seconds"]
    within = parameters["within"]
    measurement = Measurement(
        name=f"time to the {what}",
        value=seconds,
        unit="s",
        limit=within,
        limit_source=f"bounded time to the {what}",
        smallest_visible=within,
        used=seconds / within,
        note=note,
    )
    ended = "accepted" if code is None else "refused" if code in REFUSALS else str(code)
    said = f": {statistics['text']}" if statistics["text"] else ""
    text = f"{ended} after {digits(seconds, within)} s"
    if code not in right:
        return Decision(Outcome.FAIL, measurement, f"{text}, no {what}{said}")
    if seconds > within:
        text = f"{text}, limit {digits(within, seconds)} s"
        return Decision(Outcome.FAIL, measurement, text + said)
    return Decision(Outcome.PASS, measurement, text + said)


@rule("control")
def decide_control(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """A fault put in on purpose: right when one of its judgements is FAIL.

    Where none is and one is undecided, the fault may or may not have been found:
    no such adapter would be let through, but nothing was shown.
    The inner judgements are decided again here, not believed.
    """
    inner = statistics["inner"]
    found = [
        (j["name"], d)
        for j in inner
        for d in [decide(j["kind"], j["statistics"], j["parameters"])]
    ]
    wrong = [(name, d) for name, d in found if d.outcome is Outcome.FAIL]
    if wrong:
        name, decision = wrong[0]
        measurement = Measurement(
            name=f"control: {decision.measurement.name}",
            value=decision.measurement.value,
            unit=decision.measurement.unit,
            limit=decision.measurement.limit,
            limit_source=decision.measurement.limit_source,
            smallest_visible=decision.measurement.smallest_visible,
            note="wrong on purpose, found wrong",
        )
        return Decision(
            Outcome.PASS, measurement, f"found wrong by {name}: {decision.reason}"
        )
    measurement = Measurement(
        name="control",
        value="not found wrong",
        unit="",
        limit="found wrong",
        limit_source="a fault put in on purpose",
    )
    if not found:
        return Decision(Outcome.FAIL, measurement, "nothing was judged")
    undecided = [f for f in found if f[1].outcome is Outcome.INCONCLUSIVE]
    name, decision = (undecided or found)[-1]
    return Decision(
        decision.outcome if undecided else Outcome.FAIL,
        measurement,
        f"not found wrong: {name} came to {decision.outcome}: {decision.reason}",
    )


def finite(value: float) -> float | None:
    """The number as JSON can hold it, None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None

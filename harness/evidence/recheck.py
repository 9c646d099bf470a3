"""Every judgement of a run decided again, from what was recorded of it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evidence.records import Check
from harness.evidence.records import Judged
from harness.evidence.records import Planned
from harness.evidence.records import Record
from harness.evidence.records import Status
from harness.evidence.release import CONTROL
from harness.verdict.decide import decide
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["rederive"]


def _numbers(measurement: Measurement) -> tuple[object, ...]:
    m = measurement
    return m.value, m.limit, m.low, m.high, m.smallest_visible, m.used


def rederive(records: Sequence[Record]) -> list[str]:
    """Decide every judgement again; what came to something else, one line each.

    Outcomes and numbers count; the words of a reason may be another version's.
    """
    problems = []
    worst: dict[tuple[str, int], set[Outcome]] = {}
    for record in records:
        if not isinstance(record, Judged):
            continue
        judgement = record.judgement
        if judgement.kind != CONTROL or judgement.outcome is Outcome.PASS:
            key = (record.nodeid, record.attempt)
            worst.setdefault(key, set()).add(judgement.outcome)
        where = f"{record.nodeid}: {judgement.name}"
        try:
            again = decide(judgement.kind, judgement.statistics, judgement.parameters)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        if again.outcome is not judgement.outcome:
            problems.append(
                f"{where}: recorded {judgement.outcome}, derived {again.outcome}"
            )
        elif _numbers(again.measurement) != _numbers(judgement.measurement):
            problems.append(f"{where}: the measurement was changed")
    planned = {record.nodeid for record in records if isinstance(record, Planned)}
    for record in records:
        if not isinstance(record, Check):
            continue
        if record.nodeid not in planned:
            problems.append(f"{record.nodeid}: ran, but was never planned")
        outcomes = worst.get((record.nodeid, record.attempt), set())
        if record.status is Status.PASS and outcomes != {Outcome.PASS}:
            problems.append(f"{record.nodeid}: passed without a passing judgement")
        if Outcome.FAIL in outcomes and record.status is not Status.FAIL:
            problems.append(f"{record.nodeid}: {record.status} over a failed judgement")
    return problems

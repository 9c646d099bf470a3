"""From records to the release verdict; pure, so that it can be derived again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from harness.evidence.records import Check
from harness.evidence.records import Deselected
from harness.evidence.records import Judged
from harness.evidence.records import Planned
from harness.evidence.records import Record
from harness.evidence.records import Status
from harness.verdict.decide import decide
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["Release", "derive", "last_attempts", "rederive", "verdict_of"]

CONTROL = "control"

# Exit statuses; 2 to 5 are pytest's own.
GO, NO_GO, INCONCLUSIVE, INVALID, INFRASTRUCTURE = 0, 1, 10, 11, 12


@dataclass(frozen=True)
class Release:
    """The verdict on a run, a board or an adapter.

    :param verdict: GO, NO-GO, INCONCLUSIVE or INVALID.
    :param exit_status: 0 GO, 1 NO-GO, 10 INCONCLUSIVE, 11 INVALID, 12 checks that
        did not run.
    :param reason: the one reason, a sentence.
    :param planned: checks that were to run.
    :param executed: checks that ended, whatever the outcome, SKIP among them.
    :param missing: node ids of those that did not run.
    """

    verdict: str
    exit_status: int
    reason: str
    planned: int
    executed: int
    missing: tuple[str, ...]


def last_attempts(records: Iterable[Record]) -> dict[str, Check]:
    """The attempt that counts of every check that ended, by node id."""
    last: dict[str, Check] = {}
    for record in records:
        if isinstance(record, Check):
            known = last.get(record.nodeid)
            if known is None or record.attempt >= known.attempt:
                last[record.nodeid] = record
    return last


def derive(records: Sequence[Record]) -> Release:
    """The verdict of a whole run."""
    return verdict_of(records, lambda _: True)


def verdict_of(records: Sequence[Record], about: Callable[[Planned], bool]) -> Release:
    """The verdict on the part of a run that `about` picks.

    In this order: any FAIL is NO-GO, even beside checks that did not run; a control
    that was not found wrong makes the run INVALID; what did not run, or ran into
    trouble of the lab, is no GO (status 12); neither is what could not be decided,
    nor a part of the checks (status 10); a board without a control is INVALID.

    :param about: whether a planned check belongs to the part.
    """
    planned = {r.nodeid: r for r in records if isinstance(r, Planned) and about(r)}
    ended = {n: c for n, c in last_attempts(records).items() if n in planned}
    boards = {p.board for p in planned.values()}
    missing = tuple(
        n for n in planned if n not in ended or ended[n].status is Status.MISS
    )
    counts = Counter(check.status for check in ended.values())

    def release(verdict: str, status: int, reason: str) -> Release:
        return Release(
            verdict, status, reason, len(planned), len(planned) - len(missing), missing
        )

    failed = [c for c in ended.values() if c.status is Status.FAIL]
    if failed:
        first = min(failed, key=lambda check: check.requirements)
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return release(
            "NO-GO",
            NO_GO,
            f"{' '.join(first.requirements)} failed on {first.board}"
            f"{f' with {first.adapter}' if first.adapter else ''}: "
            f"{first.reason}{more}",
        )
    missed = [
        r
        for r in records
        if isinstance(r, Judged)
        and r.nodeid in ended
        and r.attempt == ended[r.nodeid].attempt
        and r.judgement.kind == CONTROL
        and r.judgement.outcome is not Outcome.PASS
    ]
    if missed:
        first_missed = missed[0]
        return release(
            "INVALID",
            INVALID,
            f"{first_missed.judgement.name}, wrong on purpose, was not found wrong on "
            f"{first_missed.board}: the run could not have seen such a fault",
        )
    if not planned or len(missing) == len(planned):
        why = _why(ended, missing)
        return release("INCONCLUSIVE", INFRASTRUCTURE, f"no check ran{why}")
    if missing or counts[Status.ERROR]:
        trouble = [c for c in ended.values() if c.status is Status.ERROR]
        named = f"; {trouble[0].board}: {trouble[0].reason}" if trouble else ""
        parts = [f"{len(missing)} of {_checks(len(planned))} did not run"] * bool(
            missing
        )
        parts += [f"{_checks(len(trouble))} met trouble of the lab"] * bool(trouble)
        return release(
            "INCONCLUSIVE",
            INFRASTRUCTURE,
            " and ".join(parts) + (named or _why(ended, missing)),
        )
    undecided = [c for c in ended.values() if c.status is Status.INCONCLUSIVE]
    if undecided:
        first = undecided[0]
        return release(
            "INCONCLUSIVE",
            INCONCLUSIVE,
            f"{_checks(len(undecided))} could not be decided; {first.board}"
            f"{f' with {first.adapter}' if first.adapter else ''}: {first.reason}",
        )
    left = Counter({r.board: r.count for r in records if isinstance(r, Deselected)})
    partial = {board: left[board] for board in boards if board in left}
    if partial:
        return release(
            "INCONCLUSIVE",
            INCONCLUSIVE,
            f"a partial run: {_left(sum(partial.values()))} left out",
        )
    controlled = {
        r.board
        for r in records
        if isinstance(r, Judged)
        and r.judgement.kind == CONTROL
        and r.judgement.outcome is Outcome.PASS
    }
    if boards - controlled:
        return release(
            "INVALID",
            INVALID,
            f"no adapter that is wrong on purpose was found wrong on "
            f"{', '.join(sorted(boards - controlled))}",
        )
    passed = counts[Status.PASS]
    return release(
        "GO",
        GO,
        f"all {passed} checks passed on {', '.join(sorted(boards))}, "
        f"every adapter that is wrong on purpose was found",
    )


def _checks(count: int) -> str:
    return f"{count} check{'s' * (count != 1)}"


def _left(count: int) -> str:
    return _checks(count) if count else "an unknown number of checks"


def _why(ended: dict[str, Check], missing: Sequence[str]) -> str:
    first = next((ended[n] for n in missing if n in ended), None)
    return f"; {first.board}: {first.reason}" if first else ""


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
        worst.setdefault((record.nodeid, record.attempt), set()).add(judgement.outcome)
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
    return problems

"""From records to the release verdict; pure, so that it can be derived again."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.evidence.records import Check
from harness.evidence.records import Deselected
from harness.evidence.records import Judged
from harness.evidence.records import Planned
from harness.evidence.records import Record
from harness.evidence.records import Status
from harness.verdict.measurement import Outcome


__all__ = ["CONTROL", "Release", "derive", "last_attempts", "verdict_of"]

CONTROL = "control"

# Exit statuses; 2 to 5 are pytest's own.
GO, NO_GO, INCONCLUSIVE, INVALID, INFRASTRUCTURE = 0, 1, 10, 11, 12
# Two processes may have recorded one attempt: the worse status is the true one.
WORST = (
    Status.FAIL,
    Status.ERROR,
    Status.INCONCLUSIVE,
    Status.MISS,
    Status.PASS,
    Status.SKIP,
)
# How the software under test ends a check without an answer.
DEATHS = ("runtime-died", "runtime-hung")


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


class Ruling(NamedTuple):
    """What a rule comes to when it applies."""

    verdict: str
    exit_status: int
    reason: str


@dataclass(frozen=True)
class Part:
    """The part of a run that a verdict is about.

    :param ended: the attempt that counts of every check that ended.
    :param attempts: all attempts.
    :param left: checks that the user left out, by board.
    """

    planned: dict[str, Planned]
    ended: dict[str, Check]
    attempts: tuple[Check, ...]
    judged: tuple[Judged, ...]
    left: dict[str, int]

    @classmethod
    def of(cls, records: Sequence[Record], about: Callable[[Planned], bool]) -> Part:
        """The part whose planned checks `about` picks."""
        planned = {r.nodeid: r for r in records if isinstance(r, Planned) and about(r)}
        boards = {p.board for p in planned.values()}
        return cls(
            planned,
            {n: c for n, c in last_attempts(records).items() if n in planned},
            tuple(r for r in records if isinstance(r, Check) and r.nodeid in planned),
            tuple(r for r in records if isinstance(r, Judged) and r.nodeid in planned),
            {
                r.board: r.count
                for r in records
                if isinstance(r, Deselected) and r.board in boards
            },
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """Planned checks that did not run."""
        ended = self.ended
        return tuple(
            n for n in self.planned if n not in ended or ended[n].status is Status.MISS
        )

    def ending(self, status: Status) -> list[Check]:
        """The checks that ended so, in the order of their requirements."""
        found = [check for check in self.ended.values() if check.status is status]
        return sorted(found, key=lambda check: check.requirements)


def last_attempts(records: Iterable[Record]) -> dict[str, Check]:
    """The attempt that counts of every check that ended, by node id."""
    last: dict[str, Check] = {}
    for record in records:
        if isinstance(record, Check):
            known = last.get(record.nodeid)
            if known is None or _weight(record) > _weight(known):
                last[record.nodeid] = record
    return last


def _weight(check: Check) -> tuple[int, int]:
    return check.attempt, -WORST.index(check.status)


def derive(records: Sequence[Record]) -> Release:
    """The verdict of a whole run."""
    return verdict_of(records, lambda _: True)


def verdict_of(records: Sequence[Record], about: Callable[[Planned], bool]) -> Release:
    """The verdict on the part of a run that `about` picks: the first rule that applies.

    :param about: whether a planned check belongs to the part.
    """
    part = Part.of(records, about)
    ruling = next(filter(None, (rule(part) for rule in RULES)), None) or _go(part)
    missing = part.missing
    planned = len(part.planned)
    return Release(*ruling, planned, planned - len(missing), missing)


def _failed(part: Part) -> Ruling | None:
    """Any FAIL is NO-GO, also beside checks that did not run: what was seen is seen.

    Also one whose check was cut off before its end.
    """
    reasons = {
        c.nodeid: (c.requirements, c.board, c.adapter, c.reason)
        for c in part.ending(Status.FAIL)
    }
    for r in part.judged:
        if r.judgement.kind != CONTROL and r.judgement.outcome is Outcome.FAIL:
            said = f"{r.judgement.name}: {r.judgement.reason}"
            reasons.setdefault(r.nodeid, (r.requirements, r.board, r.adapter, said))
    if not reasons:
        return None
    requirements, board, adapter, said = min(reasons.values())
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return Ruling(
        "NO-GO",
        NO_GO,
        f"{' '.join(requirements)} failed on {_where(board, adapter)}: {said}{more}",
    )


def _missed_control(part: Part) -> Ruling | None:
    """A wrong adapter that was not found wrong: no PASS of this run means anything."""
    for r in part.judged:
        last = part.ended.get(r.nodeid)
        if (
            r.judgement.kind == CONTROL
            and r.judgement.outcome is Outcome.FAIL
            and last is not None
            and last.attempt == r.attempt
        ):
            return Ruling(
                "INVALID",
                INVALID,
                f"{r.judgement.name}, wrong on purpose, was not found wrong on "
                f"{r.board}: the run could not have seen such a fault",
            )
    return None


def _not_run(part: Part) -> Ruling | None:
    """What did not run, or met trouble of the lab, is no GO."""
    missing, trouble = part.missing, part.ending(Status.ERROR)
    first = next((part.ended[n] for n in missing if n in part.ended), None)
    first = trouble[0] if trouble else first
    why = f"; {first.board}: {first.reason}" if first else ""
    if len(missing) == len(part.planned):
        return Ruling("INCONCLUSIVE", INFRASTRUCTURE, f"no check ran{why}")
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {_checks(len(part.planned))} did not run")
    if trouble:
        parts.append(f"{_checks(len(trouble))} met trouble of the lab")
    if not parts:
        return None
    return Ruling("INCONCLUSIVE", INFRASTRUCTURE, " and ".join(parts) + why)


def _unstable(part: Part) -> Ruling | None:
    """Software that died in a first attempt and not in the second is not accepted."""
    died = [check for check in part.attempts if check.code in DEATHS]
    if not died:
        return None
    first = died[0]
    return Ruling(
        "INCONCLUSIVE",
        INFRASTRUCTURE,
        f"the software on {first.board} ended {_times(len(died))} without an answer "
        f"and not when asked again: {first.reason}",
    )


def _undecided(part: Part) -> Ruling | None:
    undecided = part.ending(Status.INCONCLUSIVE)
    if not undecided:
        return None
    first = undecided[0]
    return Ruling(
        "INCONCLUSIVE",
        INCONCLUSIVE,
        f"{_checks(len(undecided))} could not be decided; "
        f"{_where(first.board, first.adapter)}: {first.reason}",
    )


def _partial(part: Part) -> Ruling | None:
    """Part of the checks is enough to find a fault, never to release."""
    if not part.left:
        return None
    count = sum(part.left.values())
    left = _checks(count) if count else "an unknown number of checks"
    return Ruling("INCONCLUSIVE", INCONCLUSIVE, f"a partial run: {left} left out")


def _uncontrolled(part: Part) -> Ruling | None:
    """A board on which no wrong adapter was tried."""
    controlled = {r.board for r in part.judged if r.judgement.kind == CONTROL}
    blind = sorted({p.board for p in part.planned.values()} - controlled)
    if not blind:
        return None
    return Ruling(
        "INVALID",
        INVALID,
        f"no adapter that is wrong on purpose was found wrong on {', '.join(blind)}",
    )


def _go(part: Part) -> Ruling:
    boards = sorted({p.board for p in part.planned.values()})
    return Ruling(
        "GO",
        GO,
        f"all {_checks(len(part.ending(Status.PASS)))} passed on {', '.join(boards)}, "
        "every adapter that is wrong on purpose was found",
    )


RULES = (
    _failed,
    _missed_control,
    _not_run,
    _unstable,
    _undecided,
    _partial,
    _uncontrolled,
)


def _checks(count: int) -> str:
    return f"{count} check{'s' * (count != 1)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _where(board: str, adapter: str) -> str:
    return f"{board} with {adapter}" if adapter else board

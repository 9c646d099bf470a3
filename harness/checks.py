"""A check: one suite function on one board, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field

import pytest

from harness.errors import Infrastructure
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.errors import UsageFault
from harness.evidence import Status
from harness.verdict import BoardWrong
from harness.verdict import Inconclusive
from harness.verdict import Judgement
from harness.verdict import Outcome


__all__ = ["BoardAway", "Check", "is_retried", "status_of"]


class BoardAway(Infrastructure):
    """The board could not be brought up, or was lost: its checks did not run."""

    code = "board-away"


@dataclass
class Check:
    """A planned check and the state of its attempts.

    :param fixtures: names of all fixtures it gets, also by way of others.
    :param worst: the first judgement of this attempt that was a FAIL.
    :param status: how it ended; None while it has not.
    """

    nodeid: str
    board: str
    adapter: str
    requirements: tuple[str, ...]
    title: str
    fixtures: tuple[str, ...] = ()
    attempt: int = 1
    judgements: int = 0
    worst: Judgement | None = None
    status: Status | None = None
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, item: pytest.Item) -> Check | None:
        """The check of a collected item, None for tests without a board of ours."""
        call = getattr(item, "callspec", None)
        marks = {mark.name for mark in item.iter_markers()}
        if call is None or not marks & {"simulator", "board"}:
            return None
        board = call.params.get("board")
        if not isinstance(board, str):
            return None
        requirements = [
            str(name) for mark in item.iter_markers("requirement") for name in mark.args
        ]
        document = getattr(getattr(item, "function", None), "__doc__", None)
        return cls(
            nodeid=item.nodeid,
            board=board,
            adapter=call.params.get("adapter", ""),
            requirements=tuple(requirements),
            title=((document or "").strip() or item.name).splitlines()[0],
            fixtures=tuple(getattr(item, "fixturenames", ())),
        )

    def begin(self) -> None:
        """The clock of an attempt starts."""
        self.started = time.monotonic()

    def again(self) -> None:
        """Another attempt."""
        self.attempt += 1
        self.judgements, self.worst = 0, None
        self.begin()

    def judged(self, judgement: Judgement) -> None:
        """Count a judgement."""
        self.judgements += 1
        if judgement.outcome is Outcome.FAIL:
            self.worst = self.worst or judgement

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Around an attempt: an AssertionError leaves it only where the board is wrong.

        The board's refusal of a fitting adapter is its fault, and so is software that
        dies or hangs a second time in the same check. A control that was not found
        wrong says nothing of the board. A check that judged nothing, or hid what a
        judgement came to, did not pass.
        """
        try:
            yield
            if self.worst is not None:
                raise BoardWrong(self.worst)
        except RuntimeRefused as refusal:
            raise AssertionError(str(refusal)) from refusal
        except (RuntimeDied, RuntimeHung) as death:
            if self.attempt == 1:
                raise
            raise AssertionError(f"again: {death}") from death
        except BoardWrong as wrong:
            if wrong.judgement.kind == "control":
                raise Inconclusive(str(wrong), wrong.judgement) from None
            raise
        if not self.judgements:
            raise UsageFault(
                "the check judged nothing",
                where=self.nodeid,
                cure="let it end in a judgement, or skip",
            )


def is_retried(error: BaseException) -> bool:
    """Whether an attempt that ended so says nothing about the board's LoRA."""
    return isinstance(error, Infrastructure | RuntimeDied | RuntimeHung)


def status_of(error: BaseException | None, ran: bool) -> Status:
    """The honest status of a check that ended with `error`.

    :param ran: whether the check itself began (its fixtures were ready).
    """
    match error:
        case None:
            return Status.PASS
        case pytest.skip.Exception():
            return Status.SKIP
        case Inconclusive():
            return Status.INCONCLUSIVE
        case AssertionError() | pytest.fail.Exception() if ran:
            return Status.FAIL
        case BoardAway():
            return Status.MISS
        case _:
            return Status.ERROR

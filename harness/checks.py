"""A check: one suite function on one board, and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass
from dataclasses import field

import pytest

from harness.errors import Infrastructure
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.evidence import Status
from harness.verdict import BoardWrong
from harness.verdict import Inconclusive


__all__ = ["BoardAway", "Check", "as_verdict", "is_retried", "status_of"]


class BoardAway(Infrastructure):
    """The board could not be brought up: its checks did not run."""

    code = "board-away"


@dataclass
class Check:
    """A planned check and the state of its attempts."""

    nodeid: str
    board: str
    adapter: str
    requirements: tuple[str, ...]
    title: str
    attempt: int = 1
    judgements: int = 0
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, item: pytest.Item) -> Check | None:
        """The check of a collected item, None for tests without a board."""
        call = getattr(item, "callspec", None)
        if call is None or "board" not in call.params:
            return None
        adapter = call.params.get("adapter")
        requirements = [
            str(name) for mark in item.iter_markers("requirement") for name in mark.args
        ]
        document = getattr(getattr(item, "function", None), "__doc__", None)
        return cls(
            nodeid=item.nodeid,
            board=str(call.params["board"]),
            adapter=adapter.name if adapter else "",
            requirements=tuple(requirements),
            title=(document or item.name).strip().splitlines()[0],
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
        case BoardWrong() if error.judgement.kind == "control":
            return Status.INCONCLUSIVE  # we are blind, which says nothing of the board
        case AssertionError() if ran:
            return Status.FAIL
        case RuntimeRefused() if ran:
            return Status.FAIL  # the board refused what it must accept
        case BoardAway():
            return Status.MISS
        case _:
            return Status.ERROR


def as_verdict(error: Exception) -> Exception:
    """The board's refusal of a fitting adapter is its fault, not the lab's."""
    return AssertionError(str(error)) if isinstance(error, RuntimeRefused) else error

"""The plan of a run: its checks, found while pytest collects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import get_args

import pytest

from harness.checks import Check
from harness.errors import UsageFault
from harness.evidence import AdapterFacts
from harness.evidence import Deselected
from harness.evidence import Planned
from harness.evidence import Record
from harness.runtimes.runtime import Phase
from harness.selection import Selection


__all__ = ["Plan"]


class Plan:
    """The checks that are to run, and how many were left out.

    :param selection: the boards and adapters.
    :param partial: whether suites are left out before pytest collects them.
    :param fault: the user's mistake that collection met, if any.
    """

    def __init__(self, selection: Selection, partial: bool) -> None:
        self._selection = selection
        self._partial = partial
        self.checks: dict[str, Check] = {}
        self.fault: UsageFault | None = None
        self._deselected: Counter[str] = Counter()

    def parametrize(self, metafunc: pytest.Metafunc, wanted: Sequence[str]) -> None:
        """Give a suite function its boards, and its adapters or damages on each.

        Parameters are names: they mean the same in every process, and to Allure in
        every run.

        :param wanted: `board`, then those of our other parametrised fixtures that it
            asks for. The board comes first in a check's name: the scheduler reads it
            there.
        :raises UsageFault: there is no board, or adapters cannot be had.
        """
        if self._selection.inventory.boards and not self._selection.boards:
            raise UsageFault(
                "there is no board to run checks on",
                where=str(self._selection.inventory.path),
                cure="name real ones with --board or -m board, or add a simulated one",
            )
        rows = [
            pytest.param(
                *row,
                id="-".join(row),
                marks=getattr(pytest.mark, "simulator" if board.simulated else "board"),
            )
            for board in self._selection.boards
            for row in self._rows(board.name, wanted[1:])
        ]
        metafunc.parametrize(wanted, rows, indirect=True)

    def _rows(self, board: str, wanted: Sequence[str]) -> list[tuple[str, ...]]:
        match wanted:
            case [*others, "phase"]:
                rows = self._rows(board, others)
                return [(*row, phase) for row in rows for phase in get_args(Phase)]
            case []:
                return [(board,)]
            case ["adapter"]:
                return [(board, a.name) for a in self._selection.adapters(board)]
            case ["damage" | "non_finite" as name]:
                covers = {"damage": "R40", "non_finite": "R42"}[name]
                damages = self._selection.damages(board).values()
                return [(board, d.name) for d in damages if d.requirement == covers]
        raise UsageFault(f"a suite asks for {wanted} at once")

    def order(self, item: pytest.Item) -> tuple[str, ...]:
        """What items are sorted by; tests without a board keep their place."""
        check = Check.of(item)
        return (check.board, *check.requirements) if check else ()

    def deselected(self, items: Iterable[pytest.Item]) -> None:
        """Count what the user left out, by board."""
        for item in items:
            if check := Check.of(item):
                self._deselected[check.board] += 1

    def collected(self, items: Iterable[pytest.Item]) -> None:
        """Keep the checks among the items that are to run."""
        for item in items:
            if check := Check.of(item):
                self.checks[check.nodeid] = check

    def after(self, check: Check) -> Iterator[Check]:
        """The checks that follow on the same board, in their order."""
        checks = iter(self.checks.values())
        for found in checks:
            if found is check:
                break
        return (later for later in checks if later.board == check.board)

    @property
    def boards(self) -> list[str]:
        """The boards that have checks."""
        return list(dict.fromkeys(check.board for check in self.checks.values()))

    def records(self) -> Iterator[Record]:
        """The plan as it is kept, before anything runs (R92)."""
        for check in self.checks.values():
            yield Planned(
                check.nodeid,
                check.board,
                check.adapter,
                check.requirements,
                check.title,
            )
        for board in self.boards:
            if self._deselected[board] or self._partial:
                yield Deselected(board, self._deselected[board])
            for adapter in self._selection.adapters(board):
                yield AdapterFacts(board, adapter.name, adapter.digest, adapter.facts)

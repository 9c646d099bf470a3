"""Which boards and adapters a pytest run is about: options, ini, inventory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression  # pytest offers no public evaluator

from harness.artifacts.adapter import Adapter
from harness.boards.inventory import Board
from harness.boards.inventory import Inventory
from harness.errors import UsageFault


__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """What the user asked for. Command line wins over ini, ini over defaults.

    :raises UsageFault: unknown board, no real board for `-m board`, no such
        adapter folder.
    """

    config: pytest.Config

    def _option(self, name: str) -> str:
        return str(self.config.getoption(name) or self.config.getini(name))

    def _options(self, name: str) -> list[str]:
        return list(self.config.getoption(name) or self.config.getini(name))

    def check(self) -> None:
        """Look at what the user named before anything is collected.

        Without such options the inventory is read when a suite asks for a board.
        """
        named = any(map(self._option, ("boards_file", "board_fault", "board_golden")))
        named |= any(map(self._options, ("board_names", "board_adapters")))
        if named or self._wants("board", "simulator"):
            for board in self.boards:
                self.adapters(board)

    @property
    def fault(self) -> str | None:
        """The fault put into simulated boards."""
        return self._option("board_fault") or None

    @property
    def golden(self) -> Path | None:
        """Goldens instead of the boards' own."""
        given = self._option("board_golden")
        return Path(given).expanduser() if given else None

    @property
    def reports(self) -> Path:
        """The folder that run folders are made in."""
        return self.config.rootpath / (self._option("board_report") or "reports")

    @cached_property
    def inventory(self) -> Inventory:
        """All boards there are; none where there is no `boards.toml`."""
        given = self._option("boards_file")
        path = self.config.rootpath / (given or "boards.toml")
        if not given and not path.exists():
            return Inventory(path, ())
        return Inventory.load(path)

    def _wants(self, mark: str, other: str) -> bool:
        """Whether `-m` picks items with `mark` and none with `other` alone."""
        text = self.config.getoption("markexpr", "")
        if not text:
            return False
        expression = Expression.compile(text)

        def picks(marked: str) -> bool:
            return expression.evaluate(lambda name, /, **_: name == marked)

        return picks(mark) and not picks(other)

    @cached_property
    def boards(self) -> tuple[Board, ...]:
        """Simulated boards, unless `--board` or `-m board` ask for real ones."""
        names = self._options("board_names")
        if names:
            return self.inventory.pick(names)
        if self._wants("board", "simulator"):
            real = self.inventory.real()
            if not real:
                raise UsageFault(
                    "there is no real board",
                    where=str(self.inventory.path),
                    cure="add a [boards.NAME] table with host and model"
                    " (see README, adding a board), or drop -m board",
                )
            return real
        return self.inventory.simulated()

    def adapters(self, board: Board) -> tuple[Adapter, ...]:
        """The adapters to accept on a board, in a fixed order."""
        given = tuple(Path(a).expanduser() for a in self._options("board_adapters"))
        adapters = tuple(map(Adapter.open, given or board.adapter_folders()))
        names = [adapter.name for adapter in adapters]
        for adapter in adapters:
            if names.count(adapter.name) > 1:
                raise UsageFault(
                    "two adapter folders have the same name",
                    where=str(adapter.folder),
                    cure="names tell adapters apart on the page; rename one",
                )
        return adapters

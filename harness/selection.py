"""Which boards and adapters a pytest run is about: options, ini, inventory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression  # pytest offers no public evaluator

from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.boards import simulated
from harness.boards.inventory import Board
from harness.boards.inventory import Inventory
from harness.boards.simulated import FaultElsewhere
from harness.deadline import Deadline
from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden.identity import weights_digest
from harness.golden.index import GoldenIndex
from harness.probes.server import FILE_NAME as ADAPTER_NAME
from harness.reach import START_UP_S


__all__ = ["Selection"]


class Selection:
    """What the user asked for. Command line wins over ini, ini over defaults.

    Paths on the command line are relative to the current folder, those of an ini
    file to that file.

    :param config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._adapters: dict[str, tuple[Adapter, ...]] = {}
        self._damages: dict[str, dict[str, forge.Damaged]] = {}
        self._proven: set[str] = set()

    # What was asked for

    def _given(self, name: str) -> list[str]:
        """Values of an option, else of its ini twin."""
        value = self._config.getoption(name) or self._config.getini(name)
        return [value] if isinstance(value, str) and value else list(value)

    def _paths(self, name: str) -> list[Path]:
        """The same as absolute paths."""
        ini = self._config.inipath
        folder = ini.parent if ini else self._config.rootpath
        if self._config.getoption(name):
            folder = self._config.invocation_params.dir
        return [folder / Path(value).expanduser() for value in self._given(name)]

    @property
    def fault(self) -> str | None:
        """The fault put into simulated boards."""
        return next(iter(self._given("board_fault")), None)

    @property
    def golden(self) -> Path | None:
        """Goldens instead of the boards' own."""
        return next(iter(self._paths("board_golden")), None)

    @property
    def reports(self) -> Path:
        """The folder that run folders are made in."""
        default = self._config.rootpath / "reports"
        return next(iter(self._paths("board_report")), default)

    @cached_property
    def inventory(self) -> Inventory:
        """All boards there are; none where there is no `boards.toml`."""
        given = next(iter(self._paths("boards_file")), None)
        path = given or self._config.rootpath / "boards.toml"
        if not given and not path.exists():
            return Inventory(path, ())
        return Inventory.load(path)

    @cached_property
    def boards(self) -> tuple[Board, ...]:
        """Simulated boards, unless `--board` or `-m board` ask for real ones.

        With a fault, of those that were not named only the ones it belongs to.
        """
        worker = getattr(self._config, "workerinput", None)
        if worker:
            return self.inventory.pick(worker["boards"])
        names = self._given("board_names")
        if names:
            return self._with_fault(self.inventory.pick(names), named=True)
        if self._wants("board", "simulator"):
            real = self.inventory.real()
            if not real:
                raise UsageFault(
                    "there is no real board",
                    where=str(self.inventory.path),
                    cure="add a [boards.NAME] table with host and model"
                    " (see README, adding a board), or drop -m board",
                )
            return self._with_fault(real, named=True)
        return self._with_fault(self.inventory.simulated(), named=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these boards."""
        return tuple(board.name for board in self.boards)

    def _wants(self, mark: str, other: str) -> bool:
        """Whether `-m` picks items with `mark` and none with `other` alone."""
        try:
            expression = Expression.compile(self._config.getoption("markexpr", ""))
        except SyntaxError:
            return False  # pytest itself complains, in its own words

        def picks(marked: str) -> bool:
            return expression.evaluate(lambda name, /, **_: name == marked)

        return picks(mark) and not picks(other)

    # What follows from it, by the board's name

    def board(self, name: str) -> Board:
        """A board of this run."""
        return next(board for board in self.boards if board.name == name)

    def adapters(self, board: str) -> tuple[Adapter, ...]:
        """The adapters to accept on a board, in a fixed order.

        :raises UsageFault: there is none, or one that is no sound PEFT folder.
        """
        if board not in self._adapters:
            given = self._paths("board_adapters")
            folders = given or self.board(board).adapter_folders()
            self._adapters[board] = _opened(folders, board)
        return self._adapters[board]

    def adapter(self, board: str, name: str) -> Adapter:
        """One of them."""
        return next(a for a in self.adapters(board) if a.name == name)

    def widest(self, board: str) -> Adapter:
        """The adapter with the most modules, then the largest ranks."""
        return max(self.adapters(board), key=Adapter.width)

    def damages(self, board: str) -> dict[str, forge.Damaged]:
        """What the widest adapter is turned into that a board must not take."""
        if board not in self._damages:
            reserved = self.board(board).reserved_rank
            damaged = forge.damaged(self.widest(board), reserved)
            self._damages[board] = {damage.name: damage for damage in damaged}
        return self._damages[board]

    @property
    def command(self) -> tuple[str, ...]:
        """The command line as far as it is ours: others' options may hold secrets."""
        option = self._config.option
        said = [f"--board={name}" for name in option.board_names or ()]
        said += [f"--adapter={path}" for path in option.board_adapters or ()]
        for flag, name in (
            ("--boards", "boards_file"),
            ("--golden", "board_golden"),
            ("--fault", "board_fault"),
            ("-k", "keyword"),
            ("-m", "markexpr"),
        ):
            if value := getattr(option, name, None):
                said.append(f"{flag}={value}")
        return ("pytest", *self._config.args, *said)

    # Whether it can be had

    def check(self) -> None:
        """Look at what the user named, before anything is collected.

        :raises UsageFault: unknown board or fault, no real board for `-m board`, a
            slip in `boards.toml`, no such adapter folder.
        """
        boards = self.boards
        # Workers find adapters only while collecting, where pytest-xdist makes any
        # trouble an error in a test.
        workers = self._config.getoption("dist", "no") != "no"
        if workers or self._given("board_adapters"):
            for board in boards:
                self.adapters(board.name)

    def prove(self, boards: Iterable[str]) -> None:
        """See that what checks on these boards need is there and fits together.

        :raises UsageFault: no base, no golden or one of another base, no place for
            the run folder.
        """
        for name in sorted(set(boards) - self._proven):
            board = self.board(name)
            self.adapters(name)
            golden = self.golden or board.golden
            for key, value in (("base", board.base), ("golden", golden)):
                if value is None:
                    raise UsageFault(
                        f"no {key}",
                        where=f"board {name}",
                        cure=f"set {key} = in {self.inventory.path}",
                    )
            assert golden is not None and board.base is not None
            # A golden of the base as the board holds it can be opened only when that
            # base has been made.
            if GoldenIndex.read(golden).source != weights_digest(board.base):
                GoldenStore.open(golden, board.base)
            self._prove_reports()
            self._proven.add(name)

    def _prove_reports(self) -> None:
        place = self.reports
        while not place.exists():
            place = place.parent
        try:
            with tempfile.TemporaryFile(dir=place):
                return  # rights alone do not tell of a read-only file system
        except OSError:
            raise UsageFault(
                f"{place} takes no run folders",
                where="--report",
                cure="name a folder that can be written",
            ) from None

    def _with_fault(self, boards: tuple[Board, ...], named: bool) -> tuple[Board, ...]:
        """The boards that the fault, if any, can be put into.

        Each is started with it: only the simulator knows its faults.
        """
        fault = self.fault
        if not fault:
            return boards
        taking: list[Board] = []
        elsewhere: UsageFault | None = None
        for board in boards:
            if not board.simulated:
                raise UsageFault(
                    f"the fault {fault!r} cannot be put into a real board",
                    where=f"board {board.name}",
                    cure="drop --fault, or name simulated boards with --board",
                )
            try:
                self._start(board, fault)
            except FaultElsewhere as error:
                elsewhere = error
            else:
                taking.append(board)
        if elsewhere and (named or not taking):
            raise elsewhere
        return tuple(taking)

    def _start(self, board: Board, fault: str) -> None:
        with (
            tempfile.TemporaryDirectory() as root,
            contextlib.suppress(Infrastructure),  # bring-up says it better
        ):
            simulated.start(
                board.name, board.platform, Path(root), fault, Deadline(START_UP_S)
            ).stop()


def _opened(folders: Iterable[Path], board: str) -> tuple[Adapter, ...]:
    adapters = tuple(map(Adapter.open, folders))
    if not adapters:
        raise UsageFault(
            "no adapters to accept",
            where=f"board {board}",
            cure="set adapters = in boards.toml, or give --adapter",
        )
    names = [adapter.name for adapter in adapters]
    for adapter in adapters:
        if not ADAPTER_NAME.fullmatch(adapter.name):
            raise UsageFault(
                f"{adapter.name!r:.80} cannot be an adapter's name on a board",
                where=f"board {board}",
                cure="rename the folder: letters, digits, dot, hyphen, underscore",
            )
        if names.count(adapter.name) > 1:
            raise UsageFault(
                "two adapter folders have the same name",
                where=str(adapter.folder),
                cure="names tell adapters apart on the page; rename one",
            )
    return adapters

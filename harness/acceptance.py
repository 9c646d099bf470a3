"""One acceptance run: its boards, its plan, its records, its verdict."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.bench import Bench
from harness.boards.inventory import Board
from harness.checks import BoardAway
from harness.checks import Check
from harness.checks import is_retried
from harness.checks import status_of
from harness.errors import HarnessError
from harness.errors import UsageFault
from harness.evidence import AdapterFacts
from harness.evidence import Check as CheckRecord
from harness.evidence import Deselected
from harness.evidence import Environment
from harness.evidence import Judged
from harness.evidence import Planned
from harness.evidence import Release
from harness.evidence import Run
from harness.evidence import RunFolder
from harness.evidence import Status
from harness.selection import Selection
from harness.verdict import THETA
from harness.verdict import BoardWrong
from harness.verdict import Budget
from harness.verdict import Judge
from harness.verdict import Judgement


__all__ = ["ACCEPTANCE", "Acceptance"]

ACCEPTANCE = pytest.StashKey["Acceptance"]()

# Packages whose version can change a verdict.
PACKAGES = ("numpy", "scipy", "paramiko", "pytest", "pytest-xdist")


class Acceptance:
    """The state of a pytest run that accepts boards.

    :param config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.selection = Selection(config)
        self.selection.check()
        self._config = config
        worker = getattr(config, "workerinput", None)
        path = Path(worker["run_folder"]) if worker else self._new_folder()
        self.run = RunFolder(path, worker["workerid"] if worker else "main")
        self.checks: dict[str, Check] = {}
        self._benches: dict[str, Bench | HarnessError] = {}
        self._deselected: Counter[str] = Counter()
        self.release: Release | None = None

    def _new_folder(self) -> Path:
        """A name that sorts by time and that no other run has."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return self.selection.reports / f"{stamp}-{time.time_ns() % 1_000_000:06d}"

    # Collection

    @property
    def boards(self) -> dict[str, Board]:
        """The boards of this run by name."""
        return {board.name: board for board in self.selection.boards}

    def adapters(self, board: str) -> tuple[Adapter, ...]:
        """The adapters accepted on a board."""
        return self.selection.adapters(self.boards[board])

    def widest(self, board: str) -> Adapter:
        """The adapter with the most modules, then the largest ranks."""
        return max(self.adapters(board), key=Adapter.width)

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a suite function its boards, and its adapters or damages on each."""
        names = ("board", "adapter", "damage", "non_finite")
        wanted = [name for name in names if name in metafunc.fixturenames]
        rows = [
            pytest.param(
                *row,
                id="-".join(getattr(part, "name", part) for part in row),
                marks=getattr(pytest.mark, "simulator" if board.simulated else "board"),
            )
            for board in self.selection.boards
            for row in self._rows(board, wanted[1:])
        ]
        indirect = [name for name in wanted if name in ("board", "adapter")]
        metafunc.parametrize(wanted, rows, indirect=indirect)

    def _rows(self, board: Board, wanted: Sequence[str]) -> Iterable[tuple[Any, ...]]:
        match wanted:
            case []:
                return [(board.name,)]
            case ["adapter"]:
                return [(board.name, a) for a in self.selection.adapters(board)]
            case ["damage" | "non_finite" as name]:
                requirement = {"damage": "R40", "non_finite": "R42"}[name]
                widest = self.widest(board.name)
                return [
                    (board.name, damage)
                    for damage in forge.damaged(widest, board.reserved_rank)
                    if damage.requirement == requirement
                ]
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

    def plan(self, items: Iterable[pytest.Item]) -> None:
        """Write down what is to run before anything does (R92)."""
        for item in items:
            if check := Check.of(item):
                self.checks[check.nodeid] = check
        if self._config.option.collectonly:
            return
        for check in self.checks.values():
            self.run.append(
                Planned(
                    check.nodeid,
                    check.board,
                    check.adapter,
                    check.requirements,
                    check.title,
                )
            )
        for board in {check.board for check in self.checks.values()}:
            if self._deselected[board]:
                self.run.append(Deselected(board, self._deselected[board]))
            for adapter in self.adapters(board):
                self.run.append(
                    AdapterFacts(adapter.name, adapter.digest, adapter.facts)
                )

    # Execution

    def bench(self, name: str) -> Bench:
        """A board, brought up once; a board that is away stays away.

        :raises BoardAway: it could not be brought up, or was lost for good.
        :raises UsageFault: what the inventory names for it is bad.
        """
        if name not in self._benches:
            try:
                bench = Bench(
                    self.boards[name],
                    self.widest(name),
                    fault=self.selection.fault,
                    golden=self.selection.golden,
                    progress=self._say,
                ).__enter__()
                self._benches[name] = bench
                self.run.append(Environment(name, bench.environment()))
            except HarnessError as error:
                self.lose(name, error)
        held = self._benches[name]
        if isinstance(held, UsageFault):
            raise held
        if isinstance(held, HarnessError):
            raise BoardAway(str(held), where=name)
        return held

    def lose(self, name: str, error: HarnessError) -> None:
        """Give a board up: what is still planned on it will be missing."""
        held = self._benches.get(name)
        self._benches[name] = error
        if isinstance(held, Bench):
            held.__exit__(None, None, None)

    def judge(self, nodeid: str, bench: Bench) -> Judge:
        """The judge of one check."""
        check = self.checks[nodeid]

        def record(judgement: Judgement) -> None:
            check.judgements += 1
            self.run.append(
                Judged(
                    check.nodeid,
                    check.board,
                    check.adapter,
                    check.requirements,
                    check.attempt,
                    judgement,
                )
            )

        return Judge(
            record,
            budget_share=Budget(len(self.checks)).share,
            floor=bench.floor,
            theta=THETA[bench.golden.scheme],
        )

    def retries(self, check: Check, error: Exception) -> bool:
        """Whether to try a check again; keeps the attempt that failed.

        Only for trouble of the lab, and only once; the board is brought back to
        its base state first, or given up.
        """
        if not is_retried(error) or check.attempt > 1:
            return False
        self._end(check, Status.ERROR, error)
        check.attempt += 1
        check.judgements = 0
        check.started = time.monotonic()
        try:
            self.bench(check.board).begin()
        except HarnessError as lost:
            self.lose(check.board, lost)
            return False
        return True

    def note(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
    ) -> None:
        """Record how a check ended; its status travels with pytest's report."""
        check = self.checks.get(item.nodeid)
        if check is None:
            return
        error = call.excinfo.value if call.excinfo else None
        if report.when == "setup":
            check.started = time.monotonic()
        if report.when == "call" or (report.when == "setup" and error is not None):
            status = status_of(error, ran=report.when == "call")
            if status is Status.PASS and not check.judgements:
                status, error = Status.ERROR, UsageFault("the check judged nothing")
                report.outcome = "failed"
                report.longrepr = str(error)
            self._end(check, status, error)
            report.check_status = str(status)  # type: ignore[attr-defined]

    def _end(self, check: Check, status: Status, error: BaseException | None) -> None:
        arrays = {}
        if isinstance(error, BoardWrong):
            arrays = {
                role: self.run.keep(scores.logits)
                for role, scores in error.scores.items()
            }
        self.run.append(
            CheckRecord(
                nodeid=check.nodeid,
                board=check.board,
                adapter=check.adapter,
                requirements=check.requirements,
                attempt=check.attempt,
                status=status,
                reason=" ".join(str(error).split()) if error else "",
                seconds=round(time.monotonic() - check.started, 3),
                finished=round(time.time(), 3),
                arrays=arrays,
            )
        )

    def _say(self, line: str) -> None:
        """One line of progress, also from a worker."""
        stream = sys.__stderr__
        if stream is not None and self._config.option.verbose >= 0:
            print(line, file=stream, flush=True)

    # End

    def close(self) -> None:
        """Let go of all boards."""
        for name, held in list(self._benches.items()):
            if isinstance(held, Bench):
                self._benches[name] = BoardAway("the run is over", where=name)
                held.__exit__(None, None, None)
        self.run.close()

    def finish(self) -> Release | None:
        """Merge the records and write the page; None when nothing was accepted.

        Only the controller calls it.
        """
        self.close()
        if not self.run.path.is_dir():
            return None
        from harness.report import write

        self.run.append(
            Run(
                id=self.run.path.name,
                started=self._started(),
                command=("pytest", *self._config.invocation_params.args),
                harness=_harness_version(self._config.rootpath),
                python=platform.python_version(),
                versions={name: version(name) for name in PACKAGES},
            )
        )
        self.run.merge()
        self.release = write(self.run)
        return self.release

    def _started(self) -> float:
        return self.run.path.stat().st_ctime

    def header(self) -> list[str]:
        """Lines for the top of pytest's output."""
        boards = self.selection.boards
        if not boards:
            return []
        names = ", ".join(
            f"{b.name} ({'simulated' if b.simulated else 'real'})" for b in boards
        )
        fault = self.selection.fault
        return [f"boards: {names}"] + ([f"fault put in: {fault}"] if fault else [])

    def summary(self, reporter: pytest.TerminalReporter) -> None:
        """The verdict, at the end of pytest's output."""
        if self.release is None:
            return
        from harness.report import show

        reporter.section("board acceptance")
        show(self.run.path, reporter)


def _harness_version(root: Path) -> str:
    """The version, and in a checkout the commit."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return f"{__version__}+{commit}" if commit else __version__

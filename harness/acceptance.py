"""One acceptance run: its boards, its plan, its records, its verdict."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from harness import __version__
from harness.bench import Bench
from harness.checks import BoardAway
from harness.checks import Check
from harness.checks import is_retried
from harness.checks import status_of
from harness.errors import HarnessError
from harness.errors import Infrastructure
from harness.errors import RuntimeRefused
from harness.errors import UsageFault
from harness.evidence import Check as CheckRecord
from harness.evidence import Environment
from harness.evidence import Judged
from harness.evidence import Release
from harness.evidence import Run
from harness.evidence import RunFolder
from harness.evidence import Status
from harness.plan import Plan
from harness.runtimes.device import Device
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
        self._config = config
        self._started = time.time()
        self.selection = Selection(config)
        worker = getattr(config, "workerinput", None)
        if worker:
            self.run = RunFolder(Path(worker["run_folder"]), worker["workerid"])
        else:
            self.selection.check()
            self.run = RunFolder(self._new_folder(), "main")
        self.plan = Plan(self.selection, partial=_is_partial(config))
        self.release: Release | None = None
        self._planned = False
        self._benches: dict[str, Bench | HarnessError] = {}

    def _new_folder(self) -> Path:
        """A name that sorts by time and that no other run has."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._started))
        return self.selection.reports / f"{stamp}-{time.time_ns() % 1_000_000:06d}"

    def begin(self, item: pytest.Item) -> None:
        """Before an item runs; before the first one the plan is written down (R92)."""
        if not self._planned:
            self._planned = True
            for record in self.plan.records():
                self.run.append(record)
        if check := self.plan.checks.get(item.nodeid):
            check.begin()

    # Execution

    def bench(self, name: str) -> Bench:
        """A board, brought up once; a board that is away stays away.

        :raises BoardAway: it could not be brought up, or was lost for good.
        :raises UsageFault: what the inventory names for it is bad.
        """
        if name not in self._benches:
            try:
                bench = Bench(
                    self.selection.board(name),
                    self.selection.adapters(name),
                    fault=self.selection.fault,
                    golden=self.selection.golden,
                    progress=self._say,
                ).__enter__()
                self._benches[name] = bench
                self.run.append(Environment(name, bench.environment()))
            except HarnessError as error:
                self._lose(name, error)
        held = self._benches[name]
        if isinstance(held, UsageFault):
            raise held
        if isinstance(held, HarnessError):
            raise BoardAway(str(held), where=name)
        return held

    def device(self, nodeid: str) -> Device:
        """The device of a check in its base state, with what it needs at hand.

        :raises BoardAway: it cannot be brought there; the board is given up.
        :raises HarnessError: what this check alone needs cannot be had.
        """
        check = self.plan.checks[nodeid]
        name = check.board
        bench = self.bench(name)
        stock = self._stock(bench, check)
        try:
            bench.floor  # noqa: B018 - measured before anything is stocked for a check
            return bench.begin(stock)
        except RuntimeRefused as refusal:
            raise Infrastructure(
                f"its adapters are refused together: {refusal.cause}", where=name
            ) from refusal
        except HarnessError as error:
            self._lose(name, error)
            raise BoardAway(str(error), where=name) from None

    def _stock(self, bench: Bench, check: Check) -> dict[str, Path]:
        """Adapters for a check, and for as many after it as share its bundle."""
        if not bench.device.capabilities.bundles:
            return {}
        stock = dict(bench.kits.needs(check.fixtures, check.adapter))
        if bench.device.supply.has(stock):
            return stock
        for later in self.plan.after(check):
            try:
                needs = dict(bench.kits.needs(later.fixtures, later.adapter))
            except HarnessError:  # that check will say so itself
                break
            if len(stock | needs) > bench.device.capabilities.max_adapters:
                break
            stock |= needs
        return stock

    def _lose(self, name: str, error: HarnessError) -> None:
        """Give a board up: what is still planned on it will be missing."""
        held = self._benches.get(name)
        self._benches[name] = error
        if isinstance(held, Bench):
            _leave(held)

    def judge(self, nodeid: str, bench: Bench) -> Judge:
        """The judge of one check."""
        check = self.plan.checks[nodeid]

        def record(judgement: Judgement) -> None:
            check.judged(judgement)
            judged = Judged(
                check.nodeid,
                check.board,
                check.adapter,
                check.requirements,
                check.attempt,
                judgement,
            )
            self.run.append(judged)
            if self._config.getoption("allure_report_dir", default=None):
                from harness.report import allure
                from harness.report.document import row

                allure.attach(row(judged))

        return Judge(
            record,
            budget_share=Budget(len(self.plan.checks)).share,
            floor=bench.floor,
            theta=THETA[bench.golden.scheme],
        )

    def retries(self, check: Check, error: Exception) -> bool:
        """Whether to try a check again; keeps the attempt that failed.

        Only for trouble of the lab, only once, and only where the board can be
        brought back to its base state.
        """
        if not is_retried(error) or check.attempt > 1:
            return False
        try:
            # What the first attempt left, its sessions among it, is gone.
            self.bench(check.board).device.restart()
            self.device(check.nodeid)
        except HarnessError:
            return False
        self._end(check, Status.ERROR, error)
        check.again()
        return True

    def note(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        report: pytest.TestReport,
    ) -> None:
        """Record how a check ended; its status travels with pytest's report."""
        check = self.plan.checks.get(item.nodeid)
        error = call.excinfo.value if call.excinfo else None
        if check is None or (error is None and report.when != "call"):
            return
        if check.status not in (None, Status.PASS, Status.SKIP):
            return  # trouble while cleaning up after what is bad enough
        check.status = status_of(error, ran=report.when == "call")
        self._end(check, check.status, error)
        report.check_status = str(check.status)  # type: ignore[attr-defined]
        if isinstance(error, HarnessError):
            report.longrepr = str(error)  # says where and the cure; no traceback

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
                code=getattr(error, "code", ""),
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
                # Once more, with what was made in the course of the run.
                self.run.append(Environment(name, held.environment()))
                self._benches[name] = BoardAway("the run is over", where=name)
                _leave(held)
        self.run.close()

    def finish(self) -> Release | None:
        """Merge the records and write the page; None when nothing was accepted.

        Only the controller calls it.

        :raises HarnessError: the page cannot be written; the records are kept.
        """
        self.close()
        if not self.run.path.is_dir():
            return None
        from harness.report import allure
        from harness.report import write
        from harness.report.signoff import read

        try:
            self.run.append(
                Run(
                    id=self.run.path.name,
                    started=round(self._started, 3),
                    command=self.selection.command,
                    harness=_harness_version(self._config.rootpath),
                    python=platform.python_version(),
                    versions={name: version(name) for name in PACKAGES},
                )
            )
            self.run.merge()
            self.release = write(self.run)
            if results := allure.results_folder(self._config):
                allure.write_results(results, read(self.run.path))
        except OSError as error:
            raise Infrastructure(
                f"the report cannot be written: {error}",
                where=str(self.run.path),
                cure="make room and rights",
            ) from None
        return self.release

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


def _is_partial(config: pytest.Config) -> bool:
    """Whether the command line names files or tests, or leaves files out.

    What pytest never collects it does not report as deselected.
    """
    here = config.invocation_params.dir
    whole = all((here / argument).is_dir() for argument in config.args)
    option = config.option
    return not whole or bool(option.ignore or option.ignore_glob or option.deselect)


def _leave(bench: Bench) -> None:
    """Let go of a board that may be gone already."""
    with contextlib.suppress(HarnessError, OSError, EOFError):
        bench.__exit__(None, None, None)


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

"""The pytest plugin: boards as parameters, checks as records, a verdict at the end."""

from __future__ import annotations

import sys
from collections.abc import Generator
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from harness.acceptance import ACCEPTANCE
from harness.acceptance import Acceptance
from harness.errors import HarnessError
from harness.errors import UsageFault
from harness.evidence.release import GO
from harness.evidence.release import INFRASTRUCTURE
from harness.fixtures import *  # noqa: F403 - the suites' fixtures are part of us
from harness.scheduler import BoardScheduling
from harness.scheduler import board_of


FIXTURES = "harness.fixtures"
# Fixtures whose values the boards and their adapters give, in the order of node ids.
PARAMETERS = ("board", "adapter", "damage", "non_finite", "phase")

_OPTIONS = (
    ("--boards", "boards_file", "FILE", "Inventory of boards."),
    ("--fault", "board_fault", "NAME", "Fault put into the simulated boards."),
    ("--golden", "board_golden", "DIR", "Goldens instead of the board's own."),
    ("--report", "board_report", "DIR", "Folder that run folders are made in."),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("boards", "board acceptance")
    for flag, name, metavar, text in _OPTIONS:
        group.addoption(flag, dest=name, metavar=metavar, help=text)
        parser.addini(name, text, type="string", default="")
    for flag, name, metavar, text in (
        ("--board", "board_names", "NAME", "Boards to accept (repeatable)."),
        ("--adapter", "board_adapters", "DIR", "Adapters to accept (repeatable)."),
    ):
        group.addoption(flag, dest=name, metavar=metavar, action="append", help=text)
        parser.addini(name, text, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "board: runs on a real board of the lab.",
        "simulator: runs on a simulated board.",
        "requirement(*ids): the requirements that a check covers.",
    ):
        config.addinivalue_line("markers", line)
    with _usage_errors():
        config.stash[ACCEPTANCE] = Acceptance(config)


@contextmanager
def _usage_errors() -> Iterator[None]:
    """A user's mistake is one line and exit status 4."""
    try:
        yield
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    if ACCEPTANCE in config.stash:
        config.stash[ACCEPTANCE].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[ACCEPTANCE].header()


# First of all, so that node ids begin with the board: the scheduler goes by that.
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = [name for name in PARAMETERS if _is_ours(metafunc, name)]
    if "board" not in wanted:
        return
    plan = metafunc.config.stash[ACCEPTANCE].plan
    try:
        plan.parametrize(metafunc, wanted)
    except UsageFault as fault:
        if hasattr(metafunc.config, "workerinput"):
            # All that a worker can tell its controller.
            raise pytest.Collector.CollectError(str(fault)) from None
        plan.fault = fault  # ends the run as soon as all is collected
        metafunc.parametrize(wanted, [], indirect=True)


def _is_ours(metafunc: pytest.Metafunc, name: str) -> bool:
    """Whether a test asks for our fixture, not for its own of the same name."""
    # pytest offers no public way from a test to the fixtures it will get.
    found = metafunc._arg2fixturedefs.get(name)
    return found is not None and found[-1].func.__module__ == FIXTURES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Checks run board by board in the order of the requirements."""
    items.sort(key=config.stash[ACCEPTANCE].plan.order)


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        items[0].config.stash[ACCEPTANCE].plan.deselected(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    acceptance = session.config.stash[ACCEPTANCE]
    acceptance.plan.collected(session.items)
    if not hasattr(session.config, "workerinput"):
        with _usage_errors():
            if acceptance.plan.fault:
                raise acceptance.plan.fault
            acceptance.selection.prove(acceptance.plan.boards)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """One board, one worker; other tests are spread as usual."""
    boards = config.stash[ACCEPTANCE].selection.names
    return BoardScheduling(config, log, boards) if boards else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    acceptance = node.config.stash[ACCEPTANCE]
    node.workerinput["run_folder"] = str(acceptance.run.path)
    node.workerinput["boards"] = list(acceptance.selection.names)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """The controller collects nothing itself; it proves what its workers found."""
    selection = node.config.stash[ACCEPTANCE].selection
    with _usage_errors():
        selection.prove(filter(None, (board_of(i, selection.names) for i in ids)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.config.stash[ACCEPTANCE].begin(item)


# Last of the wrappers, which is the innermost: a second attempt has around it what
# the first one had, such as the capture of output.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a check again, once, after what was not the board's doing."""
    acceptance = item.config.stash[ACCEPTANCE]
    check = acceptance.plan.checks.get(item.nodeid)
    if check is None:
        return (yield)
    try:
        with check.ending():
            return (yield)
    except Exception as error:
        if not acceptance.retries(check, error):
            raise
    with check.ending():
        return item.runtest()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.config.stash[ACCEPTANCE].note(item, call, report)
    return report


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    match getattr(report, "check_status", None):
        case "INCONCLUSIVE":
            return "inconclusive", "I", ("INCONCLUSIVE", {"yellow": True})
        case "MISS":
            return "missing", "M", ("MISS", {"yellow": True})
        case "ERROR":
            return "error", "E", ("ERROR", {"red": True})
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the controller decides
    acceptance = session.config.stash[ACCEPTANCE]
    try:
        release = acceptance.finish()
    except HarnessError as error:
        print(f"ERROR: {error}", file=sys.stderr)
        status = INFRASTRUCTURE
    else:
        status = release.exit_status if release else GO
    # pytest's own troubles (interrupted, internal error, usage) stay what they are,
    # and tests that failed beside the checks are not made good by a GO.
    if status and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = status


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.config.stash[ACCEPTANCE].summary(terminalreporter)

"""The pytest plugin: boards as parameters, checks as records, a verdict at the end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from harness.acceptance import ACCEPTANCE
from harness.acceptance import Acceptance
from harness.checks import as_verdict
from harness.errors import UsageFault
from harness.fixtures import *  # noqa: F403 - the suites' fixtures are part of us
from harness.scheduler import BoardScheduling


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
    try:
        config.stash[ACCEPTANCE] = Acceptance(config)
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None


def pytest_unconfigure(config: pytest.Config) -> None:
    if ACCEPTANCE in config.stash:
        config.stash[ACCEPTANCE].close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash[ACCEPTANCE].header()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "board" in metafunc.fixturenames:
        try:
            metafunc.config.stash[ACCEPTANCE].parametrize(metafunc)
        except UsageFault as fault:
            pytest.exit(str(fault), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Checks run board by board in the order of the requirements."""
    items.sort(key=config.stash[ACCEPTANCE].order)


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        items[0].config.stash[ACCEPTANCE].deselected(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[ACCEPTANCE].plan(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """One board, one worker; other tests are spread as usual."""
    boards = config.stash[ACCEPTANCE].boards
    return BoardScheduling(config, log, list(boards)) if boards else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["run_folder"] = str(node.config.stash[ACCEPTANCE].run.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a check again, once, after what was not the board's doing."""
    acceptance = item.config.stash[ACCEPTANCE]
    check = acceptance.checks.get(item.nodeid)
    if check is None:
        return (yield)
    try:
        return (yield)
    except Exception as error:
        if not acceptance.retries(check, error):
            raise as_verdict(error) from error
    try:
        return item.runtest()
    except Exception as error:
        raise as_verdict(error) from error


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
    status = getattr(report, "check_status", None)
    if status == "INCONCLUSIVE":
        return "inconclusive", "I", ("INCONCLUSIVE", {"yellow": True})
    if status == "MISS":
        return "missing", "M", ("MISS", {"yellow": True})
    return None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the controller decides
    acceptance = session.config.stash[ACCEPTANCE]
    release = acceptance.finish()
    # pytest's own troubles (interrupted, internal error, usage) stay what they are.
    if release is not None and exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    ):
        session.exitstatus = release.exit_status


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.config.stash[ACCEPTANCE].summary(terminalreporter)

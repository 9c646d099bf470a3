"""Runs that are killed, cut or stopped in the middle: clear ends, a free board."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from inner_run import Ended
from inner_run import Inner
from inner_run import descendants
from inner_run import real
from inner_run import simulated
from inner_run import wait_until

from harness.boards.inventory import Inventory
from harness.boards.lease import Lease
from harness.errors import LeaseHeld
from harness.evidence import Check
from harness.evidence import Planned
from harness.evidence import RunFolder
from harness.hosts import open_host


# How long a board may stay held by a run that was killed.
FREE_WITHIN_S = 5.0

COMMAND = [sys.executable, "-c", "from harness.cli import main; main()"]

SUITE = """
import time
from pathlib import Path

import pytest

@pytest.mark.requirement("R10")
def test_first(device, judge):
    judge.equal(1, 1)

@pytest.mark.requirement("R11")
def test_middle(device, brief, judge):
    Path("middle").touch()
    while not Path("go").exists():
        device.fresh().score(brief.few(1, 2))
    device.fresh().score(brief.few(1, 2))
    judge.equal(1, 1)

@pytest.mark.requirement("R12")
def test_last(device, judge):
    judge.equal(1, 1)

@pytest.mark.requirement("R91")
def test_control(device, judge):
    judge.found_wrong("doubled", lambda inner: inner.equal(1, 2))
"""


def inner(folder: Path, boards: str) -> Inner:
    """A folder whose second check runs until there is a file `go`."""
    made = Inner(folder)
    made.write("boards.toml", boards)
    made.write("test_it.py", SUITE)
    return made


def reach_middle(inner: Inner, process: subprocess.Popen[str]) -> None:
    """Wait until the second check runs."""

    def there() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return (inner.folder / "middle").exists()

    wait_until(there, "the second check")


def running(commands: list[psutil.Process], word: str) -> psutil.Process:
    """The process whose command line has this word."""
    [found] = [one for one in commands if word in one.cmdline()]
    return found


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether they all ended, without being told to, within the board's patience."""
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


@dataclass(frozen=True)
class Lab:
    """A board that outlives runs, reached over SSH as hardware is."""

    server: psutil.Process
    entry: str

    def commands(self) -> list[psutil.Process]:
        """Everything that runs on it."""
        return descendants(self.server.pid)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """`harness simulate`, started as a user does."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "boards.toml").write_text(simulated("sim-1"))
    process = subprocess.Popen(
        [*COMMAND, "simulate", "sim-1", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        keys = ("identity", "known_hosts", "workdir")
        entry = real("lab-1", told["host"], **{k: f'"{told[k]}"' for k in keys})
        yield Lab(psutil.Process(told["process"]), entry)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def lease_of(inner: Inner) -> Lease:
    """A lease of somebody else on the board."""
    [board] = Inventory.load(inner.folder / "boards.toml").boards
    return Lease(open_host(board), board.workdir, "somebody else", queue=0.1)


def test_a_killed_probe_is_started_again(tmp_path: Path, lab: Lab) -> None:
    made = inner(tmp_path, lab.entry)
    with made.running("-m", "board", "-q") as process:
        reach_middle(made, process)
        with pytest.raises(LeaseHeld):
            lease_of(made).acquire()
        running(lab.commands(), "probes.bm1688").kill()
        made.write("go", "")
        ended = made.ended(process)
    # Software that ended once is asked again, and is not accepted.
    assert ended.status == 12, ended.output
    assert set(ended.statuses.values()) == {"PASS"}
    [retry] = ended.signoff["retries"]
    assert retry["attempts"] == ["ERROR", "PASS"]
    assert "[runtime-died] lab-1" in retry["reason"]
    assert "SIGKILL" in retry["reason"] or "signal 9" in retry["reason"]


def test_a_killed_run_frees_the_board(tmp_path: Path, lab: Lab) -> None:
    made = inner(tmp_path, lab.entry)
    with made.running("-m", "board", "-q") as process:
        reach_middle(made, process)
        commands = lab.commands()
        process.kill()
        killed = time.monotonic()
        lease = lease_of(made)

        def free() -> bool:
            try:
                lease.acquire()
            except LeaseHeld:
                return False
            return True

        wait_until(free, "the lease", FREE_WITHIN_S)
        assert time.monotonic() - killed < FREE_WITHIN_S
        lease.release()
        assert all_gone(commands)
    [folder] = (tmp_path / "reports").iterdir()
    records = RunFolder(folder).records()
    assert sum(isinstance(record, Planned) for record in records) == 4
    [check] = [record for record in records if isinstance(record, Check)]
    assert check.nodeid == "test_it.py::test_first[lab-1]" and check.status == "PASS"
    made.write("go", "")
    assert made.run("-m", "board", "-q").status == 0


def stopped(made: Inner, process: subprocess.Popen[str]) -> Ended:
    """A run under way that is to end by itself, with everything it started."""
    family = descendants(process.pid)
    boards = [Path(b) for p in family for b in _roots(p)]
    assert boards
    ended = made.ended(process)
    assert all_gone(family), "orphans"
    assert not any(root.exists() for root in boards), "a board's folder was left"
    assert "Traceback" not in ended.output
    return ended


def _roots(process: psutil.Process) -> list[str]:
    line = process.cmdline()
    return [line[line.index("--root") + 1]] if "--root" in line else []


def test_a_board_that_dies_ends_its_checks(tmp_path: Path) -> None:
    made = inner(tmp_path, simulated())
    with made.running("-q") as process:
        reach_middle(made, process)
        farm = running(descendants(process.pid), "harness.simulator.farm")
        family = farm.children(recursive=True)
        farm.kill()
        ended = made.ended(process)
        assert all_gone(family), "commands outlived their board"
    assert ended.status == 12, ended.output
    assert ended.statuses == {
        "test_first": "PASS",
        "test_middle": "ERROR",
        "test_last": "MISS",
        "test_control": "MISS",
    }
    assert "sim-1" in ended.check("test_middle")["reason"]
    assert "[board-away] sim-1" in ended.check("test_last")["reason"]
    assert "Traceback" not in ended.output


@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["alone", "workers"])
def test_ctrl_c_leaves_a_report(tmp_path: Path, workers: tuple[str, ...]) -> None:
    made = inner(tmp_path, simulated())
    with made.running("-q", *workers) as process:
        reach_middle(made, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        ended = stopped(made, process)
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
    assert ended.signoff["verdict"] == "INCONCLUSIVE"
    missing = {row["nodeid"].split("::")[1] for row in ended.signoff["missing"]}
    assert {"test_last[sim-1]", "test_control[sim-1]"} <= missing


def test_ctrl_c_of_the_command(tmp_path: Path) -> None:
    """`harness run` waits for the report that pytest leaves."""
    made = Inner(tmp_path)
    made.write("boards.toml", simulated())
    process = subprocess.Popen(
        [
            *COMMAND,
            "run",
            f"--boards={tmp_path / 'boards.toml'}",
            f"--report={tmp_path / 'reports'}",
        ],
        env=made.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        folder = tmp_path / "reports"
        wait_until(lambda: list(folder.glob("*/records-main.jsonl")), "records")
        wait_until(lambda: "harness.simulator.farm" in _commands(process), "a board")
        os.killpg(process.pid, signal.SIGINT)
        ended = stopped(made, process)
    finally:
        process.kill()
    assert ended.status == pytest.ExitCode.INTERRUPTED, ended.output
    assert ended.signoff["verdict"] == "INCONCLUSIVE"


def _commands(process: subprocess.Popen[str]) -> str:
    return " ".join(word for p in descendants(process.pid) for word in p.cmdline())

"""How checks on a board end: statuses, attempts, exit statuses, Allure."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inner_run import ADAPTERS
from inner_run import Ended
from inner_run import Inner
from inner_run import real
from inner_run import simulated
from ssh_server import free_port
from ssh_server import keygen
from ssh_server import serving


HEAD = """
import os
from pathlib import Path

import pytest

from harness.errors import CommandFailed
from harness.errors import RuntimeDied
from harness.verdict import Inconclusive


attempts = []


def requirement(name):
    return pytest.mark.requirement(name)
"""

# One check for each way to end.
MIXED = (
    HEAD
    + """
@requirement("R10")
def test_right(device, adapter, judge):
    judge.equal(1, 1, name="one")

@requirement("R11")
def test_wrong(device, judge):
    judge.equal(1, 2, name="two")

@requirement("R12")
def test_bare_assertion(device, judge):
    judge.equal(1, 1)
    assert [1] == [2], "nothing fits"

@requirement("R13")
def test_refused(device, judge):
    device.apply(Path("damaged"))

@requirement("R14")
def test_undecided(device, judge):
    raise Inconclusive("too noisy to say")

@requirement("R15")
def test_skipped(device, judge):
    pytest.skip("this platform has none")

@requirement("R16")
def test_lab_twice(device, judge):
    raise CommandFailed("the switch rebooted", where="sim-1", cure="wait")

@requirement("R17")
def test_lab_once(device, adapter, judge):
    attempts.append(1)
    judge.equal(device.reported(), {}, name="reported at the start")
    device.apply(adapter.folder)
    if len(attempts) == 1:
        raise CommandFailed("the switch rebooted", where="sim-1", cure="wait")

@requirement("R18")
def test_dies_twice(device, judge):
    raise RuntimeDied("the program ended", where="sim-1", cure="restart it")

@requirement("R20")
def test_our_bug(device, judge):
    judge.equal(1, 1)
    {}["nothing"]

@requirement("R21")
def test_judges_nothing(device, judge):
    pass

@requirement("R22")
def test_hides_a_fail(device, judge):
    try:
        judge.equal(1, 2, name="hidden")
    except AssertionError:
        pass
    judge.equal(1, 1)

@pytest.fixture
def broken():
    assert False, "no fixture of a check may fail it"

@requirement("R30")
def test_broken_fixture(device, judge, broken):
    judge.equal(1, 1)

@pytest.fixture
def leaking():
    yield
    raise OSError("cannot clean up")

@requirement("R40")
def test_trouble_afterwards(device, judge, leaking):
    judge.equal(1, 1)

@requirement("R41")
def test_wrong_and_trouble_afterwards(device, judge, leaking):
    judge.equal(1, 2)

@requirement("R91")
def test_missed_control(device, judge):
    judge.found_wrong("scale doubled", lambda inner: inner.equal(1, 1))

def test_plain():
    pass
"""
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run with every kind of end, watched by Allure."""
    inner = Inner(tmp_path_factory.mktemp("mixed"))
    adapters = json.dumps([str(ADAPTERS / "r4-qv")])
    inner.write("boards.toml", simulated(adapters=adapters))
    inner.write("test_it.py", MIXED)
    damaged = inner.folder / "damaged"
    shutil.copytree(ADAPTERS / "r4-qv", damaged)
    (damaged / "adapter_model.safetensors").write_bytes(b"")
    return inner.run("--alluredir=allure")


class TestStatuses:
    def test_each_end_has_its_status(self, mixed: Ended) -> None:
        assert mixed.statuses == {
            "test_right": "PASS",
            "test_wrong": "FAIL",
            "test_bare_assertion": "FAIL",
            "test_refused": "FAIL",
            "test_undecided": "INCONCLUSIVE",
            "test_skipped": "SKIP",
            "test_lab_twice": "ERROR",
            "test_lab_once": "PASS",
            "test_dies_twice": "FAIL",
            "test_our_bug": "ERROR",
            "test_judges_nothing": "ERROR",
            "test_hides_a_fail": "FAIL",
            "test_broken_fixture": "ERROR",
            "test_trouble_afterwards": "ERROR",
            "test_wrong_and_trouble_afterwards": "FAIL",
            "test_missed_control": "INCONCLUSIVE",
        }

    def test_a_fail_outweighs_everything(self, mixed: Ended) -> None:
        assert mixed.status == 1
        assert mixed.signoff["verdict"] == "NO-GO"
        assert mixed.signoff["reason"].startswith("R11 failed on sim-1: two")

    def test_reasons(self, mixed: Ended) -> None:
        reasons = {
            "test_bare_assertion": "nothing fits",
            "test_undecided": "too noisy to say",
            "test_skipped": "this platform has none",
            "test_our_bug": "nothing",
            "test_judges_nothing": "judged nothing",
            "test_dies_twice": "again: [runtime-died] sim-1: the program ended",
            "test_hides_a_fail": "hidden",
            "test_trouble_afterwards": "cannot clean up",
        }
        for name, reason in reasons.items():
            assert reason in mixed.check(name)["reason"], name
        refused = mixed.check("test_refused")["reason"]
        assert "[runtime-refused] sim-1" in refused and "safetensors" in refused

    def test_trouble_of_the_lab_is_tried_twice(self, mixed: Ended) -> None:
        tried = {
            row["nodeid"].partition("::")[2].partition("[")[0]: row["attempts"]
            for row in mixed.signoff["retries"]
        }
        assert tried == {
            "test_lab_twice": ["ERROR", "ERROR"],
            "test_lab_once": ["ERROR", "PASS"],
            "test_dies_twice": ["ERROR", "FAIL"],
        }

    def test_terminal(self, mixed: Ended) -> None:
        counts = mixed.output.splitlines()[-1]
        # Six checks, and the trouble after one that had failed already.
        for part in ("6 failed", "6 errors", "2 inconclusive", "1 skipped"):
            assert part in counts, counts
        assert "[command-failed] sim-1: the switch rebooted - wait" in mixed.output
        assert "CommandFailed(" not in mixed.output, "a traceback of our own error"

    def test_page_is_derived_from_the_records(self, mixed: Ended) -> None:
        from harness.report import verify

        assert verify(mixed.folder / "reports" / "latest") == []


@pytest.fixture
def results(mixed: Ended) -> dict[str, dict[str, Any]]:
    """Allure's results by test function."""
    found = [
        json.loads(path.read_text())
        for path in (mixed.folder / "allure").glob("*-result.json")
    ]
    return {result["name"].partition("[")[0]: result for result in found}


class TestAllure:
    def test_wrong_boards_are_failed_and_trouble_is_broken(
        self, results: dict[str, dict[str, Any]]
    ) -> None:
        statuses = {name: result["status"] for name, result in results.items()}
        assert statuses == {
            "test_plain": "passed",
            "test_right": "passed",
            "test_wrong": "failed",
            "test_bare_assertion": "failed",
            "test_refused": "failed",
            "test_undecided": "broken",
            "test_skipped": "skipped",
            "test_lab_twice": "broken",
            "test_lab_once": "passed",
            "test_dies_twice": "failed",
            "test_our_bug": "broken",
            "test_judges_nothing": "broken",
            "test_hides_a_fail": "failed",
            "test_broken_fixture": "failed",
            "test_trouble_afterwards": "broken",
            "test_wrong_and_trouble_afterwards": "failed",
            "test_missed_control": "broken",
        }

    def test_board_and_adapter_are_parameters(
        self, results: dict[str, dict[str, Any]]
    ) -> None:
        values = {p["name"]: p["value"] for p in results["test_right"]["parameters"]}
        assert values["board"] == "'sim-1'" and values["adapter"] == "'r4-qv'"

    def test_judgements_are_steps_with_numbers(
        self, results: dict[str, dict[str, Any]], mixed: Ended
    ) -> None:
        [step] = results["test_wrong"]["steps"]
        assert step["status"] == "failed" and step["name"].startswith("FAIL two: 1")
        [attachment] = step["attachments"]
        path = mixed.folder / "allure" / attachment["source"]
        assert json.loads(path.read_text())["limit"] == 2

    def test_what_was_tested(self, mixed: Ended) -> None:
        folder = mixed.folder / "allure"
        lines = (folder / "environment.properties").read_text().splitlines()
        assert "Verdict=NO-GO" in lines
        assert any(line.startswith("sim-1.versions.bmrt=") for line in lines)
        categories = json.loads((folder / "categories.json").read_text())
        assert categories


# What the variable CASE says, beside a control that is found.
CASES = (
    HEAD
    + """
CASE = os.environ["CASE"]

@requirement("R10")
def test_first(device, judge):
    judge.equal(1, 1)
    if CASE == "undecided":
        raise Inconclusive("too noisy to say")
    if CASE == "lab":
        raise CommandFailed("the switch rebooted", where="sim-1", cure="wait")

@requirement("R91")
def test_control(device, judge):
    blind = CASE == "blind"
    judge.found_wrong("doubled", lambda inner: inner.equal(1, 1 if blind else 2))

def test_plain():
    assert CASE != "plain"
"""
)


@pytest.fixture
def cases(tmp_path: Path) -> Inner:
    inner = Inner(tmp_path)
    inner.write("boards.toml", simulated())
    inner.write("test_it.py", CASES)
    return inner


@pytest.mark.parametrize(
    ("case", "arguments", "status", "verdict", "reason"),
    [
        ("sound", (), 0, "GO", "all 2 checks passed on sim-1"),
        ("sound", ("-k", "control"), 10, "INCONCLUSIVE", "partial run"),
        ("sound", ("test_it.py::test_control",), 10, "INCONCLUSIVE", "partial run"),
        ("undecided", (), 10, "INCONCLUSIVE", "too noisy"),
        ("blind", (), 11, "INVALID", "doubled, wrong on purpose"),
        ("lab", (), 12, "INCONCLUSIVE", "the switch rebooted"),
        ("plain", (), 1, "GO", "all 2 checks passed"),
    ],
)
def test_exit_status_is_the_verdict(
    cases: Inner,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    arguments: tuple[str, ...],
    status: int,
    verdict: str,
    reason: str,
) -> None:
    monkeypatch.setenv("CASE", case)
    ended = cases.run("-q", *arguments)
    assert ended.status == status, ended.output
    assert ended.signoff["verdict"] == verdict
    assert reason in ended.signoff["reason"]


AWAY = (
    HEAD
    + """
@requirement("R10")
def test_base(device, judge):
    judge.equal(1, 1)

@requirement("R11")
def test_loaded(device, adapter, judge):
    judge.equal(1, 1)
"""
)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_boards_that_are_away_are_one_miss_a_check(tmp_path: Path, silent: int) -> None:
    """Silent, closed, and another host key: all known within 30 s."""
    inner = Inner(tmp_path)
    inner.write("test_it.py", AWAY)
    keygen(tmp_path / "key")
    kind, key = (tmp_path / "key.pub").read_text().split()[:2]
    closed = free_port()
    with serving("asyncssh", tmp_path / "server") as server:
        known = "".join(
            f"[127.0.0.1]:{port} {kind} {key}\n"
            for port in (silent, closed, server.port)
        )
        inner.write("known_hosts", known)
        keys = {"identity": '"key"', "known_hosts": '"known_hosts"'}
        ports = {"lab-silent": silent, "lab-closed": closed, "lab-key": server.port}
        entries = [
            real(name, f"ssh://u@127.0.0.1:{port}", **keys)
            for name, port in ports.items()
        ]
        inner.write("boards.toml", "\n".join(entries))
        ended = inner.run("-m", "board", "-q")
    assert ended.status == 12, ended.output
    assert ended.seconds < 30
    misses = [(c["board"], c["status"]) for c in ended.signoff["checks"]]
    assert sorted(misses) == sorted(3 * [(name, "MISS") for name in ports])
    assert len(ended.signoff["missing"]) == ended.signoff["planned"] == 9
    reasons = {c["board"]: c["reason"] for c in ended.signoff["checks"]}
    assert "no SSH connection" in reasons["lab-silent"]
    assert "cannot connect" in reasons["lab-closed"]
    changed = reasons["lab-key"]
    assert "is not the key in" in changed and "ssh-keygen -R" in changed
    assert "Traceback" not in ended.output


def test_a_board_that_is_away_does_not_stop_the_others(tmp_path: Path) -> None:
    inner = Inner(tmp_path)
    inner.write("test_it.py", AWAY)
    keygen(tmp_path / "key")
    inner.write("known_hosts", "")
    lab = real(
        "lab-1",
        f"ssh://u@127.0.0.1:{free_port()}",
        identity='"key"',
        known_hosts='"known_hosts"',
    )
    inner.write("boards.toml", lab + simulated())
    ended = inner.run("-q", "--board=lab-1", "--board=sim-1")
    assert ended.status == 12, ended.output
    found = sorted((c["board"], c["status"]) for c in ended.signoff["checks"])
    assert found == 3 * [("lab-1", "MISS")] + 3 * [("sim-1", "PASS")]
    assert "no key of [127.0.0.1]" in ended.signoff["reason"]

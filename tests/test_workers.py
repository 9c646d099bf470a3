"""Runs on several workers: one board, one worker, and crashes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from inner_run import Ended
from inner_run import Inner
from inner_run import rk1828
from inner_run import simulated

from harness.scheduler import board_of


@pytest.mark.parametrize(
    ("nodeid", "board"),
    [
        ("t.py::test_a[sim-1]", "sim-1"),
        ("t.py::test_a[sim-1-r8-all]", "sim-1"),
        ("t.py::test_a[sim-1]@group", "sim-1"),
        ("t.py::test_a[sim-1-long-r8]", "sim-1-long"),
        ("t.py::test_a[prefill-sim-1]", None),
        ("t.py::test_a[sim-10]", None),
        ("t.py::test_a", None),
        ("t.py::sim-1", None),
    ],
)
def test_board_of_a_node_id(nodeid: str, board: str | None) -> None:
    assert board_of(nodeid, ["sim-1", "sim-1-long", "sim-2"]) == board


SUITE = """
import json
import os
import time
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def told(request):
    line = [request.node.nodeid, os.environ["PYTEST_XDIST_WORKER"]]
    with open(Path(__file__).with_name("workers.jsonl"), "a") as file:
        file.write(json.dumps(line) + "\\n")

@pytest.mark.requirement("R10")
@pytest.mark.parametrize("number", range(4))
def test_check(device, judge, board, number):
    if board == "sim-1" and number == 1:
        os._exit(1)
    judge.equal(1, 1)

@pytest.fixture(params=["prefill", "decode"])
def graph(request):
    return request.param

@pytest.mark.requirement("R91")
@pytest.mark.parametrize("number", range(1))
def test_control(device, graph, adapter, number, judge):
    judge.found_wrong("doubled", lambda inner: inner.equal(1, 2))

@pytest.mark.parametrize("number", range(24))
def test_plain(number):
    time.sleep(0.2)
"""


class TestCrash:
    """Two boards and plain tests on two workers; a check kills its worker."""

    @pytest.fixture(scope="class")
    @classmethod
    def ended(cls, tmp_path_factory: pytest.TempPathFactory) -> Ended:
        inner = Inner(tmp_path_factory.mktemp("crash"))
        inner.write("boards.toml", simulated("sim-1") + simulated("sim-2"))
        inner.write("test_it.py", SUITE)
        return inner.run("-n2", "-q")

    @pytest.fixture
    def workers(self, ended: Ended) -> dict[str, list[str]]:
        """Workers, in order and without repeats, by board or `plain`."""
        found: dict[str, list[str]] = defaultdict(list)
        for line in (ended.folder / "workers.jsonl").read_text().splitlines():
            nodeid, worker = json.loads(line)
            group = board_of(nodeid, ["sim-1", "sim-2"]) or "plain"
            if worker not in found[group]:
                found[group].append(worker)
        return found

    def test_one_check_is_missing_and_the_rest_ran(self, ended: Ended) -> None:
        assert ended.status == 12, ended.output
        [missing] = ended.signoff["missing"]
        assert missing["nodeid"] == "test_it.py::test_check[sim-1-1]"
        assert ended.signoff["counts"] == {"MISS": 1, "PASS": 15}
        assert "crashed while running 'test_it.py::test_check[sim-1-1]'" in ended.output
        assert "39 passed" in ended.output

    def test_node_ids_begin_with_the_board(self, ended: Ended) -> None:
        controls = [c["nodeid"] for c in ended.signoff["checks"] if c["adapter"]]
        assert len(controls) == 8
        assert all("[sim-" in nodeid for nodeid in controls), controls

    def test_a_board_stays_on_one_worker(self, workers: dict[str, list[str]]) -> None:
        assert len(workers["sim-2"]) == 1
        assert len(workers["sim-1"]) == 2, "the second takes over after the crash"

    def test_plain_tests_are_spread(self, workers: dict[str, list[str]]) -> None:
        assert len(workers["plain"]) > 1


def test_workers_take_the_boards_that_a_fault_belongs_to(tmp_path: Path) -> None:
    inner = Inner(tmp_path)
    inner.write("boards.toml", simulated("sim-1") + rk1828("sim-2"))
    inner.write("test_it.py", SUITE)
    ended = inner.run("-n2", "-q", "--fault=session-leak", "-k", "test_check")
    assert ended.status == 10, ended.output
    assert ended.signoff["boards"].keys() == {"sim-2"}
    assert ended.signoff["counts"] == {"PASS": 4} and ended.signoff["missing"] == []
    assert ended.signoff["environment"]["sim-2"]["fault"] == "session-leak"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"golden": '"nosuch"'}, "nosuch/golden.json: cannot read"),
        ({"adapters": '["nosuch"]'}, "no adapter_config.json in"),
    ],
    ids=["golden", "adapter"],
)
def test_a_mistake_is_one_line(tmp_path: Path, keys: dict[str, str], says: str) -> None:
    inner = Inner(tmp_path)
    inner.write("boards.toml", simulated(**keys))
    inner.write("test_it.py", SUITE)
    ended = inner.run("-n2", "-q")
    assert ended.status == 4, ended.output
    assert says in ended.output and "Traceback" not in ended.output
    assert "INTERNALERROR" not in ended.output
    assert not (inner.folder / "reports").exists()

"""Records survive crashes, and what is no record of ours is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from harness.errors import UsageFault
from harness.evidence import AdapterFacts
from harness.evidence import Check
from harness.evidence import Deselected
from harness.evidence import Environment
from harness.evidence import Judged
from harness.evidence import Planned
from harness.evidence import Run
from harness.evidence import RunFolder
from harness.evidence import Status
from harness.evidence.records import from_json
from harness.evidence.records import to_json
from harness.verdict import Budget
from harness.verdict import Judge
from harness.verdict import Judgement
from harness.verdict import RepeatFloor


ROOT = Path(__file__).resolve().parents[1]
ID = "suites/test_states.py::test_base[sim-r8]"
WHERE = (ID, "sim", "r8", ("R10", "R11"))


def judgement(value: int = 1) -> Judgement:
    kept: list[Judgement] = []
    judge = Judge(
        kept.append,
        budget_share=Budget(1).share,
        floor=RepeatFloor(True, 3),
        theta=0.01,
    )
    judge.equal(value, value, name="count")
    return kept[0]


def one_of_each() -> list:
    return [
        Run("id", 1.5, ("harness", "run"), "0.1.0", "3.11", {"numpy": "2"}),
        Environment("sim", {"digest": "ab", "layers": 4}),
        AdapterFacts("sim", "r8", "cd", {"rank": 8, "scale": 2.0}),
        Planned(*WHERE, title="Base equals the reference"),
        Deselected("sim", 3),
        Judged(*WHERE, attempt=1, judgement=judgement()),
        Check(*WHERE, 1, Status.PASS, "", 0.25, 2.5, {"observed": "0" * 64}),
    ]


class TestRoundTrip:
    @pytest.mark.parametrize("record", one_of_each(), ids=lambda r: r.kind)
    def test_each_kind(self, record):
        assert from_json(json.loads(json.dumps(to_json(record)))) == record

    @given(
        text=st.text(max_size=30),
        seconds=st.floats(0, 1e9),
        status=st.sampled_from(Status),
    )
    @settings(max_examples=50, deadline=None)
    def test_any_text(self, text, seconds, status):
        record = Check(text, text, text, (text,), 1, status, text, seconds, seconds)
        assert from_json(json.loads(json.dumps(to_json(record)))) == record

    def test_through_a_folder(self, tmp_path):
        run = RunFolder(tmp_path)
        for record in one_of_each():
            run.append(record)
        run.close()
        assert RunFolder(tmp_path).records() == one_of_each()


class TestRefused:
    @pytest.mark.parametrize(
        "change",
        [
            {"schema": 99},
            {"record": "gossip"},
            {"status": "FINE"},
            {"attempt": "1"},
            {"attempt": True},
            {"seconds": None},
            {"nodeid": 5},
            {"requirements": 3},
            {"arrays": []},
            {"more": 1},
        ],
        ids=str,
    )
    def test_a_line_that_is_no_record(self, tmp_path, change):
        item = to_json(one_of_each()[-1]) | change
        (tmp_path / "records.jsonl").write_text(json.dumps(item) + "\n")
        with pytest.raises(UsageFault, match="not a record") as caught:
            RunFolder(tmp_path).records()
        assert "records.jsonl:1" in caught.value.where

    @pytest.mark.parametrize(
        "line", ["{", "[]", "null", "1", '{"record": NaN}', "\x00"]
    )
    def test_other_lines(self, tmp_path, line):
        (tmp_path / "records.jsonl").write_text(line + "\n")
        with pytest.raises(UsageFault, match="not a record"):
            RunFolder(tmp_path).records()

    def test_numbers_that_are_none(self, tmp_path):
        text = json.dumps(to_json(one_of_each()[-1])).replace("0.25", "NaN")
        (tmp_path / "records.jsonl").write_text(text + "\n")
        with pytest.raises(UsageFault, match="NaN is no number"):
            RunFolder(tmp_path).records()

    def test_a_line_without_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr("harness.evidence.store.MOST_LINE", 1000)
        (tmp_path / "records.jsonl").write_bytes(b"x" * 5000)
        with pytest.raises(UsageFault, match="too long"):
            RunFolder(tmp_path).records()

    def test_deep_nesting(self, tmp_path):
        (tmp_path / "records.jsonl").write_text("[" * 200_000 + "\n")
        with pytest.raises(UsageFault, match="not a record"):
            RunFolder(tmp_path).records()

    def test_no_run_folder(self, tmp_path):
        with pytest.raises(UsageFault, match=r"no records\.jsonl"):
            RunFolder(tmp_path).records()


class TestMerge:
    def test_plans_are_kept_once_and_judgements_each(self, tmp_path):
        plan = Planned(*WHERE, title="t")
        for name in ("main", "gw0", "gw1"):
            run = RunFolder(tmp_path, name)
            run.append(plan)
            run.close()
        run = RunFolder(tmp_path, "gw2")
        twice = Judged(*WHERE, attempt=1, judgement=judgement())
        run.append(twice)
        run.append(twice)
        run.close()
        main = RunFolder(tmp_path)
        assert main.merge() == []
        assert main.records() == [plan, twice, twice]
        assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]

    def test_a_second_merge_adds(self, tmp_path):
        run = RunFolder(tmp_path)
        for number in (1, 2):
            run.append(Environment(f"board{number}", {}))
            run.merge()
        assert [r.board for r in run.records()] == ["board1", "board2"]

    def test_a_cut_line_is_told_and_left_out(self, tmp_path):
        run = RunFolder(tmp_path, "gw0")
        run.append(Environment("sim", {}))
        run.close()
        path = tmp_path / "records-gw0.jsonl"
        path.write_bytes(path.read_bytes() + b'{"record": "check", "no')
        again = RunFolder(tmp_path, "gw0")  # the next process of the same name
        again.append(Environment("other", {}))
        again.close()
        main = RunFolder(tmp_path)
        assert main.merge() == ["records-gw0.jsonl: its last line was cut"]
        assert {r.board for r in main.records()} == {"sim", "other"}

    @given(cut=st.integers(0, 2000))
    @settings(max_examples=40, deadline=None)
    def test_cut_anywhere_loses_one_line_at_most(self, tmp_path_factory, cut):
        folder = tmp_path_factory.mktemp("run")
        run = RunFolder(folder, "gw0")
        for number in range(6):
            run.append(Environment(f"b{number}", {"x": "y" * 50}))
        run.close()
        path = folder / "records-gw0.jsonl"
        content = path.read_bytes()[:cut]
        path.write_bytes(content)
        run.merge()
        whole = content.count(b"\n")
        assert [r.board for r in run.records()] == [f"b{i}" for i in range(whole)]


WRITER = """
import sys
from pathlib import Path
from harness.evidence import Environment, RunFolder

run = RunFolder(Path(sys.argv[1]), sys.argv[2])
number = 0
while True:
    run.append(Environment(f"b{number}", {"text": "x" * 20000}))
    number += 1
    if number == 20:
        print("busy", flush=True)
"""


def test_killed_writers_lose_at_most_a_line(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), f"gw{i}"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for i in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == b"busy\n"
        time.sleep(0.05)
    finally:
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(10)
            writer.stdout.close()
    main = RunFolder(tmp_path)
    written = {}
    for name in ("gw0", "gw1"):
        lines = (tmp_path / f"records-{name}.jsonl").read_bytes().split(b"\n")
        written[name] = len(lines) - 1
        assert written[name] >= 20
    main.merge()
    found = [int(r.board[1:]) for r in main.records()]
    assert sorted(set(found)) == list(range(max(written.values())))


class TestArrays:
    def test_kept_by_content(self, tmp_path):
        run = RunFolder(tmp_path)
        logits = np.arange(12, dtype=np.float32).reshape(3, 4)
        digest = run.keep(logits)
        assert run.keep(logits.copy()) == digest
        assert np.array_equal(run.array(digest), logits)
        assert len(list((tmp_path / "arrays").iterdir())) == 1

    def test_a_changed_one_is_refused(self, tmp_path):
        run = RunFolder(tmp_path)
        digest = run.keep(np.zeros(3))
        path = tmp_path / "arrays" / f"{digest}.npy"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
        with pytest.raises(UsageFault, match="changed"):
            run.array(digest)

    def test_objects_are_never_read_or_written(self, tmp_path):
        with pytest.raises(ValueError, match="Object arrays"):
            RunFolder(tmp_path).keep(np.array([{}], dtype=object))

    @pytest.mark.parametrize("digest", ["", "../../etc/passwd", "0" * 64, "A" * 64])
    def test_other_names(self, tmp_path, digest):
        with pytest.raises(UsageFault, match="no such array"):
            RunFolder(tmp_path).array(digest)

    def test_too_large(self, tmp_path, monkeypatch):
        run = RunFolder(tmp_path)
        digest = run.keep(np.zeros(1000))
        monkeypatch.setattr("harness.evidence.store.MOST_ARRAY", 100)
        with pytest.raises(UsageFault, match="too large"):
            run.array(digest)

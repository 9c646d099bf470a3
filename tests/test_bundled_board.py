"""A board that takes adapters in bundles: made ahead, over the checks that follow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from inner_run import ADAPTERS
from inner_run import Inner
from inner_run import rk1828


SUITE = """
import pytest

@pytest.mark.requirement("R11")
def test_adapter(device, adapter, judge):
    device.apply(adapter.folder)
    judge.equal(device.reported(), {adapter.name: 1.0}, name="reported")

@pytest.mark.requirement("R20")
def test_copy(device, adapter, copy, brief, judge):
    device.apply(adapter.folder)
    expected = device.fresh().score(brief.few(1, 2))
    device.apply(copy)
    judge.same(expected, device.fresh().score(brief.few(1, 2)))

@pytest.mark.requirement("R30")
def test_lone(device, lone, judge):
    device.apply(lone)
    judge.equal(device.reported(), {lone.name: 1.0}, name="reported")

@pytest.mark.requirement("R62")
def test_crowd(device, crowd, judge):
    names = [device.load(folder) for folder in crowd]
    judge.equal(len(set(names)), 32, name="loaded together")

@pytest.mark.requirement("R66")
def test_forged_meanwhile(device, adapter, forged, judge):
    from harness.artifacts import forge

    made = forge.amplified(adapter, 2.0, forged("louder"))
    device.apply(made)
    judge.equal(device.reported(), {made.name: 1.0}, name="reported")

@pytest.mark.requirement("R91")
def test_control(device, judge):
    judge.found_wrong("two", lambda inner: inner.equal(1, 2))
"""
ONE = json.dumps([str(ADAPTERS / "r4-qv")])


def test_bundles_are_made_for_many_checks(tmp_path: Path) -> None:
    inner = Inner(tmp_path)
    inner.write("boards.toml", rk1828(adapters=ONE))
    inner.write("test_it.py", SUITE)
    ended = inner.run("-s")  # nobody keeps its progress away
    assert ended.status == 0, ended.output
    # The adapter under test is there from the start. Then it comes with a copy and a
    # single module; a crowd fills a bundle alone and has to make room in the end.
    made = re.findall(r"sim-1: a bundle of (\d+) adapters", ended.output)
    assert made == ["3", "32", "1"]


@pytest.mark.parametrize("command", ["no-such-tool", "{python} -c 'raise KeyError(7)'"])
def test_a_converter_that_is_no_good_is_no_fault_of_the_board(
    tmp_path: Path, command: str
) -> None:
    inner = Inner(tmp_path)
    inner.write("boards.toml", rk1828(adapters=ONE, bundle=f'"{command}"'))
    inner.write("test_it.py", SUITE)
    ended = inner.run("-q", "-k", "test_adapter")
    assert ended.status == 12, ended.output
    assert not {"FAIL", "PASS"} & set(ended.statuses.values())
    assert "\nTraceback" not in ended.output

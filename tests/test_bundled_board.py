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

from harness.artifacts import forge

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
def test_own_stock(device, adapter, forged, judge):
    made = forge.amplified(adapter, 2.0, forged("louder"))
    device.stock({made.name: made})
    device.apply(made)
    judge.equal(device.reported(), {made.name: 1.0}, name="reported")

@pytest.mark.requirement("R66")
def test_afterwards(device, adapter, judge):
    device.apply(adapter.folder)
    judge.equal(device.reported(), {adapter.name: 1.0}, name="reported")

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
    # The adapter under test is there from the start, for the repeat floor. Then it
    # comes with a copy and a single module. The check that stocks an adapter of its
    # own takes them away from the one that follows.
    made = re.findall(r"sim-1: a bundle of (\d+) adapters", ended.output)
    assert made == ["1", "3", "1"]


def test_a_suite_must_say_what_it_needs(tmp_path: Path) -> None:
    """A restart in the middle of a history would hide what a check looks for."""
    inner = Inner(tmp_path)
    inner.write("boards.toml", rk1828(adapters=ONE))
    text = SUITE.replace("    device.stock({made.name: made})\n", "")
    inner.write("test_it.py", text)
    ended = inner.run("-q", "-k", "test_own_stock")
    assert ended.status == 12, ended.output
    check = ended.check("test_own_stock")
    assert check["status"] == "ERROR" and "is not at hand" in check["reason"]


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

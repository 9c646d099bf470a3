"""Adapters that come in bundles (R30, R40, R62, R70)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge
from harness.errors import RuntimeRefused


# Reading a bundle of some MB takes a second; ten of silence are a hang. Making one
# reads the base as well: gigabytes.
LOADS_S, CONVERTS_S = 10.0, 300.0


@pytest.fixture(autouse=True)
def _bundles(device):
    if not device.capabilities.bundles:
        pytest.skip("this platform takes every adapter on its own")


@pytest.mark.requirement("R40")
def test_damaged_bundle_is_refused(device, adapter, brief, judge, forged):
    """A clear error in time; the software lives as base; a good bundle loads next."""
    base = device.fresh().score(brief)
    device.apply(adapter.folder)
    loaded = device.fresh().score(brief)
    good = device.supply.bundle.path
    device.restart()
    for damage, data in forge.damaged_files(good.read_bytes()):
        bad = forged(damage)
        bad.mkdir()
        file = bad / good.name
        file.write_bytes(data)
        there = device.supply.put(file)
        judge.refused(
            lambda there=there: device.runtime.load(there, adapter.name),
            name=f"bundle {damage}",
            within=LOADS_S,
        )
        judge.equal(device.reported(), {}, name=f"reported after {damage}")
        judge.same(base, device.fresh().score(brief), name=f"base after {damage}")
    device.apply(adapter.folder)
    judge.same(loaded, device.fresh().score(brief), name="a good bundle afterwards")


@pytest.mark.requirement("R62")
def test_one_adapter_too_many_is_refused(device, bench, crowd, brief, judge):
    """A bundle holds so many adapters and no more."""
    few = brief.first(1)
    device.apply(crowd[0])
    first = device.fresh().score(few)
    many = {folder.name: folder for folder in (*crowd, bench.kits.widest.folder)}
    judge.refused(
        lambda: device.stock(many),
        name=f"a bundle of {len(crowd) + 1}",
        within=CONVERTS_S,
    )
    device.apply(crowd[0])
    judge.same(first, device.fresh().score(few), name="the first one afterwards")


@pytest.mark.requirement("R30")
def test_new_content_without_a_restart(
    device, widest_adapter, stranger, brief, judge, forged
):
    """A bundle handed over from memory takes the place of the one before."""
    name = forged("same-name").name
    device.apply(stranger)
    expected = device.fresh().score(brief)
    device.stock({name: widest_adapter.folder})
    base = device.fresh().score(brief)
    device.apply(widest_adapter.folder, name=name)
    old = device.fresh().score(brief)
    try:
        device.renew({name: stranger})
    except RuntimeRefused as refusal:
        judge.note(f"refused: {refusal.cause}", name="a second initialisation")
        judge.same(old, device.fresh().score(brief), name="what was loaded stays")
        device.restart()
        return
    judge.equal(device.reported(), {}, name="reported after the renewal")
    judge.same(base, device.fresh().score(brief), name="base after the renewal")
    device.apply(stranger, name=name)
    judge.same(expected, device.fresh().score(brief), name="the new content")


@pytest.mark.requirement("R12", "R70")
def test_unload_takes_one_adapter_away(device, adapter, other, brief, judge):
    """It gives its memory back, leaves its neighbour alone, and can come again."""
    base = device.fresh().score(brief)
    device.apply(adapter.folder)
    loaded = device.fresh().score(brief)
    device.apply(other)
    neighbour = device.fresh().score(brief)
    device.clear()
    device.unload(adapter.name)
    without = device.runtime.memory()
    device.apply(other)
    judge.same(neighbour, device.fresh().score(brief), name="the neighbour")
    device.apply(adapter.folder)
    judge.same(loaded, device.fresh().score(brief), name="loaded again")
    taken = device.runtime.memory()
    judge.at_most(
        taken["free"] - without["free"],
        -1,
        unit="bytes",
        source="an adapter takes memory",
        name="change of free memory by a load",
    )
    device.unload(adapter.name)
    judge.equal(device.runtime.memory(), without, name="memory given back")
    judge.equal(device.reported(), {}, name="reported after it was taken in use")
    judge.same(base, device.fresh().score(brief), name="base after it was taken in use")
    device.apply(other)
    judge.same(neighbour, device.fresh().score(brief), name="the neighbour at last")
    device.unload(other.name)
    judge.same(base, device.fresh().score(brief), name="base without both")

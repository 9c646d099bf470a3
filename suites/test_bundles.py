"""Adapters that come in bundles (R12, R30, R40, R62)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge
from harness.errors import RuntimeRefused
from harness.golden import PromptSet


# Reading a bundle of some MB takes a second; ten of silence are a hang. Making one
# reads the base as well: gigabytes.
LOADS_S, CONVERTS_S = 10.0, 300.0


@pytest.fixture
def crowd(device, kits, widest_adapter):
    """As many different adapters as a context takes."""
    most = device.capabilities.max_adapters
    return [
        forge.rescaled(widest_adapter, 1 + (n + 1) / most).make(kits.new(f"crowd-{n}"))
        for n in range(most)
    ]


@pytest.fixture(autouse=True)
def _bundles(device):
    if not device.capabilities.bundles:
        pytest.skip("this platform takes every adapter on its own")


@pytest.mark.requirement("R40")
def test_damaged_bundle_is_refused(device, widest_adapter, brief, judge, forged):
    """A clear error in time; the software lives as base; a good bundle loads next.

    Whether a runtime looks at more than a bundle's structure nobody documents: what
    it does about changed values is said, not judged.
    """
    adapter = widest_adapter
    device.stock({adapter.name: adapter.folder})
    base = device.fresh().score(brief)
    device.apply(adapter.folder)
    loaded = device.fresh().score(brief)
    good = device.supply.bundle.path
    for damage in forge.damaged_files(good.read_bytes()):
        device.restart()  # one bundle a start, and none of these before
        bad = forged("damaged-bundle")
        bad.mkdir()
        file = bad / good.name
        file.write_bytes(damage.data)
        there = device.supply.put(file)

        def load(there=there):
            device.runtime.load(there, adapter.name)

        try:
            if damage.structural:
                judge.refused(load, name=f"bundle {damage.name}", within=LOADS_S)
            else:
                seen = judge.lives(load, f"bundle {damage.name}", within=LOADS_S)
                judge.note(seen.reason, name=f"bundle {damage.name}")
        finally:
            device.supply.drop(there)
        judge.equal(device.reported(), {}, name=f"reported after {damage.name}")
        judge.same(base, device.fresh().score(brief), name=f"base after {damage.name}")
    device.restart()
    device.apply(adapter.folder)
    judge.same(loaded, device.fresh().score(brief), name="a good bundle afterwards")


@pytest.mark.requirement("R62")
def test_capacity_of_adapters(device, crowd, brief, judge, given_back):
    """As many adapters as fit are loaded at once, and each one is itself."""
    few = brief.first(1)
    device.stock({folder.name: folder for folder in crowd})
    alone = {}
    for folder in (crowd[0], crowd[len(crowd) // 2], crowd[-1]):
        device.restart()
        device.apply(folder)
        alone[folder] = device.fresh().score(few)
    device.restart()
    device.clear()  # opens the session, whose KV cache takes memory as well
    free = device.runtime.memory()
    for folder in crowd:
        device.load(folder)
    before = None
    for folder in crowd:
        device.apply(folder)
        scores = device.fresh().score(few)
        if before is not None:
            judge.differs(before, scores, name=f"{folder.name} is another one")
        if folder in alone:
            judge.same(alone[folder], scores, name=f"{folder.name} among all")
        before = scores
    device.clear()
    for folder in crowd:
        device.unload(folder.name)
    given_back(free, device.runtime.memory())


@pytest.mark.requirement("R62")
def test_one_adapter_too_many_is_refused(device, crowd, widest_adapter, brief, judge):
    """A bundle holds so many adapters and no more."""
    few = brief.first(1)
    device.stock({folder.name: folder for folder in crowd})
    device.apply(crowd[0])
    first = device.fresh().score(few)
    many = {folder.name: folder for folder in (*crowd, widest_adapter.folder)}
    judge.refused(
        lambda: device.stock(many),
        name=f"a bundle of {len(many)}",
        within=CONVERTS_S,
    )
    device.apply(crowd[0])
    judge.same(first, device.fresh().score(few), name="the first one afterwards")


@pytest.mark.requirement("R30")
def test_new_content_without_a_restart(
    device, widest_adapter, poison, brief, judge, forged
):
    """A bundle handed over from memory takes the place of the one before."""
    name = forged("same-name").name
    device.apply(poison)
    expected = device.fresh().score(brief)
    device.stock({name: widest_adapter.folder})
    base = device.fresh().score(brief)
    device.apply(widest_adapter.folder, name=name)
    old = device.fresh().score(brief)
    judge.differs(old, expected, name="two contents")
    try:
        device.renew({name: poison})
    except RuntimeRefused as refusal:
        judge.note(f"refused: {refusal.cause}", name="a second initialisation")
        judge.same(old, device.fresh().score(brief), name="what was loaded stays")
        device.restart()
        return
    judge.equal(device.reported(), {}, name="reported after the renewal")
    judge.same(base, device.fresh().score(brief), name="base after the renewal")
    device.apply(poison, name=name)
    judge.same(expected, device.fresh().score(brief), name="the new content")


@pytest.mark.requirement("R12", "R62")
def test_unload_takes_one_adapter_away(
    device, adapter, other, lone, copy, brief, judge, given_back
):
    """It gives its memory back, leaves its neighbour alone, and can come again."""
    device.restart()  # nothing is loaded
    base = device.fresh().score(brief)
    before = device.runtime.memory()
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
    device.unload(adapter.name)
    given_back(without, device.runtime.memory())
    judge.equal(device.reported(), {}, name="reported after it was taken in use")
    judge.same(base, device.fresh().score(brief), name="base after it was taken in use")
    device.apply(other)
    judge.same(neighbour, device.fresh().score(brief), name="the neighbour at last")
    device.unload(other.name)
    given_back(before, device.runtime.memory())
    judge.same(base, device.fresh().score(brief), name="base without both")
    # A larger one in the place of a smaller one; in use by another session.
    device.load(lone)
    device.apply(copy)
    device.unload(lone.name)
    device.load(adapter.folder)
    judge.same(loaded, device.fresh().score(brief), name="beside what took a place")
    with device.beside() as user:
        user.apply(adapter.folder)
        user.fresh().score(brief.first(1))
        device.unload(adapter.name)
        alone = user.further().score(brief.first(1))
        expected = PromptSet(brief.prompts[:1])
        judge.same(base.on(expected), alone, name="unloaded while another used it")

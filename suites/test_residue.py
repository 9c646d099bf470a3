"""Nothing of the former adapter stays (R30)."""

from __future__ import annotations

import pytest

from harness.runtimes.audit import audit_slots


@pytest.mark.requirement("R30")
def test_smaller_after_larger_equals_fresh(
    device, adapter, poison, brief, judge, phase
):
    """A load over a larger, louder adapter is a load into an empty board."""
    device.apply(adapter.folder)
    fresh = device.fresh(phase).score(brief)
    device.clear()
    device.apply(poison)
    device.apply(adapter.folder)
    judge.same(fresh, device.fresh(phase).score(brief))


@pytest.mark.requirement("R30")
def test_fewer_modules_after_more_equals_fresh(device, lone, poison, brief, judge):
    """Modules that the new adapter lacks fall back to the base."""
    device.apply(lone)
    fresh = device.fresh().score(brief)
    device.clear()
    device.apply(poison)
    device.apply(lone)
    judge.same(fresh, device.fresh().score(brief))


@pytest.mark.requirement("R30")
def test_new_content_under_an_old_name(
    device, widest_adapter, poison, brief, judge, forged
):
    """A name means its newest content, also where nothing but the values is new."""
    name = forged("same-name").name
    device.apply(poison)
    expected = device.fresh().score(brief)
    device.stock({name: widest_adapter.folder})
    device.apply(widest_adapter.folder, name=name)
    old = device.fresh().score(brief)
    device.stock({name: poison})
    device.apply(poison, name=name)
    new = device.fresh().score(brief)
    judge.differs(old, new)
    judge.same(expected, new)


@pytest.mark.requirement("R30")
def test_slots_hold_the_exact_product(device, adapter, poison, judge):
    """Read back: padding exactly zero, values one rounding from B times the scale."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    device.apply(poison)
    device.apply(adapter.folder)
    found = audit_slots(device, adapter)
    judge.equal(found.padding, [], name="padding rows that are not zero")
    rule = f"values off by more than one unit of bf16 (rounding: {found.rounding})"
    judge.equal(found.values, [], name=rule)

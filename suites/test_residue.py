"""Nothing of the former adapter stays (R30)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge
from harness.runtimes.audit import audit_slots


# The former adapter is made large, so that what stays of it cannot hide.
POISON = 8.0


@pytest.mark.requirement("R30")
def test_smaller_after_larger_equals_fresh(
    device, adapter, widest_adapter, brief, judge, forged, phase
):
    """A load over a larger, louder adapter is a load into an empty board."""
    device.apply(adapter.folder)
    fresh = device.fresh(phase).score(brief)
    device.clear()
    device.apply(forge.amplified(widest_adapter, POISON, forged("poison")))
    device.apply(adapter.folder)
    judge.same(fresh, device.fresh(phase).score(brief))


@pytest.mark.requirement("R30")
def test_fewer_modules_after_more_equals_fresh(
    device, adapter, widest_adapter, brief, judge, forged
):
    """Modules that the new adapter lacks fall back to the base."""
    one = adapter.modules[len(adapter.modules) // 2]
    small = forge.only(adapter, one.path).make(forged("one-module"))
    device.apply(small)
    fresh = device.fresh().score(brief)
    device.clear()
    device.apply(forge.amplified(widest_adapter, POISON, forged("poison")))
    device.apply(small)
    judge.same(fresh, device.fresh().score(brief))


@pytest.mark.requirement("R30")
def test_new_content_under_an_old_name(device, adapter, forged, brief, judge):
    """A name means its newest content, also where nothing but the values is new."""
    newest = forge.foreign(adapter, forged("newest"))
    device.apply(newest)
    expected = device.fresh().score(brief)
    device.clear()
    device.apply(adapter.folder, name="same-name")
    old = device.fresh().score(brief)
    device.apply(newest, name="same-name")
    new = device.fresh().score(brief)
    judge.differs(old, new)
    judge.same(expected, new)


@pytest.mark.requirement("R30")
def test_slots_hold_the_exact_product(device, adapter, widest_adapter, judge, forged):
    """Read back: padding exactly zero, values one rounding from B times the scale."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    device.apply(forge.amplified(widest_adapter, POISON, forged("poison")))
    device.apply(adapter.folder)
    found = audit_slots(device, adapter)
    judge.equal(found.padding, [], name="padding rows that are not zero")
    rule = f"values off by more than one unit of bf16 (rounding: {found.rounding})"
    judge.equal(found.values, [], name=rule)

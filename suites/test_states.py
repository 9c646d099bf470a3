"""Base, loaded, cleared, reloaded: three states from an empty session (R10-R16)."""

from __future__ import annotations

import pytest


@pytest.mark.requirement("R10")
def test_base_equals_reference(device, phase, phase_prompts, base_reference, judge):
    """Without an adapter the board answers as the reference does."""
    judge.matches(device.fresh(phase).score(phase_prompts), base_reference)


@pytest.mark.requirement("R11")
def test_loaded_equals_reference(
    device, adapter, phase, brief, phase_prompts, reference, effect, judge
):
    """With the adapter the board answers as PEFT does: logits and top-k."""
    base = device.fresh(phase).score(brief)
    device.apply(adapter.folder)
    judge.differs(base, device.fresh(phase).score(brief), effect=effect)
    judge.matches(device.fresh(phase).score(phase_prompts), reference)


@pytest.mark.requirement("R12")
def test_cleared_equals_base(device, adapter, phase, brief, effect, judge):
    """After clear nothing of the adapter is left."""
    before = device.fresh(phase).score(brief)
    device.apply(adapter.folder)
    judge.differs(before, device.fresh(phase).score(brief), effect=effect)
    device.clear()
    judge.same(before, device.fresh(phase).score(brief))


@pytest.mark.requirement("R12")
def test_clear_after_two_loads_equals_base(device, adapter, other, phase, brief, judge):
    """Clear goes back to base, not to the adapter before."""
    before = device.fresh(phase).score(brief)
    device.apply(other)
    device.apply(adapter.folder)
    device.clear()
    judge.same(before, device.fresh(phase).score(brief))


@pytest.mark.requirement("R13", "R30")
def test_every_load_equals_the_first(device, adapter, other, phase, brief, judge):
    """Loaded first of all, once more, after clear, over another adapter in use."""
    device.restart()
    device.apply(adapter.folder)
    first = device.fresh(phase).score(brief)
    device.apply(adapter.folder)
    judge.same(first, device.fresh(phase).score(brief), name="loaded once more")
    device.clear()
    device.apply(adapter.folder)
    judge.same(first, device.fresh(phase).score(brief), name="loaded after clear")
    device.apply(other)
    device.fresh(phase).score(brief)
    device.apply(adapter.folder)
    judge.same(first, device.fresh(phase).score(brief), name="loaded over another")


@pytest.mark.requirement("R14")
def test_loaded_state_repeats(device, adapter, brief, judge):
    """The loaded state is as repeatable as was measured first."""
    device.apply(adapter.folder)
    first = device.fresh().score(brief)
    for _ in range(2):
        judge.same(first, device.fresh().score(brief))


@pytest.mark.requirement("R15")
def test_reports_what_the_logits_show(device, adapter, other, brief, effect, judge):
    """The adapter that the runtime reports is the one that takes effect."""
    judge.equal(device.reported(), {}, name="reported in base")
    base = device.fresh().score(brief)
    device.apply(other)
    device.apply(adapter.folder)
    judge.equal(device.reported(), {adapter.name: 1.0}, name="reported when loaded")
    judge.differs(base, device.fresh().score(brief), effect=effect)
    device.clear()
    judge.equal(device.reported(), {}, name="reported after clear")
    judge.same(base, device.fresh().score(brief))


@pytest.mark.requirement("R16")
def test_gain_on_own_domain(device, adapter, golden, right, reference, judge):
    """The adapter gains on its own domain what the reference says it gains.

    A golden without samples of the domain leaves the main prompts to gain or lose on.
    """
    samples = golden.domain_prompts(adapter.digest)
    domain = adapter.digest if samples else None
    samples = samples or golden.prompts
    base = device.fresh().score(samples)
    device.apply(adapter.folder)
    judge.gain_is(
        device.fresh().score(samples),
        base,
        right(adapter, domain),
        golden.base(domain),
        name="gain on the task" if domain else "gain on the main prompts",
    )

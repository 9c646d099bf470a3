"""Base, loaded, cleared, reloaded: three states from an empty session (R10-R16)."""

from __future__ import annotations

import pytest

from harness.verdict import apart


PHASES = ("prefill", "decode")


@pytest.mark.requirement("R10")
@pytest.mark.parametrize("phase", PHASES)
def test_base_equals_reference(device, prompts, base_reference, judge, phase):
    """Without an adapter the board answers as the reference does."""
    judge.matches(device.fresh(phase).score(prompts), base_reference)


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("phase", PHASES)
def test_loaded_equals_reference(
    device, adapter, prompts, base_reference, reference, judge, phase
):
    """With the adapter the board answers as PEFT does: logits and top-k."""
    base = device.fresh(phase).score(prompts)
    device.apply(adapter.folder)
    loaded = device.fresh(phase).score(prompts)
    effect = apart(reference.exact, base_reference.exact)
    judge.differs(base, loaded, effect=effect)
    judge.matches(loaded, reference)
    judge.delta_matches(loaded, base, reference, base_reference)


@pytest.mark.requirement("R12")
@pytest.mark.parametrize("phase", PHASES)
def test_cleared_equals_base(device, adapter, brief, judge, phase):
    """After clear nothing of the adapter is left."""
    before = device.fresh(phase).score(brief)
    device.apply(adapter.folder)
    judge.differs(before, device.fresh(phase).score(brief))
    device.clear()
    judge.same(before, device.fresh(phase).score(brief))


@pytest.mark.requirement("R13")
@pytest.mark.parametrize("phase", PHASES)
def test_reloaded_equals_loaded(device, adapter, brief, judge, phase):
    """Load, clear, load is load."""
    device.apply(adapter.folder)
    first = device.fresh(phase).score(brief)
    device.clear()
    device.apply(adapter.folder)
    judge.same(first, device.fresh(phase).score(brief))


@pytest.mark.requirement("R13", "R30")
def test_second_adapter_equals_fresh_load(device, adapter, other_adapter, brief, judge):
    """An adapter loaded over another is the adapter loaded into an empty board."""
    device.apply(adapter.folder)
    fresh = device.fresh().score(brief)
    device.restart()
    device.apply(other_adapter.folder)
    device.apply(adapter.folder)
    judge.same(fresh, device.fresh().score(brief))


@pytest.mark.requirement("R14")
def test_loaded_state_repeats(device, adapter, brief, judge):
    """The loaded state is as repeatable as the base."""
    device.apply(adapter.folder)
    first = device.fresh().score(brief)
    for _ in range(2):
        judge.same(first, device.fresh().score(brief))


@pytest.mark.requirement("R15")
def test_reports_what_the_logits_show(device, adapter, brief, judge):
    """The adapter that the runtime reports is the one that takes effect."""
    judge.equal(device.reported(), {}, name="reported in base")
    base = device.fresh().score(brief)
    device.apply(adapter.folder)
    judge.equal(device.reported(), {adapter.name: 1.0}, name="reported when loaded")
    judge.differs(base, device.fresh().score(brief))
    device.clear()
    judge.equal(device.reported(), {}, name="reported after clear")
    judge.same(base, device.fresh().score(brief))


@pytest.mark.requirement("R16")
def test_gain_on_own_domain(device, adapter, golden, judge):
    """The adapter gains on its own domain what the reference says it gains."""
    samples = golden.domain_prompts(adapter.digest)
    if samples is None:
        pytest.skip("the golden holds no domain samples of this adapter")
    base = device.fresh().score(samples)
    device.apply(adapter.folder)
    judge.gain_is(
        device.fresh().score(samples),
        base,
        golden.adapter(adapter.digest, adapter.digest),
        golden.base(adapter.digest),
    )

"""alpha over the adapter's own rank, however the adapter spells it (R20, R22)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge


@pytest.mark.requirement("R20", "R22")
def test_scale_and_direction_of_the_delta(
    device, adapter, phase, phase_prompts, base_scores, base_reference, reference, judge
):
    """The adapter takes effect as strongly as in the reference, and the same way.

    A wrong denominator shows in the scale; a factor that is swapped, transposed or
    shifted in the direction.
    """
    base = base_scores(phase_prompts, phase)
    device.apply(adapter.folder)
    loaded = device.fresh(phase).score(phase_prompts)
    judge.scale_is(loaded, base, reference, base_reference)
    judge.delta_matches(loaded, base, reference, base_reference)


@pytest.mark.requirement("R20", "R22")
def test_equivalent_adapters_agree(
    device, bench, adapter, brief, reference, judge, forged
):
    """Folders that mean the same function give the same logits."""
    states = {"base": device.fresh().score(brief)}
    device.apply(adapter.folder)
    states["adapter"] = device.fresh().score(brief)
    for twin in forge.equivalents(adapter, bench.board.reserved_rank):
        if twin.relation == "twin":
            device.apply(twin.make_twin(forged(f"{twin.name}-twin")))
            expected = device.fresh().score(brief)
        else:
            expected = states[twin.relation]
        device.apply(twin.make(forged(twin.name)))
        observed = device.fresh().score(brief)
        if twin.exactness == "rounded":
            base = states["base"]
            judge.close(expected, observed, reference, name=twin.name, base=base)
        else:
            judge.same(expected, observed, name=twin.name)

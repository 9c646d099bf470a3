"""Every module counts, in its own place (R22)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge


# A single module moves the logits little; eight times its B moves them by far
# more than one unit in the last place, and a power of two is exact in bf16.
GAIN = 8.0


@pytest.mark.requirement("R22")
def test_every_module_takes_effect(device, widest_adapter, brief, judge, forged):
    """Each module alone, amplified, moves the logits."""
    few = brief.few(2, 4)
    base = device.fresh().score(few)
    for probe in forge.probes(widest_adapter, GAIN):
        device.apply(probe.make(forged(probe.name)))
        judge.differs(base, device.fresh().score(few), name=probe.name)


@pytest.mark.requirement("R22")
def test_delta_points_where_the_reference_points(
    device, adapter, prompts, base_reference, reference, judge
):
    """No factor swapped, transposed or shifted: the delta has the right direction."""
    base = device.fresh().score(prompts)
    device.apply(adapter.folder)
    loaded = device.fresh().score(prompts)
    judge.delta_matches(loaded, base, reference, base_reference)

"""Every module counts, in its own place (R22)."""

from __future__ import annotations

import pytest

from harness.artifacts.forge import only


# A single module moves the logits little; eight times its B moves them by far
# more than one unit in the last place, and a power of two is exact in bf16.
GAIN = 8.0


@pytest.mark.requirement("R22")
def test_every_module_takes_effect(device, widest_adapter, brief, judge, forged):
    """Each module alone, amplified, moves the logits."""
    few = brief.few(2, 4)
    base = device.fresh().score(few)
    for module in widest_adapter.modules:
        device.apply(only(widest_adapter, module.path, GAIN, forged("only")))
        judge.differs(base, device.fresh().score(few), name=f"{module.path} alone")


@pytest.mark.requirement("R22")
def test_delta_points_where_the_reference_points(
    device, adapter, prompts, base_reference, reference, judge
):
    """No factor swapped, transposed or shifted: the delta has the right direction."""
    base = device.fresh().score(prompts)
    device.apply(adapter.folder)
    loaded = device.fresh().score(prompts)
    judge.delta_matches(loaded, base, reference, base_reference)

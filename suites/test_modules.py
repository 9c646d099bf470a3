"""Every module counts (R22)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge
from harness.verdict import Inconclusive


# A single module moves the logits little; eight times its B moves them by far
# more than one unit in the last place, and a power of two is exact in bf16.
GAIN = 8.0


@pytest.mark.requirement("R22")
def test_every_module_takes_effect(device, widest_adapter, brief, judge, forged):
    """Each module alone, amplified, moves the logits."""
    base = device.fresh().score(brief)
    probes = [p for p in forge.probes(widest_adapter, GAIN) if p.effective]
    if not probes:
        raise Inconclusive(f"{widest_adapter.name} changes nothing: every B or A is 0")
    for probe in probes:
        device.apply(probe.make(forged(probe.name)))
        judge.differs(base, device.fresh().score(brief), name=probe.name)

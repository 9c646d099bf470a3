"""Every module counts (R22)."""

from __future__ import annotations

import itertools

import pytest

from harness.artifacts import forge
from harness.verdict import Inconclusive


# A single module moves the logits little; eight times its B moves them by far
# more than one unit in the last place, and a power of two is exact in bf16.
GAIN = 8.0


@pytest.mark.requirement("R22")
def test_every_module_takes_effect(device, kits, widest_adapter, brief, judge):
    """Each module alone, amplified, moves the logits."""
    base = device.fresh().score(brief)
    probes = (p for p in forge.probes(widest_adapter, GAIN) if p.effective)
    # A model has hundreds of modules: as many at a time as the board takes.
    for some in _some(probes, device.capabilities.max_adapters):
        folders = {p: p.make(kits.new(p.name)) for p in some}
        device.stock({folder.name: folder for folder in folders.values()})
        for probe, folder in folders.items():
            device.apply(folder)
            judge.differs(base, device.fresh().score(brief), name=probe.name)
        device.clear()


def _some(probes, most):
    """Groups of at most so many; there is one at least."""
    group = list(itertools.islice(probes, most))
    if not group:
        raise Inconclusive("the widest adapter changes nothing: every B or A is 0")
    while group:
        yield group
        group = list(itertools.islice(probes, most))

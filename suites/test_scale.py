"""alpha over the adapter's own rank, however the adapter spells it (R20)."""

from __future__ import annotations

import pytest

from harness.artifacts.forge import RELATIONS
from harness.artifacts.forge import equivalent


@pytest.mark.requirement("R20")
def test_scale_is_one(device, adapter, prompts, base_reference, reference, judge):
    """The adapter takes effect at the strength that the reference gives it."""
    base = device.fresh().score(prompts)
    device.apply(adapter.folder)
    loaded = device.fresh().score(prompts)
    judge.scale_is(loaded, base, reference, base_reference)


@pytest.mark.requirement("R20", "R22")
@pytest.mark.parametrize("relation", RELATIONS)
def test_equivalent_adapters_agree(device, adapter, brief, judge, forged, relation):
    """Two folders that mean the same function give the same logits."""
    twin = equivalent(relation, adapter, forged(relation))
    if twin is None:
        pytest.skip(f"{relation} cannot be written for this adapter")
    device.apply(adapter.folder)
    expected = device.fresh().score(brief)
    device.apply(twin.folder)
    judge.equivalent(expected, device.fresh().score(brief), exact=twin.exact)

"""The run itself: what was tested, and that wrong adapters are found (R90, R91)."""

from __future__ import annotations

import pytest

from harness.artifacts.forge import CONTROLS
from harness.artifacts.forge import control


@pytest.mark.requirement("R90")
def test_everything_tested_has_a_name(bench, judge):
    """Board, software, model, base and goldens are named and hashed."""
    environment = bench.environment()
    missing = [
        key
        for key in ("platform", "versions", "probe", "model", "base", "golden")
        if not environment[key]
    ]
    judge.none(missing, name="unnamed parts of the environment")


@pytest.mark.requirement("R91")
@pytest.mark.parametrize("wrong", CONTROLS)
def test_wrong_adapter_is_found(
    device, adapter, prompts, base_reference, reference, judge, forged, wrong
):
    """An adapter that is wrong on purpose must be found wrong."""
    forgery = control(wrong, adapter, forged(wrong))
    if forgery is None:
        pytest.skip(f"{wrong} cannot be made of this adapter")
    base = device.fresh().score(prompts)
    device.apply(forgery)
    observed = device.fresh().score(prompts)
    judge.found_wrong(
        wrong,
        lambda inner: inner.scale_is(observed, base, reference, base_reference),
        lambda inner: inner.delta_matches(observed, base, reference, base_reference),
    )

"""The run itself: what was tested, and that wrong adapters are found (R90, R91)."""

from __future__ import annotations

import pytest

from harness.artifacts import forge


@pytest.mark.requirement("R90")
def test_everything_tested_has_a_name(bench, judge):
    """Board, software, model, base and goldens are named and hashed."""
    environment = bench.environment()
    missing = [
        key
        for key in ("platform", "versions", "probe", "model", "base", "golden")
        if not environment[key]
    ]
    judge.equal(missing, [], name="unnamed parts of the environment")


@pytest.mark.requirement("R91")
def test_wrong_adapters_are_found(
    device, bench, adapter, prompts, base_reference, reference, judge, forged
):
    """Adapters that are wrong on purpose must be found wrong."""
    base = device.fresh().score(prompts)
    for wrong in forge.controls(adapter, bench.board.reserved_rank):
        device.apply(wrong.make(forged("wrong")))
        observed = device.fresh().score(prompts)

        def check(inner, observed=observed):
            inner.scale_is(observed, base, reference, base_reference)
            inner.delta_matches(observed, base, reference, base_reference)

        judge.found_wrong(wrong.name, check)

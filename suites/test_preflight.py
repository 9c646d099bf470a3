"""Before the logits: reservation, fit, scale and base identity (R01-R04)."""

from __future__ import annotations

import numpy as np
import pytest

from harness.artifacts import preflight
from harness.runtimes import audit


@pytest.mark.requirement("R01")
def test_every_linear_has_slots_in_every_graph(device, bench, judge):
    """The compiled model reserves A and B wherever an adapter may need them."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    findings = preflight.reservation(
        device.slots(), bench.base, bench.board.reserved_rank
    )
    judge.none(findings, name="linears without a slot")


@pytest.mark.requirement("R02")
def test_adapter_fits(device, bench, adapter, judge):
    """Every tensor has its slot, nothing is left over, no variant is ignored."""
    findings = preflight.fit(adapter, bench.base, bench.board.reserved_rank)
    judge.none(preflight.unfit(findings), name="unfit tensors and fields")


@pytest.mark.requirement("R03")
def test_scale_is_the_configured_one(device, adapter, judge):
    """Slot B divided by the file's B is alpha/r of each module."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    device.apply(adapter.folder)
    for module, scale in audit.scales(device, adapter):
        judge.close(scale, module.scale, rtol=2.0**-8, name=f"scale of {module.path}")


@pytest.mark.requirement("R04")
def test_base_is_the_one_the_golden_was_made_for(bench, golden, judge):
    """Weights, tokenizer, chat template and configuration by digest."""
    if bench.artifact is None:
        pytest.skip("no sidecar: the base is known by its behaviour only (R10)")
    findings = preflight.base_matches(bench.artifact.sidecar, bench.identity)
    judge.none(findings, name="parts of the base that differ")
    judge.equal(bench.identity.weights, golden.base_digest, name="golden's base")

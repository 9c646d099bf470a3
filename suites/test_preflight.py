"""Before the logits: reservation, fit, scale and base identity (R01-R04)."""

from __future__ import annotations

import pytest

from harness.artifacts import preflight
from harness.golden.identity import base_identity
from harness.runtimes.audit import read_scales
from harness.verdict import Inconclusive


# The scale is averaged over all values of a slot, so it is never further off than
# a single value may be.
BF16_ROUNDING = 2.0**-8


def unfit(findings):
    """What keeps an adapter or a model from working, as text."""
    return [finding.text for finding in findings if finding.severity == "unfit"]


@pytest.mark.requirement("R01")
def test_every_linear_has_slots_in_every_graph(device, bench, judge):
    """The compiled model reserves A and B wherever an adapter may need them."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    findings = preflight.reservation(
        device.slots(), bench.base.linears, reserved_rank=bench.board.reserved_rank
    )
    judge.equal(unfit(findings), [], name="linears without a slot")


@pytest.mark.requirement("R02")
def test_adapter_fits(device, bench, adapter, judge):
    """Every tensor has its slot, nothing is left over, no variant is ignored."""
    findings = preflight.fit(adapter, bench.base.linears, bench.board.reserved_rank)
    judge.equal(unfit(findings), [], name="unfit tensors and fields")


@pytest.mark.requirement("R03")
def test_scale_is_the_configured_one(device, adapter, judge):
    """Slot B divided by the file's B is alpha/r of each module."""
    if not device.capabilities.slots_readable:
        pytest.skip("this platform shows no slots")
    device.apply(adapter.folder)
    scales = list(read_scales(device, adapter))
    if not scales:
        raise Inconclusive("every B of this adapter is zero: there is no scale to read")
    for module, scale in scales:
        judge.at_most(
            abs(scale / module.scale - 1),
            BF16_ROUNDING,
            source="half a unit in the last place of bf16",
            name=f"{module.path}: scale {scale:.4g} for {module.scale:g}, relative",
        )


@pytest.mark.requirement("R04")
def test_base_is_the_one_the_golden_was_made_for(bench, golden, judge):
    """Weights, tokenizer, chat template and configuration by digest."""
    if bench.artifact is None:
        pytest.skip("no sidecar: the base is known by its behaviour only (R10)")
    findings = preflight.base_matches(bench.artifact.sidecar, bench.base.identity)
    judge.equal(unfit(findings), [], name="parts of the base that differ")
    made_for = base_identity(golden.reference_base)
    judge.equal(
        bench.artifact.matches(made_for), True, name="the model is of the golden's base"
    )

"""alpha over the adapter's own rank, however it is spelt, times the scale (R20-R22)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.artifacts import forge


# Enabling an adapter and scoring a few rows: ten seconds of silence is a hang.
LOADS_S = 10.0


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
    device, adapter, equivalents, several, reference, judge
):
    """Folders that mean the same function give the same logits."""
    compare = forge.in_slots if device.capabilities.slots_readable else forge.by_content
    states = {"base": device.fresh().score(several)}
    device.apply(adapter.folder)
    states["adapter"] = device.fresh().score(several)
    for made in equivalents:
        same = made.what
        if made.twin:
            device.apply(made.twin)
            expected = device.fresh().score(several)
        else:
            expected = states[same.relation]
        device.apply(made.folder)
        observed = device.fresh().score(several)
        if same.exactness(compare) == "rounded":
            base = states["base"]
            judge.close(expected, observed, reference, name=same.name, base=base)
        else:
            judge.same(expected, observed, name=same.name)


@pytest.mark.requirement("R21")
def test_run_time_scale_multiplies_alpha(
    device, adapter, rescaled, several, reference, judge
):
    """0 is base, s is what an adapter with alpha times s gives, in any order.

    The scale is changed by applying again, with nothing switched off in between.
    """
    if not device.capabilities.runtime_scale:
        pytest.skip("this platform has no run-time scale")
    base = device.fresh().score(several)
    device.apply(adapter.folder)
    plain = device.fresh().score(several)
    for scale, folder in rescaled.items():
        device.apply(folder)
        expected = device.fresh().score(several)
        device.apply(adapter.folder)
        device.apply(adapter.folder, scale=scale)
        judge.equal(
            device.reported(),
            {adapter.name: float(np.float32(scale))},
            name=f"reported at scale {scale:g}",
        )
        observed = device.fresh().score(several)
        if abs(math.frexp(scale)[0]) == 0.5:  # a power of two is exact
            judge.same(expected, observed, name=f"scale {scale:g}")
        else:
            name = f"scale {scale:g}"
            judge.close(expected, observed, reference, name=name, base=base)
        device.apply(adapter.folder, scale=0.0)
        judge.same(base, device.fresh().score(several), name=f"0 after {scale:g}")
        device.apply(adapter.folder)
        judge.same(
            plain, device.fresh().score(several), name=f"1 after {scale:g} and 0"
        )


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("scale", [1e6, math.inf, math.nan], ids=str)
def test_odd_run_time_scale_leaves_nothing(device, widest_adapter, brief, judge, scale):
    """A huge scale, or one that is no number, is refused or gone after clear."""
    if not device.capabilities.runtime_scale:
        pytest.skip("this platform has no run-time scale")
    base = device.fresh().score(brief)
    device.apply(widest_adapter.folder)
    plain = device.fresh().score(brief)

    def attempt():
        device.apply(widest_adapter.folder, scale=scale)
        device.fresh().score(brief)

    judge.lives(attempt, f"scale {scale:g}", within=LOADS_S)
    device.clear()
    judge.same(base, device.fresh().score(brief), name="base afterwards")
    device.apply(widest_adapter.folder)
    judge.same(plain, device.fresh().score(brief), name="scale 1 afterwards")

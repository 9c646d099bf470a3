"""Damaged, unfit and foreign adapters (R40-R42)."""

from __future__ import annotations

import pytest

from harness.errors import Infrastructure
from harness.errors import RuntimeDied
from harness.errors import RuntimeRefused


# Reading a file of some MB and refusing it takes well under a second; ten
# seconds of silence is a hang to whoever waits for the load. A converter reads the
# base as well before it looks at an adapter: gigabytes.
LOADS_S, CONVERTS_S = 10.0, 300.0


def patience(device):
    """Seconds that a refusal may take."""
    return CONVERTS_S if device.capabilities.bundles else LOADS_S


def attempt(device, folder, *others):
    """Apply a bad adapter, others at hand beside it; a death must come twice.

    Once could be somebody else's doing, which says nothing of the board.
    """
    device.admit(folder, *others)
    try:
        device.apply(folder)
    except RuntimeDied as died:
        device.restart()
        try:
            device.apply(folder)
        except RuntimeRefused:
            raise Infrastructure(f"died once, not again: {died.cause}") from died


@pytest.mark.requirement("R40")
def test_damaged_adapter_is_refused(device, other, brief, judge, forged, damage):
    """A clear error in time; the state before is untouched; the next load works.

    A platform may refuse while it converts, or when it loads.
    """
    # Other values than the damaged adapter's, so that a half-written load shows.
    good = other
    bad = damage.make(forged(damage.name))
    base = device.fresh().score(brief)
    within = patience(device)
    judge.lives(lambda: attempt(device, bad, good), "refused in base", within=within)
    judge.same(base, device.fresh().score(brief), name="base after the refusal")
    device.apply(good)
    before = device.fresh().score(brief)
    reported = device.reported()
    judge.refused(
        lambda: attempt(device, bad, good),
        within=within,
        name=damage.name,
        says=damage.says,
    )
    judge.same(before, device.fresh().score(brief), name="state after the refusal")
    judge.equal(device.reported(), reported, name="reported after the refusal")
    device.clear()
    device.apply(good)
    judge.same(before, device.fresh().score(brief), name="next good load")


@pytest.mark.requirement("R41")
def test_adapter_of_another_base(
    device, adapter, stranger, prompts, base_scores, base_reference, reference, judge
):
    """An adapter for another base is refused, or the reference tells."""
    base = base_scores(prompts)
    name = "adapter of another base"
    judge.lives(lambda: attempt(device, stranger), name, within=patience(device))
    if stranger.name not in device.reported():
        return  # refused
    observed = device.fresh().score(prompts)
    judge.found_wrong(
        name,
        lambda inner: inner.delta_matches(observed, base, reference, base_reference),
    )


@pytest.mark.requirement("R42")
def test_non_finite_adapter_leaves_nothing(
    device, widest_adapter, brief, judge, forged, non_finite
):
    """NaN and Inf are refused, or gone after clear."""
    base = device.fresh().score(brief)
    bad = non_finite.make(forged(non_finite.name))
    good = widest_adapter.folder
    judge.lives(
        lambda: attempt(device, bad, good), non_finite.name, within=patience(device)
    )
    device.clear()
    judge.same(base, device.fresh().score(brief), name="base after clear")
    device.apply(widest_adapter.folder)
    loaded = device.fresh().score(brief)
    device.restart()
    device.apply(widest_adapter.folder)
    judge.same(device.fresh().score(brief), loaded, name="next good load")

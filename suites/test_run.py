"""The run itself: named, complete, and able to see what is wrong (R90-R93)."""

from __future__ import annotations

import pytest

from harness.errors import Infrastructure
from harness.evidence import Check
from harness.evidence import Judged
from harness.evidence import Planned


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


def find(wrong, device, prompts, base, reference, base_reference, judge):
    """Put a wrong adapter on the board and have it found wrong."""
    device.apply(wrong.folder)
    observed = device.fresh().score(prompts)

    def check(inner):
        inner.scale_is(observed, base, reference, base_reference)
        inner.delta_matches(observed, base, reference, base_reference)

    judge.found_wrong(wrong.what.name, check)


@pytest.mark.requirement("R91")
def test_every_kind_of_wrong_is_found(
    device,
    widest_adapter,
    controls,
    right,
    prompts,
    base_scores,
    base_reference,
    judge,
):
    """Of each kind of fault one that is large, on the widest adapter."""
    common = (
        device,
        prompts,
        base_scores(prompts),
        right(widest_adapter),
        base_reference,
        judge,
    )
    for wrong in controls:
        find(wrong, *common)


@pytest.mark.requirement("R91")
def test_small_wrong_is_found(
    device,
    adapter,
    slightly_wrong,
    prompts,
    base_scores,
    base_reference,
    reference,
    judge,
):
    """A scale that is off by little is found, on each adapter."""
    base = base_scores(prompts)
    find(slightly_wrong, device, prompts, base, reference, base_reference, judge)


@pytest.mark.requirement("R92")
def test_nothing_planned_is_missing_so_far(records, request, judge):
    """Every check planned before this one has ended, one way or another."""
    ended = {r.nodeid for r in records if isinstance(r, Check)}
    planned = [r.nodeid for r in records if isinstance(r, Planned)]
    before = planned[: planned.index(request.node.nodeid)]
    lost = [nodeid for nodeid in before if nodeid not in ended]
    if lost:  # a worker was lost: that is not the board's doing
        raise Infrastructure(f"{len(lost)} checks without an end, first {lost[0]}")
    judge.equal(len(before) - len(lost), len(before), name="planned checks that ended")


@pytest.mark.requirement("R93")
def test_every_pass_says_what_it_could_have_seen(records, judge):
    """The smallest visible fault stands beside each pass, as a number or in words."""
    silent = [
        f"{r.nodeid}: {r.judgement.name}"
        for r in records
        if isinstance(r, Judged)
        and r.judgement.outcome == "PASS"
        and r.judgement.measurement.smallest_visible is None
        and not r.judgement.measurement.note
    ]
    if silent:  # our own fault
        raise Infrastructure(f"{len(silent)} passes say nothing, first {silent[0]}")
    judge.equal(len(silent), 0, name="passes that do not say what they could have seen")

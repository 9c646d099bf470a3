"""Likeliest tokens: ties are no flips, and clear flips are found."""

from __future__ import annotations

import numpy as np
import pytest
from made_boards import World
from made_boards import prompt_set

from harness.golden.scores import Scores
from harness.golden.store import Reference
from harness.verdict import Outcome
from harness.verdict import decide
from harness.verdict.topk import bf16_ulp
from harness.verdict.topk import compare_tops
from harness.verdict.topk import wilson


WORLD = World(rounding=0.01)
PARAMETERS = {"alpha": 1e-5, "flips": 1e-3}


def compared(observed: Scores, right: Reference) -> dict:
    return compare_tops(observed, right.exact, right.device)


def outcome(statistics: dict) -> Outcome:
    return decide("agrees", statistics, PARAMETERS).outcome


def flipped(right: Reference, share: float) -> Scores:
    """The exact answers, the likeliest token of some rows replaced by the tenth."""
    logits = right.exact.logits.copy()
    rows = np.random.default_rng(0).random(len(logits)) < share
    for t in np.flatnonzero(rows):
        order = np.argsort(logits[t])
        logits[t, order[-10]] = logits[t, order[-1]] + 1
    return Scores(right.exact.prompts, logits)


def test_a_right_board_agrees():
    right = WORLD.reference(1.0)
    found = compared(WORLD.board(1.0), right)
    decision = decide("agrees", found, PARAMETERS)
    assert decision.outcome is Outcome.PASS
    assert found["top10"] > 0.98
    assert 0 < decision.measurement.smallest_visible < 0.2
    assert "top-1 equal in" in decision.reason


def test_clear_flips_are_found_and_named():
    right = WORLD.reference(1.0)
    found = compared(flipped(right, 0.3), right)
    decision = decide("agrees", found, PARAMETERS)
    assert decision.outcome is Outcome.FAIL
    assert f"prompt {found['worst']['prompt']!r}" in decision.reason


def test_the_visible_share_is_found():
    right = WORLD.reference(1.0)
    clean = decide("agrees", compared(right.exact, right), PARAMETERS)
    share = clean.measurement.smallest_visible
    assert outcome(compared(flipped(right, 1.5 * share), right)) is Outcome.FAIL


def test_a_board_that_flips_ties_agrees():
    """Two tokens a bf16 unit apart in the reference, in every row, swapped."""
    prompts = prompt_set(4, 8, 50)
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((32, 50)).astype(np.float32)
    logits[:, 3], logits[:, 4] = 10.0, 10.0625
    swapped = logits.copy()
    swapped[:, 3], swapped[:, 4] = 10.0625, 10.0
    right = Reference(Scores(prompts, logits), Scores(prompts, logits))
    found = compared(Scores(prompts, swapped), right)
    assert (found["same"], found["decided"], found["flips"]) == (0, 0, 0)
    decision = decide("agrees", found, PARAMETERS)
    assert decision.outcome is Outcome.INCONCLUSIVE
    assert "too few" in decision.reason


def test_a_near_tie_on_the_board_is_no_clear_flip():
    """The reference is sure, the board barely prefers the other token."""
    prompts = prompt_set(4, 8, 50)
    logits = np.zeros((32, 50), np.float32)
    logits[:, 3], logits[:, 4] = 10.0, 9.0
    near = logits.copy()
    near[:, 4] = 10.0625
    right = Reference(Scores(prompts, logits), Scores(prompts, logits))
    found = compared(Scores(prompts, near), right)
    assert (found["decided"], found["agree"], found["flips"]) == (32, 0, 0)
    assert found["regret"] == pytest.approx(0.0625)


@pytest.mark.parametrize("width", [2, 5, 300, 5000])
def test_any_vocabulary(width):
    prompts = prompt_set(3, 4, width)
    rng = np.random.default_rng(1)
    exact = Scores(prompts, rng.standard_normal((12, width)).astype(np.float32) * 9)
    found = compared(exact, Reference(exact, exact))
    assert found["same"] == 12
    assert found["top10"] == 1.0


def test_right_boards_are_not_flagged():
    right = WORLD.reference(1.0)
    outcomes = {
        outcome(compared(WORLD.board(1.0, seed=seed), right)) for seed in range(100)
    }
    assert outcomes == {Outcome.PASS}


@pytest.mark.parametrize(
    ("value", "unit"),
    [(1.0, 2**-7), (1.99, 2**-7), (2.0, 2**-6), (-20.0, 0.125), (40.0, 0.25), (0, 0)],
)
def test_bf16_units(value, unit):
    assert bf16_ulp(value) == unit


def test_wilson():
    low, high = wilson(48, 50, 0.025)
    assert (low, high) == pytest.approx((0.865, 0.989), abs=0.001)
    assert wilson(0, 0) == (0.0, 1.0)

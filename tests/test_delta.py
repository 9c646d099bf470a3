"""Distances and deltas: against the plain formulas, and never NaN."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from made_boards import World
from made_boards import log_softmax
from made_boards import prompt_set

from harness.golden.prompts import PromptSet
from harness.golden.rows import log_partition
from harness.golden.scores import Scores
from harness.verdict.delta import change_gap
from harness.verdict.delta import deltas
from harness.verdict.delta import distance
from harness.verdict.delta import log_likelihood
from harness.verdict.delta import nonfinite
from harness.verdict.delta import per_prompt
from harness.verdict.delta import relative


WORLD = World()


def centred(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - wide.mean(axis=1, keepdims=True)


class TestAgainstTheFormulas:
    def test_distance(self):
        a, b = WORLD.board(), WORLD.board(seed=8)
        found = distance(a, b)
        gap = centred(a.logits) - centred(b.logits)
        assert found.error == pytest.approx((gap**2).sum(axis=1), rel=1e-5)
        assert found.norm == pytest.approx((centred(b.logits) ** 2).sum(1), rel=1e-5)

    def test_log_partition(self):
        logits = WORLD.board().logits
        wide = logits.astype(np.float64)
        assert log_partition(logits) == pytest.approx(
            np.log(np.exp(wide).sum(axis=1)), abs=1e-6
        )

    def test_log_likelihood_is_that_of_the_target(self):
        scores = WORLD.board()
        table = log_softmax(scores.logits)
        expected = table[np.arange(scores.prompts.rows), scores.prompts.targets]
        assert log_likelihood(scores) == pytest.approx(expected, abs=1e-5)

    def test_deltas_give_scale_and_direction_residual(self):
        right, base = WORLD.reference(1.0), WORLD.reference()
        found = deltas(right.device, base.device, right.exact, base.exact)
        want = log_softmax(right.exact.logits) - log_softmax(base.exact.logits)
        got = log_softmax(right.device.logits) - log_softmax(base.device.logits)
        known = (got * want).sum() / (want * want).sum()
        rest = np.linalg.norm(got - known * want)
        scale = 1 + found.cross.sum() / found.effect.sum()
        squared = found.error.sum() - found.cross.sum() ** 2 / found.effect.sum()
        assert scale == pytest.approx(known, abs=1e-6)
        assert np.sqrt(squared) == pytest.approx(rest, rel=1e-4)

    @pytest.mark.parametrize("vocab", [7, 300, 70_000])
    def test_rows_stand_alone(self, vocab):
        """A row's sums do not depend on the rows that it shares a block with."""
        prompts = prompt_set(3, 100 if vocab < 1000 else 2, vocab)
        rng = np.random.default_rng(0)
        shape = (prompts.rows, vocab)
        four = [
            Scores(prompts, rng.standard_normal(shape, np.float32)) for _ in range(4)
        ]
        found = deltas(*four)
        last = prompt_set(1, 1, vocab)
        alone = [Scores(last, s.logits[-1:]) for s in four]
        assert deltas(*alone).cross == pytest.approx(found.cross[-1:], rel=1e-6)
        assert distance(*alone[:2]).error == pytest.approx(
            distance(*four[:2]).error[-1:], rel=1e-6
        )

    def test_change_gap(self):
        four = [WORLD.board(s, seed=i) for i, s in enumerate((1.0, 0.0, 1.0, 0.0))]
        a, b, c, d = (centred(s.logits) for s in four)
        found = change_gap((four[0], four[1]), (four[2], four[3]))
        expected = (((a - b) - (c - d)) ** 2).sum(axis=1)
        assert found == pytest.approx(expected, rel=1e-4)

    def test_per_prompt_sums_each_prompt(self):
        prompts = PromptSet((*prompt_set(1, 3, 9).prompts, *prompt_set(1, 2, 9)))
        assert per_prompt(prompts, np.arange(5.0)).tolist() == [3.0, 7.0]


class TestScale:
    @given(st.floats(-1e3, 1e3))
    @settings(max_examples=20, deadline=None)
    def test_a_constant_on_a_row_is_no_distance(self, constant):
        a, b = WORLD.board(), WORLD.board(seed=8)
        moved = Scores(a.prompts, a.logits + np.float32(constant))
        near = distance(a, b).error
        assert distance(moved, b).error == pytest.approx(near, rel=2e-3)

    @given(st.integers(-20, 20))
    @settings(max_examples=20, deadline=None)
    def test_distance_grows_with_the_square(self, power):
        a, b = WORLD.board(), WORLD.board(seed=8)
        factor = np.float32(2.0**power)
        scaled = distance(
            Scores(a.prompts, a.logits * factor), Scores(b.prompts, b.logits * factor)
        )
        plain = distance(a, b)
        assert scaled.error == pytest.approx(plain.error * 4.0**power, rel=1e-5)
        assert relative(scaled.error, scaled.norm) == pytest.approx(
            relative(plain.error, plain.norm), rel=1e-5
        )


class TestNeverNaN:
    @given(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8)
    )
    @settings(max_examples=60, deadline=None)
    def test_any_finite_logits(self, values):
        prompts = prompt_set(2, 1, 4)
        table = np.asarray(values[:8], np.float32).reshape(2, 4)
        a, b = Scores(prompts, table), Scores(prompts, table[::-1].copy())
        between = distance(a, b)
        assert np.isfinite(relative(between.error, between.norm)).all()
        assert np.isfinite(log_partition(table)).all()
        assert np.isfinite(change_gap((a, b), (b, a))).all()
        products = deltas(a, b, b, a)
        for sums in (products.error, products.cross, products.effect):
            assert np.isfinite(sums).all()

    def test_where_logits_are_no_numbers(self):
        good = WORLD.board()
        logits = good.logits.copy()
        logits[WORLD.rows + 2, 5] = np.nan
        logits[WORLD.rows + 2, 9] = np.inf
        assert nonfinite(observed=good) is None
        assert nonfinite(base=good, observed=Scores(good.prompts, logits)) == {
            "whose": "observed",
            "count": 2,
            "token": 5,
            "prompt": "p1",
            "row": 2,
        }


def test_other_prompts_or_vocabulary_are_our_bug():
    small = World(vocab=300)
    with pytest.raises(ValueError, match="vocabularies"):
        distance(WORLD.board(), Scores(WORLD.set, small.board().logits))
    with pytest.raises(ValueError, match="different prompts"):
        distance(WORLD.board(), small.board())


def test_a_large_vocabulary_is_fast():
    prompts = prompt_set(4, 8, 151_936)
    rng = np.random.default_rng(0)
    a, b = (
        Scores(prompts, rng.standard_normal((32, 151_936), dtype=np.float32))
        for _ in range(2)
    )
    fastest = min(_seconds(a, b) for _ in range(3))
    assert fastest < 0.5  # 0.01 s on an idle machine


def _seconds(a: Scores, b: Scores) -> float:
    start = time.perf_counter()
    distance(a, b)
    return time.perf_counter() - start

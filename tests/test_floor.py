"""The repeat floor: no false alarms on a noisy board, and small residues seen."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from made_boards import World

from harness.golden.scores import Scores
from harness.verdict import BoardWrong
from harness.verdict import Budget
from harness.verdict import Judge
from harness.verdict import RepeatFloor
from harness.verdict import apart
from harness.verdict.floor import REPEATS
from harness.verdict.floor import FloorLaw
from harness.verdict.floor import Repeats


WORLD = World(prompts=6, rows=8)
NOISE = 1e-3


def noisy(seed: int) -> Scores:
    return WORLD.board(1.0, seed=seed, noise=NOISE)


def measured(start: int = 0) -> RepeatFloor:
    seeds = itertools.count(start)
    return RepeatFloor.measure(lambda: noisy(next(seeds)))


def visible(floor: RepeatFloor) -> float:
    """Of the first of a hundred checks."""
    law = floor.law()
    assert law is not None
    return law.smallest_visible(Budget(100).share(1))


class TestMeasuring:
    def test_three_equal_repeats_are_enough(self):
        asked = []

        def score() -> Scores:
            asked.append(1)
            return WORLD.board()

        floor = RepeatFloor.measure(score)
        assert floor.exact
        assert floor.limit(1e-6) == 0.0
        assert len(asked) == 3

    def test_a_noisy_board_is_asked_more_often(self):
        seeds = iter(range(1000))
        floor = RepeatFloor.measure(lambda: noisy(next(seeds)))
        assert not floor.exact
        assert next(seeds) == REPEATS

    def test_noise_in_the_third_repeat_counts(self):
        repeats = Repeats()
        for seed in (1, 1, 2):
            repeats.add(noisy(seed))
        assert repeats.needed == REPEATS - 3
        with pytest.raises(ValueError, match="57 more"):
            repeats.floor()

    def test_logits_that_are_no_numbers_excuse_nothing(self):
        logits = WORLD.board().logits.copy()
        logits[0, 0] = np.nan
        floor = RepeatFloor.measure(lambda: Scores(WORLD.set, logits))
        assert floor.limit(1e-6) == 0.0


class TestLimit:
    def test_it_is_above_all_that_was_seen(self):
        floor = measured()
        law = floor.law()
        assert law is not None
        assert floor.limit(0.4) > law.largest

    def test_it_grows_as_fewer_false_alarms_are_allowed(self):
        floor = measured()
        assert floor.limit(1e-7) > floor.limit(1e-5) > floor.limit(1e-3)

    def test_tolerance_factors_of_the_tables(self):
        """k for 99.9 % of all with confidence 0.95."""
        for count, k in ((5, 7.50), (10, 5.20), (20, 4.32), (60, 3.70), (100, 3.54)):
            law = FloorLaw(0.0, 1.0, count, 0.0)
            assert math.log(law.limit(1e-3) / 1.1) == pytest.approx(k, abs=0.01)

    def test_a_part_of_the_prompts_has_its_own_law(self):
        floor = measured()
        few = WORLD.set.first(2)
        assert few == WORLD.set.few(2, WORLD.rows)
        part, whole = floor.law(few), floor.law()
        assert part is not None
        assert whole is not None
        assert part.deviation > whole.deviation

    @pytest.mark.parametrize("count, rows", [(6, 3), (2, 4)])
    def test_prompts_that_were_not_measured_have_no_limit(self, count, rows):
        few = WORLD.set.few(count, rows)
        with pytest.raises(ValueError, match="not measured on these rows of 'p0'"):
            measured().law(few)
        judge = Judge(
            lambda _: None, budget_share=Budget(9).share, floor=measured(), theta=0.01
        )
        with pytest.raises(ValueError, match="not measured"):
            judge.same(noisy(1).on(few), noisy(2).on(few))


class TestBenignTwin:
    """A right board with repeat noise of 1e-3."""

    def test_false_alarms_of_whole_runs(self):
        """400 runs of 100 checks: 1e-3 a run allows none, and one by luck."""
        rng = np.random.default_rng(0)
        checks = 100
        alpha = Budget(checks).share(1)
        red = sum(self.red_run(rng, checks, alpha, 0.0) for _ in range(400))
        assert red <= 1

    def test_false_alarms_where_the_noise_itself_varies(self):
        """Scorings whose noise differs by 10 % in size, as a busy board's may."""
        rng = np.random.default_rng(1)
        alpha = Budget(100).share(1)
        red = sum(self.red_run(rng, 100, alpha, 0.1) for _ in range(400))
        assert red <= 1

    def red_run(
        self, rng: np.random.Generator, checks: int, alpha: float, varies: float
    ) -> bool:
        """Floor and checks of one run, from the noise of 6 prompts x 64 values."""

        def scorings(count: int) -> np.ndarray:
            sizes = NOISE * np.exp(varies * rng.standard_normal((count, 1, 1)))
            return sizes * rng.standard_normal((count, 6, 64)) / 8

        repeats = scorings(REPEATS)
        steps = np.sqrt((np.diff(repeats, axis=0) ** 2).sum(axis=2))
        floor = RepeatFloor(
            False,
            REPEATS,
            tuple((f"p{k}", 8) for k in range(6)),
            tuple(tuple(row) for row in steps.tolist()),
        )
        gaps = scorings(checks) - scorings(checks)
        distances = np.sqrt((gaps**2).sum(axis=2).mean(axis=1))
        return bool(distances.max() > floor.limit(alpha))

    def judge(self, floor: RepeatFloor) -> Judge:
        return Judge(
            lambda _: None, budget_share=Budget(100).share, floor=floor, theta=0.01
        )

    def test_all_its_checks_pass(self):
        judge = self.judge(measured())
        for seed in range(60):
            judge.same(noisy(10_000 + seed), noisy(20_000 + seed))

    def test_a_residue_of_two_permille_is_found(self):
        floor = measured()
        assert visible(floor) < 2e-3
        states = WORLD.states(1.0)
        rng = np.random.default_rng(2)
        residue = rng.standard_normal(states.shape)
        residue *= 2e-3 * np.linalg.norm(states) / np.linalg.norm(residue)
        for seed in range(20):
            before, after = (
                noisy(30_000 + seed),
                WORLD.score(states + residue, 40_000 + seed, NOISE),
            )
            with pytest.raises(BoardWrong):
                self.judge(floor).same(before, after)

    def test_the_residue_it_names_is_found_and_half_of_it_mostly_not(self):
        floor = measured()
        judged = []
        states = WORLD.states(1.0)
        rng = np.random.default_rng(3)
        size = visible(floor)
        for factor in (1.05, 0.5):
            found = 0
            for seed in range(100):
                residue = rng.standard_normal(states.shape)
                residue *= np.linalg.norm(states) / np.linalg.norm(residue)
                residue *= factor * size
                after = WORLD.score(states + residue, 50_000 + seed, NOISE)
                try:
                    self.judge(floor).same(noisy(60_000 + seed), after)
                except BoardWrong:
                    found += 1
            judged.append(found)
        assert judged[0] >= 95
        assert judged[1] <= 20


def test_apart_weighs_prompts_alike():
    a = noisy(1)
    scaled = Scores(a.prompts, a.logits * 1.01)
    assert apart(scaled, a) == pytest.approx(0.01, rel=1e-3)

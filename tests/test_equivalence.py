"""Estimates, their errors and the equivalence test, by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from scipy import stats

from harness.verdict.equivalence import Estimate
from harness.verdict.equivalence import Window
from harness.verdict.equivalence import minimum_detectable
from harness.verdict.equivalence import prompts_needed
from harness.verdict.equivalence import ratio
from harness.verdict.measurement import Outcome


def estimates(
    rng: np.random.Generator, scale: float, noise: float, prompts: int, runs: int
) -> list[Estimate]:
    """Ratio estimates of boards with this scale, prompts of unequal size."""
    sizes = rng.uniform(0.5, 2.0, (runs, prompts))
    slips = rng.standard_normal((runs, prompts)) * noise
    return [
        ratio(size * (scale + slip), size)
        for size, slip in zip(sizes, slips, strict=True)
    ]


class TestRatio:
    def test_the_jackknife_interval_covers(self):
        rng = np.random.default_rng(0)
        runs = estimates(rng, 1.0, 0.05, 12, 2000)
        covered = np.mean([abs(e.value - 1) <= e.half_width(0.05) for e in runs])
        assert covered == pytest.approx(0.90, abs=0.025)

    def test_the_jackknife_error_is_that_of_the_mean_for_equal_prompts(self):
        values = np.random.default_rng(1).standard_normal(9)
        found = ratio(values, np.ones(9))
        assert found.value == pytest.approx(values.mean())
        assert found.error == pytest.approx(values.std(ddof=1) / 3)

    @given(st.permutations(range(6)), st.floats(1e-6, 1e6))
    @settings(max_examples=50, deadline=None)
    def test_order_and_unit_of_the_prompts_do_not_matter(self, order, unit):
        top = np.array([1.0, 2.0, 1.5, 0.9, 3.0, 2.2])
        bottom = np.array([1.1, 1.9, 1.4, 1.0, 2.7, 2.5])
        plain = ratio(top, bottom)
        other = ratio(unit * top[list(order)], unit * bottom[list(order)])
        assert other.value == pytest.approx(plain.value)
        assert other.error == pytest.approx(plain.error)

    def test_one_prompt_has_no_error(self):
        assert ratio(np.array([2.0]), np.array([1.0])).half_width(0.05) == math.inf
        alone = ratio(np.array([2.0, 0.0]), np.array([1.0, 0.0]))
        assert alone.half_width(0.05) == math.inf


class TestMinimumDetectable:
    def test_published_multiples(self):
        assert minimum_detectable(1.0, 7, 1e-3) == pytest.approx(9.44, abs=0.02)
        assert minimum_detectable(1.0, 10_000, 1e-3) == pytest.approx(5.62, abs=0.02)

    @pytest.mark.parametrize("freedom", [2, 7, 23])
    @pytest.mark.parametrize("alpha", [1e-3, 1e-6])
    def test_power_is_that_of_the_noncentral_t(self, freedom, alpha):
        effect = minimum_detectable(1.0, freedom, alpha)
        critical = stats.t.isf(alpha / 2, freedom)
        power = stats.nct.sf(critical, freedom, effect)
        assert power == pytest.approx(0.99, abs=0.001)

    def test_simulated_power(self):
        rng = np.random.default_rng(2)
        prompts, alpha, noise = 10, 1e-3, 0.05
        known = noise / math.sqrt(prompts)
        effect = minimum_detectable(known, prompts - 1, alpha)

        def power(size: float) -> float:
            draws = rng.standard_normal((4000, prompts)) * noise + size
            t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(prompts))
            return float(np.mean(np.abs(t) > stats.t.isf(alpha / 2, prompts - 1)))

        assert power(effect) == pytest.approx(0.99, abs=0.006)
        assert power(0.8 * effect) < 0.95

    def test_one_degree_of_freedom_ends(self):
        assert math.isfinite(minimum_detectable(1.0, 1, 1e-9))
        assert minimum_detectable(1.0, 0, 1e-3) == math.inf


class TestWindow:
    """Theta 0.01; alpha small, as in a run of many checks."""

    def window(self, known: float = 0.002, alpha: float = 1e-5) -> Window:
        return Window(1.0, 0.01, alpha, known)

    def test_false_passes_at_the_margin_are_at_most_alpha(self):
        rng = np.random.default_rng(3)
        for scale in (0.99, 1.01):
            runs = estimates(rng, scale, 0.006, 12, 3000)
            passed = [self.window().outcome(e) is Outcome.PASS for e in runs]
            assert np.mean(passed) <= 0.05 + 0.012

    def test_right_boards_pass_and_never_fail(self):
        rng = np.random.default_rng(4)
        noise, prompts = 0.006, 12
        window = self.window(noise / math.sqrt(prompts))
        found = [window.outcome(e) for e in estimates(rng, 1.0, noise, prompts, 3000)]
        assert Outcome.FAIL not in found
        assert np.mean([o is Outcome.PASS for o in found]) > 0.98

    def test_false_alarms_at_the_margin_are_within_the_budget(self):
        rng = np.random.default_rng(5)
        noise, prompts, alpha = 0.006, 12, 0.02
        window = self.window(noise / math.sqrt(prompts), alpha)
        runs = estimates(rng, 1.01, noise, prompts, 4000)
        assert np.mean([window.outcome(e) is Outcome.FAIL for e in runs]) < 1.5 * alpha

    @pytest.mark.parametrize("known", [0.002, 10.0])
    def test_the_smallest_visible_fault_is_found(self, known):
        rng = np.random.default_rng(6)
        noise, prompts = 0.006, 24
        window = self.window(known)
        typical = Estimate(1.0, noise / math.sqrt(prompts), prompts)
        visible = window.smallest_visible(typical)

        def found(size: float) -> float:
            runs = estimates(rng, 1 + size, noise, prompts, 1500)
            return float(np.mean([window.outcome(e) is Outcome.FAIL for e in runs]))

        assert found(1.05 * visible) > 0.98
        assert found(0.01 + 0.6 * (visible - 0.01)) < 0.9

    def test_a_board_that_scatters_is_found_by_what_right_boards_do(self):
        """Its own interval reaches the target; no right board comes so far."""
        scattered = Estimate(0.3, 0.3, 8)
        assert self.window().outcome(scattered) is Outcome.FAIL
        assert self.window(known=1.0).outcome(scattered) is Outcome.INCONCLUSIVE

    def test_without_an_error_nothing_passes(self):
        assert self.window().outcome(Estimate(1.0, math.inf, 1)) is not Outcome.PASS


def test_prompts_needed_of_the_literature():
    """sd 0.1, margin 0.05: 44 at power 0.9; more at the power used here."""
    estimate = Estimate(1.0, 0.1 / math.sqrt(10), 10)
    assert prompts_needed(estimate, 0.05) == math.ceil(((1.6449 + 2.5758) * 2) ** 2)

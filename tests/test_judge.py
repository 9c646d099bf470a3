"""The judge: each question passes on a right board and fails on its fault."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from made_boards import World
from made_boards import shifted
from scipy import stats

from harness.errors import ConversionRefused
from harness.errors import HostUnreachable
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.store import GoldenStore
from harness.golden.store import Reference
from harness.verdict import BoardWrong
from harness.verdict import Budget
from harness.verdict import Inconclusive
from harness.verdict import Judge
from harness.verdict import Judgement
from harness.verdict import Outcome
from harness.verdict import RepeatFloor
from harness.verdict import apart
from harness.verdict import decide
from harness.verdict.decide import Decision
from harness.verdict.decide import kinds
from harness.verdict.factor import largest_by_chance


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WORLD = World()
BASE, RIGHT = WORLD.reference(), WORLD.reference(1.0)
CHECKS = 300  # planned, so shares are as small as in a real run


class Kept(list):
    """Judgements as the evidence gets them."""

    def judge(self, floor: RepeatFloor | None = None) -> Judge:
        return Judge(
            self.append,
            budget_share=Budget(CHECKS).share,
            floor=floor or RepeatFloor(True, 3),
            theta=0.01,
        )


def noisy_floor() -> RepeatFloor:
    seeds = itertools.count()
    return RepeatFloor.measure(lambda: WORLD.board(seed=next(seeds)))


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def judge(kept: Kept) -> Judge:
    return kept.judge()


def fails(kept: Kept, question) -> Judgement:
    with pytest.raises(BoardWrong) as caught:
        question()
    assert caught.value.judgement is kept[-1]
    assert kept[-1].outcome is Outcome.FAIL
    return kept[-1]


def undecided(kept: Kept, question) -> Judgement:
    with pytest.raises(Inconclusive) as caught:
        question()
    assert caught.value.judgement is kept[-1]
    return kept[-1]


class TestSame:
    def test_equal(self, judge):
        found = judge.same(WORLD.board(), WORLD.board())
        assert found.outcome is Outcome.PASS
        assert found.measurement.smallest_visible == 1

    def test_the_signs_of_zeros_are_no_difference(self, judge):
        logits = WORLD.board().logits.copy()
        logits[3] = 0.0
        judge.same(Scores(WORLD.set, logits), Scores(WORLD.set, -0.0 * logits + logits))

    def test_one_unit_of_one_logit(self, judge, kept):
        before = WORLD.board()
        logits = before.logits.copy()
        logits[WORLD.rows + 3, 17] = np.nextafter(logits[WORLD.rows + 3, 17], np.inf)
        found = fails(kept, lambda: judge.same(before, Scores(before.prompts, logits)))
        assert "1 of 96 rows" in found.reason
        assert "prompt 'p1' row 3: token 17" in found.reason
        assert found.measurement.value == 1

    def test_it_spends_nothing_where_the_board_repeats_exactly(self, judge):
        judge.same(WORLD.board(), WORLD.board())
        found = judge.matches(WORLD.board(), BASE)
        assert found.parameters["alpha"] == Budget(CHECKS).share(1)


class TestDiffers:
    def test_another_state(self, judge):
        judge.differs(WORLD.board(), WORLD.board(1.0))

    def test_the_same_state(self, judge, kept):
        fails(kept, lambda: judge.differs(WORLD.board(), WORLD.board()))

    def test_noise_is_no_difference(self, kept):
        floor = noisy_floor()
        judge = kept.judge(floor)
        fails(kept, lambda: judge.differs(WORLD.board(seed=1), WORLD.board(seed=900)))
        judge.differs(WORLD.board(), WORLD.board(1.0))

    def test_an_effect_too_small_to_see_decides_nothing(self, kept):
        floor = noisy_floor()
        judge = kept.judge(floor)
        found = undecided(
            kept,
            lambda: judge.differs(
                WORLD.board(seed=1), WORLD.board(seed=900), effect=1e-4
            ),
        )
        assert "below what can be seen" in found.reason


class TestMatches:
    def test_right_boards(self, judge, kept):
        judge.matches(WORLD.board(), BASE)
        judge.matches(WORLD.board(1.0), RIGHT)
        assert [j.kind for j in kept] == ["matches", "agrees"] * 2
        assert kept[0].measurement.smallest_visible > kept[0].measurement.limit
        assert kept[0].measurement.low < kept[0].measurement.value

    def test_twenty_right_boards_and_no_false_alarm(self, judge):
        for seed in range(20):
            Kept().judge().matches(WORLD.board(1.0, seed=seed), RIGHT)

    def test_a_base_with_other_weights(self, judge, kept):
        found = fails(kept, lambda: judge.matches(WORLD.board(noise=0.035), BASE))
        assert "times the floor" in found.reason
        assert "worst row" in found.reason

    def test_no_adapter(self, judge, kept):
        fails(kept, lambda: judge.matches(WORLD.board(), RIGHT))

    def test_one_wrong_prompt_among_many(self, judge, kept):
        rows = slice(WORLD.rows, 2 * WORLD.rows)
        bad = shifted(WORLD.board(1.0), rows, 0.4)
        found = fails(kept, lambda: judge.matches(bad, RIGHT))
        assert "worst prompt 'p1'" in found.reason

    def test_a_single_prompt(self, judge, kept):
        few = WORLD.set.few(1, WORLD.rows)
        judge.matches(WORLD.board().on(few), BASE)
        fails(kept, lambda: judge.matches(WORLD.board(1.0).on(few), BASE))

    def test_near_the_limit_nothing_is_decided(self, judge, kept):
        undecided(kept, lambda: judge.matches(WORLD.board(noise=0.019), BASE))
        assert "leave it between" in kept[-1].reason

    def test_a_device_that_computes_in_float32(self, judge, kept):
        exact = Reference(BASE.exact, BASE.exact)
        rounded = Scores(WORLD.set, BASE.exact.logits * np.float32(1 + 1e-6))
        judge.matches(rounded, exact)
        fails(kept, lambda: judge.matches(WORLD.board(noise=1e-3), exact))

    def test_rows_that_flip_clearly(self, judge, kept):
        logits = RIGHT.exact.logits.copy()
        logits[:, 0] = logits.max(axis=1) + 0.5
        found = fails(kept, lambda: judge.agrees(Scores(WORLD.set, logits), RIGHT))
        assert "flipped clearly" in found.reason

    def test_rounding_between_two_states(self, judge, kept):
        judge.close(WORLD.board(1.0), WORLD.board(1.0, seed=50), RIGHT)
        fails(kept, lambda: judge.close(WORLD.board(1.0), WORLD.board(1.2), RIGHT))

    def test_a_missing_adapter_within_the_rounding_is_not_green(self, kept):
        slight = World(effect=0.0)

        def board(scale: float, seed: int) -> Scores:
            return slight.board(scale, seed, noise=0.004)

        loaded, base, right = board(0.4, 7), board(0.0, 7), slight.reference(0.4)
        kept.judge().close(loaded, board(0.0, 90), right)  # nothing to hold it against
        for observed in (board(0.0, 90), board(0.4, 50)):
            undecided(
                kept,
                lambda o=observed: kept.judge().close(loaded, o, right, base=base),
            )
            assert "below what can be seen" in kept[-1].reason

    def test_a_missing_adapter_is_seen_against_the_base(self, judge, kept):
        base, loaded = WORLD.board(), WORLD.board(1.0)
        judge.close(loaded, WORLD.board(1.0, seed=50), RIGHT, base=base)
        fails(kept, lambda: judge.close(loaded, base, RIGHT, base=base))


def matched(ratios: list[float], alpha: float = 1e-6) -> Decision:
    """`matches` where prompts lie at these multiples of their floors."""
    squares = np.square(np.asarray(ratios) * 0.005).tolist()
    statistics = {
        "prompts": [f"p{k}" for k in range(len(ratios))],
        "error": squares,
        "norm": [1.0] * len(ratios),
        "floor": [0.005**2] * len(ratios),
    }
    parameters = {"alpha": alpha, "factor": 2.0, "spread": 0.35, "least": 1e-5}
    return decide("matches", statistics, parameters)


class TestFewWrongPrompts:
    """Faults in a minority of prompts, in multiples of the numeric floor."""

    def test_right_boards_as_measured(self):
        """Base, loaded and delta of the simulated board: 0.9-1.3 and 1.0-2.3."""
        rng = np.random.default_rng(0)
        for centre, spread in ((1.1, 0.08), (1.5, 0.17), (0.4, 0.2)):
            for _ in range(20):
                ratios = centre * np.exp(spread * rng.standard_normal(24))
                assert matched(ratios.tolist()).outcome is Outcome.PASS

    def test_four_of_24(self):
        decision = matched([6.0] * 4 + [1.0] * 20)
        assert decision.outcome is Outcome.FAIL
        assert "worst prompt 'p0'" in decision.reason

    def test_one_of_24_far_off(self):
        """Pooled it is below the factor: sqrt((7.5^2 + 23) / 24) = 1.8."""
        assert matched([7.5] + [1.0] * 23).outcome is Outcome.FAIL

    @pytest.mark.parametrize("wrong", [1, 2, 3])
    def test_fewer_are_never_green(self, wrong):
        ratios = [6.0] * wrong + [1.0] * (24 - wrong)
        assert matched(ratios).outcome is not Outcome.PASS

    @pytest.mark.parametrize("equal", [1, 6, 12])
    def test_prompts_that_are_equal_make_up_for_nothing(self, equal):
        ratios = [0.0] * equal + [2.6] * (24 - equal)
        assert matched(ratios).outcome is not Outcome.PASS

    def test_all_equal(self):
        decision = matched([0.0] * 4)
        assert decision.outcome is Outcome.PASS
        assert decision.measurement.value == decision.measurement.low == 0.0
        assert decision.measurement.high > 0.25 * 0.005  # no nearer than right boards

    @pytest.mark.parametrize("count", [1, 4, 24])
    def test_what_it_names_as_visible_is_found(self, count):
        right = matched([1.0] * count).measurement
        visible = right.smallest_visible / 0.005
        assert matched([visible] * count).outcome is Outcome.FAIL
        alone = float(right.note.rpartition(" ")[2]) / 0.005
        assert matched([alone] + [1.0] * (count - 1)).outcome is Outcome.FAIL
        assert matched([alone] + [0.0] * (count - 1)).outcome is Outcome.FAIL

    @pytest.mark.parametrize("count", [1, 2, 8, 24])
    @pytest.mark.parametrize("alpha", [0.05, 1e-3])
    def test_right_boards_exceed_the_bound_seldom(self, count, alpha):
        rng = np.random.default_rng(count)
        ratios = np.exp(0.35 * rng.standard_normal((400_000, count)))
        pooled = np.sqrt(np.mean(ratios**2, axis=1))
        bound = math.exp(largest_by_chance(count, 0.35, alpha))
        # Above a single prompt's own limit that prompt is found by itself.
        alone = math.exp(0.35 * -stats.norm.ppf(alpha / count))
        share = np.mean((pooled > bound) & (ratios.max(axis=1) <= alone))
        assert share <= alpha
        assert np.mean(pooled > 0.75 * bound) > alpha  # and is not far too wide


class TestDelta:
    def ask(self, judge: Judge, observed: Scores, name: str = "delta_matches"):
        return getattr(judge, name)(observed, WORLD.board(), RIGHT, BASE)

    def test_right_board(self, judge):
        self.ask(judge, WORLD.board(1.0))

    @pytest.mark.parametrize("scale", [0.0, 0.25, 1.3, 4.0, -1.0])
    def test_a_wrong_scale(self, judge, kept, scale):
        fails(kept, lambda: self.ask(judge, WORLD.board(scale)))

    def test_another_direction(self, judge, kept):
        other = WORLD.score(
            WORLD.states() + np.roll(WORLD.states(1.0) - WORLD.states(), 1, axis=1), 7
        )
        fails(kept, lambda: self.ask(judge, other))

    def test_a_missing_adapter_has_no_residual_of_its_own(self, judge, kept):
        """d = 0: a free scale would fit it with no residual at all."""
        found = fails(kept, lambda: self.ask(judge, WORLD.board()))
        assert found.measurement.value == pytest.approx(0.99, abs=0.01)

    def test_an_effect_below_the_floor(self, kept):
        small = World(effect=0.0, rounding=3.0)
        judge = kept.judge()
        found = undecided(
            kept,
            lambda: judge.delta_matches(
                small.board(1.0),
                small.board(),
                small.reference(1.0),
                small.reference(),
            ),
        )
        assert "below what can be seen" in found.reason

    @pytest.mark.parametrize("name", ["delta_matches", "scale_is"])
    def test_a_reference_that_changes_nothing(self, judge, kept, name):
        question = getattr(judge, name)
        undecided(kept, lambda: question(WORLD.board(1.0), WORLD.board(), BASE, BASE))
        assert "its delta is zero" in kept[-1].reason


class TestScale:
    def ask(self, judge: Judge, scale: float, **named):
        return judge.scale_is(WORLD.board(scale), WORLD.board(), RIGHT, BASE, **named)

    def test_right_board(self, judge):
        found = self.ask(judge, 1.0)
        assert found.measurement.value == pytest.approx(1.0, abs=0.005)
        assert 0.01 < found.measurement.smallest_visible < 0.05

    @pytest.mark.parametrize("scale", [0.0, 0.25, 0.95, 1.05, 2.0])
    def test_a_wrong_scale(self, judge, kept, scale):
        found = fails(kept, lambda: self.ask(judge, scale))
        assert "farthest prompt" in found.reason

    def test_an_error_near_the_margin_is_not_green(self, judge, kept):
        with pytest.raises((Inconclusive, BoardWrong)):
            self.ask(judge, 1.012)

    def test_its_note_says_how_far_s_may_be_from_the_scale(self, judge):
        note = self.ask(judge, 1.0).measurement.note
        assert "on the fixture 1.07-1.41 times as far off as the scale" in note

    def test_another_expected_scale(self, judge, kept):
        with pytest.raises((Inconclusive, BoardWrong)):
            self.ask(judge, 1.0, expected=0.5)

    def test_few_prompts_do_not_decide(self, kept):
        few = WORLD.set.few(2, 2)
        judge = kept.judge()
        found = undecided(
            kept,
            lambda: judge.scale_is(
                WORLD.board(1.0).on(few), WORLD.board().on(few), RIGHT, BASE
            ),
        )
        assert "do not decide" in found.reason

    def test_false_passes_of_a_board_at_the_margin(self):
        passed = 0
        for seed in range(60):
            try:
                Kept().judge().scale_is(
                    WORLD.board(1.0115, seed=seed),
                    WORLD.board(seed=500 + seed),
                    RIGHT,
                    BASE,
                )
                passed += 1
            except (Inconclusive, BoardWrong):
                continue
        assert passed <= 8  # 5 % of 60 at 1.01 exactly, and scatter


class TestGain:
    def ask(self, judge: Judge, observed: Scores, right: Reference = RIGHT):
        return judge.gain_is(observed, WORLD.board(), right, BASE)

    def test_right_board(self, judge):
        found = self.ask(judge, WORLD.board(1.0))
        assert found.measurement.unit == "nat/token"
        assert abs(found.measurement.value) < 0.02

    @pytest.mark.parametrize("scale", [0.0, 0.25, 0.7])
    def test_less_gain(self, judge, kept, scale):
        fails(kept, lambda: self.ask(judge, WORLD.board(scale)))

    def test_a_gain_too_small_to_miss(self, judge, kept):
        slight = WORLD.reference(0.01)
        undecided(kept, lambda: self.ask(judge, WORLD.board(0.01), slight))
        assert "less than what can be seen" in kept[-1].reason


class TestGap:
    def test_the_same_adapter_in_both(self, judge):
        judge.gap_is_no_larger(
            WORLD.board(1.0),
            WORLD.board(1.0, seed=60),
            WORLD.board(),
            WORLD.board(seed=61),
        )

    def test_the_decode_branch_is_missing(self, judge, kept):
        found = fails(
            kept,
            lambda: judge.gap_is_no_larger(
                WORLD.board(1.0),
                WORLD.board(seed=60),
                WORLD.board(),
                WORLD.board(seed=61),
            ),
        )
        assert "gap in the base" in found.reason

    def test_an_adapter_too_small_to_miss_is_not_green(self, kept):
        """Effect 0.012, base gap 0.008: a graph that never sees it looks right."""
        slight = World(effect=0.0)

        def board(scale: float, seed: int) -> Scores:
            return slight.board(scale, seed, noise=0.0057)

        base = board(0.0, 7), board(0.0, 61)
        assert apart(base[1], base[0]) == pytest.approx(0.008, abs=0.001)
        assert apart(
            slight.score(slight.states(0.37)), slight.score(slight.states())
        ) == pytest.approx(0.012, abs=0.001)
        for decode in (board(0.37, 60), board(0.0, 60)):
            judge = kept.judge()
            undecided(
                kept,
                lambda d=decode, j=judge: j.gap_is_no_larger(board(0.37, 7), d, *base),
            )
            assert "below what can be seen" in kept[-1].reason

    def test_a_gap_in_some_prompts_of_the_base_counts_for_all(self, judge):
        """On which prompts the base's graphs agree to the last bit is luck."""
        base, loaded = WORLD.board(), WORLD.board(1.0)
        half = slice(0, WORLD.rows * WORLD.prompts // 2)
        other = slice(half.stop, None)
        judge.gap_is_no_larger(
            loaded, shifted(loaded, other, 0.02), base, shifted(base, half, 0.02)
        )

    def test_graphs_that_agree_to_the_last_bit(self, judge, kept):
        base, loaded = WORLD.board(), WORLD.board(1.0)
        judge.gap_is_no_larger(loaded, loaded, base, base)
        fails(kept, lambda: judge.gap_is_no_larger(loaded, base, base, base))


class TestFacts:
    def test_equal(self, judge, kept):
        judge.equal({"a": 1.0}, {"a": 1.0})
        judge.equal(("a", "b"), ["a", "b"])
        found = fails(kept, lambda: judge.equal("x", "y", name="reported"))
        assert found.reason == "is 'x', expected 'y'"

    def test_at_most(self, judge, kept):
        judge.at_most(1.5, 2.0, "s", "as documented")
        fails(kept, lambda: judge.at_most(2.5, 2.0, "s"))
        for broken in (math.nan, math.inf):
            fails(kept, lambda broken=broken: judge.at_most(broken, 2.0))

    def test_note(self, judge, kept):
        """What is seen is kept, and nobody is blamed or praised for it."""
        found = judge.note("a file of another adapter is taken", name="its cache")
        assert kept == [found] and found.outcome is Outcome.PASS
        assert found.kind == "note" and found.name == "its cache"
        assert found.reason == "a file of another adapter is taken"
        assert "not judged" in found.measurement.note
        again = Judgement.from_json(json.loads(json.dumps(found.to_json())))
        decided = decide(again.kind, again.statistics, again.parameters)
        assert decided.outcome is Outcome.PASS and decided.reason == found.reason

    def test_a_note_finds_no_control_wrong(self, judge, kept):
        fails(kept, lambda: judge.found_wrong("c", lambda j: j.note("odd", name="n")))

    def test_refused(self, judge, kept):
        def refuse(error: Exception):
            def attempt():
                raise error

            return attempt

        found = judge.refused(
            refuse(RuntimeRefused("no such slot", vendor_code="-7")), within=5
        )
        assert found.statistics["vendor_code"] == "-7"
        judge.refused(refuse(ConversionRefused("rank 64 over 32")), within=5)
        for wrong in (RuntimeDied("signal 11"), RuntimeHung("no answer")):
            found = fails(kept, lambda e=wrong: judge.refused(refuse(e), within=5))
            assert wrong.code in found.reason
        found = fails(kept, lambda: judge.refused(lambda: None, within=5))
        assert "accepted" in found.reason
        late = RuntimeRefused("no")
        fails(kept, lambda: judge.refused(refuse(late), within=1e-12))
        with pytest.raises(HostUnreachable):
            judge.refused(refuse(HostUnreachable("gone")), within=5)

    def test_a_refusal_that_does_not_say_why_is_noted(self, judge):
        def attempt():
            raise RuntimeRefused("Rank 64 over the reserved 32")

        asked = {"rank": "", "reserved 32": "", "truncated": "does not mention"}
        for says, noted in asked.items():
            found = judge.refused(attempt, within=5, says=says)
            assert found.outcome is Outcome.PASS
            assert bool(noted) == ("does not mention" in found.measurement.note)
        assert "'truncated'" in found.measurement.note

    def test_lives(self, judge, kept):
        def ends(error: Exception):
            def attempt():
                raise error

            return attempt

        assert "accepted" in judge.lives(lambda: None, within=5).reason
        refused = judge.lives(ends(RuntimeRefused("no NaN")), within=5)
        assert "refused" in refused.reason and "no NaN" in refused.reason
        for wrong in (RuntimeDied("signal 11"), RuntimeHung("no answer")):
            found = fails(kept, lambda e=wrong: judge.lives(ends(e), within=5))
            assert wrong.code in found.reason
        fails(kept, lambda: judge.lives(lambda: None, within=1e-12))
        with pytest.raises(HostUnreachable):
            judge.lives(ends(HostUnreachable("gone")), within=5)

    def test_numbers_with_fractions_differ_by_any_difference(self, judge):
        assert judge.equal(3, 3).measurement.smallest_visible == 1
        fraction = judge.equal(0.5, 0.5).measurement
        assert fraction.smallest_visible is None
        assert fraction.note == "any difference is seen"


class TestControl:
    def test_a_fault_that_is_found(self, judge, kept):
        found = judge.found_wrong(
            "no adapter", lambda inner: inner.matches(WORLD.board(), RIGHT)
        )
        assert found.outcome is Outcome.PASS
        assert "found wrong by" in found.reason
        assert [j.kind for j in kept] == ["control"]

    def test_a_fault_that_is_not_found(self, judge, kept):
        found = fails(
            kept,
            lambda: judge.found_wrong(
                "blind", lambda inner: inner.matches(WORLD.board(1.0), RIGHT)
            ),
        )
        assert "not found wrong" in found.reason

    def near(self, inner: Judge) -> None:
        inner.matches(WORLD.board(noise=0.019), BASE)

    def test_undecided_alone_is_undecided(self, judge, kept):
        found = undecided(kept, lambda: judge.found_wrong("near", self.near))
        assert "came to INCONCLUSIVE" in found.reason

    def test_what_comes_after_an_undecided_judgement_may_find_it(self, judge, kept):
        def check(inner: Judge) -> None:
            self.near(inner)
            inner.equal("a", "a")
            inner.equal("a", "b", name="fact of the fault")

        found = judge.found_wrong("late", check)
        assert "found wrong by fact of the fault" in found.reason
        assert [j.kind for j in kept] == ["control"]
        undecided(kept, lambda: self.near(judge))  # outside it ends the check

    def test_another_direction_at_the_right_scale(self, judge):
        """The scale test cannot tell, the direction does."""
        base = WORLD.states()
        change = WORLD.states(1.0) - base
        odd = np.random.default_rng(5).standard_normal(change.shape)
        odd *= 0.4 * np.linalg.norm(change) / np.linalg.norm(odd)
        wrong = WORLD.score(base + change + odd, 7)

        def check(inner: Judge) -> None:
            inner.scale_is(wrong, WORLD.board(), RIGHT, BASE)
            inner.delta_matches(wrong, WORLD.board(), RIGHT, BASE)

        found = judge.found_wrong("turned", check)
        assert "direction of the delta" in found.reason
        assert found.statistics["inner"][0]["outcome"] is Outcome.INCONCLUSIVE

    def test_nothing_judged_is_not_found(self, judge, kept):
        found = fails(kept, lambda: judge.found_wrong("idle", lambda inner: None))
        assert "nothing was judged" in found.reason

    def test_inner_outcomes_are_not_believed(self, judge, kept):
        judge.found_wrong("x", lambda inner: inner.equal(1, 2))
        forged = json.loads(json.dumps(kept[-1].to_json()))
        forged["statistics"]["inner"][0]["statistics"]["observed"] = 2
        again = decide("control", forged["statistics"], forged["parameters"])
        assert again.outcome is Outcome.FAIL


class TestNumbersThatAreNone:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_they_are_wrong_everywhere(self, kept, value):
        logits = WORLD.board(1.0).logits.copy()
        logits[9, 4] = value
        bad, base = Scores(WORLD.set, logits), WORLD.board()
        questions = [
            lambda j: j.same(bad, bad),
            lambda j: j.differs(base, bad),
            lambda j: j.matches(bad, RIGHT),
            lambda j: j.agrees(bad, RIGHT),
            lambda j: j.close(base, bad, RIGHT),
            lambda j: j.delta_matches(bad, base, RIGHT, BASE),
            lambda j: j.scale_is(bad, base, RIGHT, BASE),
            lambda j: j.gain_is(bad, base, RIGHT, BASE),
            lambda j: j.gap_is_no_larger(bad, base, base, base),
        ]
        for question in questions:
            found = fails(kept, lambda q=question: q(kept.judge()))
            assert "NaN or infinite" in found.reason
            assert "prompt 'p1' row 1 token 4" in found.reason
            json.dumps(found.to_json(), allow_nan=False)

    def test_in_the_golden_they_are_our_bug(self, judge):
        logits = RIGHT.exact.logits.copy()
        logits[0, 0] = np.nan
        broken = Reference(Scores(WORLD.set, logits), RIGHT.device)
        with pytest.raises(ValueError, match="golden"):
            judge.matches(WORLD.board(1.0), broken)


def every_judgement() -> list[Judgement]:
    """One judgement at least of each kind and outcome that is easily had."""
    kept = Kept()
    noisy = noisy_floor()
    base, loaded = WORLD.board(), WORLD.board(1.0)
    few = WORLD.set.few(2, 2)

    def refuse() -> None:
        raise RuntimeRefused("no")

    questions = [
        lambda j: j.same(base, base),
        lambda j: j.same(base, loaded),
        lambda j: j.differs(base, loaded),
        lambda j: j.differs(base, base),
        lambda j: j.matches(loaded, RIGHT),
        lambda j: j.matches(base, RIGHT),
        lambda j: j.matches(WORLD.board(noise=0.019), BASE),
        lambda j: j.close(base, loaded, RIGHT),
        lambda j: j.close(loaded, loaded, RIGHT, base=base),
        lambda j: j.delta_matches(loaded, base, RIGHT, BASE),
        lambda j: j.scale_is(loaded, base, RIGHT, BASE),
        lambda j: j.scale_is(WORLD.board(0.3), base, RIGHT, BASE),
        lambda j: j.scale_is(loaded.on(few), base.on(few), RIGHT, BASE),
        lambda j: j.scale_is(
            loaded.on(few.few(1, 2)), base.on(few.few(1, 2)), RIGHT, BASE
        ),
        lambda j: j.gain_is(loaded, base, RIGHT, BASE),
        lambda j: j.gap_is_no_larger(loaded, loaded, base, base),
        lambda j: j.equal("a", "b"),
        lambda j: j.at_most(1, 2, "s"),
        lambda j: j.equal("a", "a"),
        lambda j: j.note("this way or that", name="n"),
        lambda j: j.refused(lambda: None, within=1),
        lambda j: j.refused(refuse, within=1, says="why"),
        lambda j: j.lives(refuse, within=1),
        lambda j: j.found_wrong("c", lambda inner: inner.same(base, loaded)),
    ]
    for floor, question in itertools.product((None, noisy), questions):
        try:
            question(kept.judge(floor))
        except (BoardWrong, Inconclusive):
            continue
    return list(kept)


EVERY = every_judgement()


class TestDerivedAgain:
    @pytest.mark.parametrize("judgement", EVERY, ids=lambda j: f"{j.kind}-{j.outcome}")
    def test_from_its_json(self, judgement):
        text = json.dumps(judgement.to_json(), allow_nan=False)
        again = Judgement.from_json(json.loads(text))
        assert again == judgement or again.to_json() == json.loads(text)
        decision = decide(again.kind, again.statistics, again.parameters)
        assert decision.outcome is judgement.outcome
        assert decision.measurement == judgement.measurement
        assert decision.reason == judgement.reason

    def test_every_outcome_and_kind_is_among_them(self):
        assert {j.outcome for j in EVERY} == set(Outcome)
        assert {j.kind for j in EVERY} == kinds()

    def test_each_pass_tells_what_it_could_have_seen(self):
        passed = [j for j in EVERY if j.outcome is Outcome.PASS]
        assert {j.kind for j in passed} == kinds()
        silent = [j for j in passed if j.measurement.smallest_visible is None]
        assert all(j.measurement.note for j in silent)

    def test_reasons_are_one_line(self):
        assert not [j.reason for j in EVERY if "\n" in j.reason or not j.reason]

    def test_damaged_statistics_are_refused(self):
        for judgement in EVERY:
            with pytest.raises(ValueError, match="statistics of"):
                decide(judgement.kind, {}, judgement.parameters)
        with pytest.raises(ValueError, match="no rule"):
            decide("guess", {}, {})
        with pytest.raises(ValueError, match="not a judgement"):
            Judgement.from_json({"kind": "same"})


class TestInvariance:
    @given(st.permutations(range(6)))
    @settings(max_examples=15, deadline=None)
    def test_the_order_of_prompts_does_not_matter(self, order):
        few = WORLD.set.few(6, WORLD.rows)
        mixed = PromptSet(tuple(few.prompts[i] for i in order))
        found = []
        for prompts in (few, mixed):
            judge = Kept().judge()
            found.append(
                judge.delta_matches(
                    WORLD.board(1.0).on(prompts),
                    WORLD.board().on(prompts),
                    RIGHT,
                    BASE,
                ).measurement
            )
        assert found[0].value == pytest.approx(found[1].value)
        assert found[0].high == pytest.approx(found[1].high)
        assert found[0].smallest_visible == pytest.approx(found[1].smallest_visible)

    @given(
        st.lists(
            st.floats(0, 1e90) | st.sampled_from([0.0, 1e-300]),
            min_size=6,
            max_size=6,
        ),
        st.sampled_from(["matches", "close", "gap", "delta", "scale", "gain", "same"]),
    )
    @settings(max_examples=150, deadline=None)
    def test_no_sums_make_a_rule_say_nan(self, values, kind):
        pair = [values[:2], values[2:4], values[4:]]
        statistics = {
            "prompts": ["a", "b"],
            "rows": 2,
            "differing": 1,
            "tokens": [3, 4],
            "error": pair[0],
            "norm": pair[1],
            "floor": pair[2],
            "effect": pair[1],
            "cross": [-x for x in pair[0]],
            "floor_error": pair[2],
            "floor_cross": pair[2],
            "board": pair[0],
            "reference": pair[1],
            "device": pair[2],
        }
        parameters = {
            "alpha": 1e-6,
            "factor": 2.0,
            "spread": 0.35,
            "theta": 0.01,
            "expected": 1.0,
            "margin": 0.02,
            "least": 1e-3,
            "floor": None,
        }
        decision = decide(kind, statistics, parameters)
        json.dumps(
            [
                decision.measurement.value,
                decision.measurement.low,
                decision.measurement.high,
                decision.measurement.smallest_visible,
                decision.measurement.used,
            ],
            allow_nan=False,
        )


class TestTheFixture:
    """The golden's own device arithmetic is a right board."""

    @pytest.fixture
    def golden(self) -> GoldenStore:
        return GoldenStore.open(FIXTURES / "golden", FIXTURES / "base")

    def test_each_adapter_is_right_and_no_other(self, golden):
        base = golden.base()
        digests = list(golden.adapters)
        for digest, other in zip(digests, digests[1:] + digests[:1], strict=True):
            right = golden.adapter(digest)
            j = Kept().judge()
            j.matches(right.device, right)
            j.delta_matches(right.device, base.device, right, base)
            j.scale_is(right.device, base.device, right, base)
            wrong = golden.adapter(other).device
            for question in ("delta_matches", "scale_is"):
                with pytest.raises(BoardWrong):
                    getattr(Kept().judge(), question)(wrong, base.device, right, base)
            with pytest.raises(BoardWrong):
                Kept().judge().matches(wrong, right)

    def test_gain_on_the_own_domain(self, golden):
        asked = 0
        for digest, entry in golden.adapters.items():
            if entry.domain is None:
                continue
            asked += 1
            right, base = golden.adapter(digest, digest), golden.base(digest)
            Kept().judge().gain_is(right.device, base.device, right, base)
            with pytest.raises((BoardWrong, Inconclusive)):
                Kept().judge().gain_is(base.device, base.device, right, base)
        assert asked


def test_a_check_spends_no_more_than_its_share():
    budget = Budget(40)
    spent = sum(budget.share(i) for i in range(1, 2000))
    assert spent == pytest.approx(1e-3 / 40, rel=1e-3)
    with pytest.raises(ValueError, match="planned"):
        Budget(0)


def test_other_prompts_are_our_bug(judge):
    with pytest.raises(ValueError, match="different"):
        judge.same(WORLD.board(), WORLD.board().on(WORLD.set.few(2, 2)))

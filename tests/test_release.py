"""From records to the release verdict: the truth table, and derivation again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from harness.evidence import Check
from harness.evidence import Deselected
from harness.evidence import Judged
from harness.evidence import Planned
from harness.evidence import Record
from harness.evidence import Status
from harness.evidence import derive
from harness.evidence import last_attempts
from harness.evidence import rederive
from harness.verdict import BoardWrong
from harness.verdict import Budget
from harness.verdict import Judge
from harness.verdict import Judgement
from harness.verdict import Outcome
from harness.verdict import RepeatFloor


def judged(question) -> Judgement:
    kept: list[Judgement] = []
    judge = Judge(
        kept.append,
        budget_share=Budget(1).share,
        floor=RepeatFloor(True, 3),
        theta=0.01,
    )
    try:
        question(judge)
    except BoardWrong:
        pass
    return kept[-1]


RIGHT = judged(lambda j: j.equal(1, 1))
WRONG = judged(lambda j: j.equal(1, 2))
FOUND = judged(lambda j: j.found_wrong("half", lambda inner: inner.equal(1, 2)))
NOT_FOUND = judged(lambda j: j.found_wrong("half", lambda inner: inner.equal(1, 1)))


class Story:
    """Records of a made-up run."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def check(
        self,
        name: str,
        status: Status | None,
        *judgements: Judgement,
        board: str = "sim",
        attempt: int = 1,
        requirement: str = "R10",
    ) -> Story:
        """A planned check and how it ended; None: it never did."""
        where = (f"suites/{name}[{board}]", board, "r8", (requirement,))
        plan = Planned(*where, title=name)
        if plan not in self.records:
            self.records.append(plan)
        self.records += [Judged(*where, attempt, j) for j in judgements]
        if status is not None:
            reason = "" if status is Status.PASS else f"{name} is {status}"
            self.records.append(Check(*where, attempt, status, reason, 0.1, 1.0))
        return self

    def control(self, judgement: Judgement = FOUND, board: str = "sim") -> Story:
        found = judgement.outcome is Outcome.PASS
        status = Status.PASS if found else Status.INCONCLUSIVE
        return self.check("control", status, judgement, board=board, requirement="R91")


def good() -> Story:
    return Story().check("base", Status.PASS, RIGHT).control()


def verdict(story: Story) -> tuple[str, int]:
    found = derive(story.records)
    assert found.reason
    assert "\n" not in found.reason
    return found.verdict, found.exit_status


class TestTruthTable:
    def test_all_right(self):
        found = derive(good().records)
        assert (found.verdict, found.exit_status) == ("GO", 0)
        assert (found.planned, found.executed, found.missing) == (2, 2, ())

    def test_one_wrong_board_stops_it(self):
        story = good().check("loaded", Status.FAIL, WRONG)
        assert verdict(story) == ("NO-GO", 1)
        assert (
            "R10 failed on sim with r8: loaded is FAIL" in derive(story.records).reason
        )

    def test_wrong_beats_everything_else(self):
        story = good().check("loaded", Status.FAIL, WRONG)
        story.check("a", Status.ERROR).check("b", None).control(NOT_FOUND, "sim2")
        assert verdict(story) == ("NO-GO", 1)

    def test_a_control_not_found_makes_the_run_invalid(self):
        story = good().control(NOT_FOUND, "sim2").check("x", Status.MISS)
        assert verdict(story) == ("INVALID", 11)

    def test_no_control_on_a_board(self):
        story = good().check("base", Status.PASS, RIGHT, board="sim2")
        assert verdict(story) == ("INVALID", 11)
        assert "sim2" in derive(story.records).reason

    @pytest.mark.parametrize("status", [Status.MISS, Status.ERROR, None])
    def test_what_did_not_run_is_never_green(self, status):
        assert verdict(good().check("late", status)) == ("INCONCLUSIVE", 12)

    def test_a_board_that_is_away(self):
        story = good()
        for name in ("base", "control"):
            story.check(name, Status.MISS, board="sim2")
        assert verdict(story) == ("INCONCLUSIVE", 12)

    def test_undecided(self):
        story = good().check("scale", Status.INCONCLUSIVE)
        assert verdict(story) == ("INCONCLUSIVE", 10)

    def test_a_part_of_the_checks(self):
        story = good()
        story.records.append(Deselected("sim", 5))
        assert verdict(story) == ("INCONCLUSIVE", 10)
        assert "partial" in derive(story.records).reason

    def test_nothing_at_all(self):
        assert verdict(Story()) == ("INCONCLUSIVE", 12)
        assert verdict(Story().check("base", None)) == ("INCONCLUSIVE", 12)

    def test_skips_do_not_stand_in_the_way(self):
        assert verdict(good().check("runtime scale", Status.SKIP)) == ("GO", 0)

    def test_the_last_attempt_counts(self):
        story = (
            good().check("x", Status.ERROR).check("x", Status.PASS, RIGHT, attempt=2)
        )
        assert verdict(story) == ("GO", 0)
        assert len([r for r in story.records if isinstance(r, Check)]) == 4
        story.check("x", Status.FAIL, WRONG, attempt=3)
        assert verdict(story) == ("NO-GO", 1)
        assert last_attempts(story.records)["suites/x[sim]"].attempt == 3

    def test_a_control_of_an_earlier_attempt_does_not_count(self):
        story = Story().check("base", Status.PASS, RIGHT).control(NOT_FOUND)
        story.check("control", Status.PASS, FOUND, attempt=2, requirement="R91")
        assert verdict(story) == ("GO", 0)


@given(st.lists(st.sampled_from([*Status, None]), max_size=6))
@settings(max_examples=100, deadline=None)
def test_green_only_when_everything_is(statuses):
    story = good()
    for number, status in enumerate(statuses):
        story.check(f"c{number}", status, *([RIGHT] if status is Status.PASS else []))
    name, code = verdict(story)
    clean = set(statuses) <= {Status.PASS, Status.SKIP}
    assert (name == "GO") == clean == (code == 0)
    assert (code == 1) == (Status.FAIL in statuses)


@given(st.permutations(range(7)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_records_does_not_matter(order):
    records = good().check("loaded", Status.INCONCLUSIVE).records
    assert derive([records[i] for i in order]).verdict == derive(records).verdict


class TestDerivedAgain:
    def test_a_clean_run(self):
        assert rederive(good().check("x", Status.FAIL, WRONG).records) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"outcome": Outcome.PASS},
            {"statistics": {"observed": 2, "expected": 2}},
            {"statistics": {}},
            {"kind": "guess"},
            {"measurement": replace(WRONG.measurement, limit=5)},
        ],
        ids=lambda c: next(iter(c)),
    )
    def test_a_changed_judgement_is_named(self, change):
        records = good().check("x", Status.FAIL, replace(WRONG, **change)).records
        assert any("suites/x[sim]: fact" in line for line in rederive(records))

    def test_a_pass_needs_judgements_that_pass(self):
        for judgements in ((), (WRONG,), (RIGHT, WRONG)):
            story = good().check("x", Status.PASS, *judgements)
            assert any("without a passing" in line for line in rederive(story.records))

    def test_a_check_nobody_planned(self):
        records = [r for r in good().records if not isinstance(r, Planned)]
        assert any("never planned" in line for line in rederive(records))

    def test_each_judgement_of_a_control_is_decided_again(self):
        inner = [{**j, "outcome": "FAIL"} for j in NOT_FOUND.statistics["inner"]]
        forged = replace(FOUND, statistics={"inner": inner})
        assert rederive(good().control(forged, "sim2").records)


def test_every_status_beside_every_other_has_one_verdict():
    for pair in itertools.product([*Status, None], repeat=2):
        story = good()
        for number, status in enumerate(pair):
            story.check(f"c{number}", status)
        assert verdict(story)[1] in (0, 1, 10, 12)

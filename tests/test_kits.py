"""What checks put on a board beside the adapters under test, and when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_adapters import FIXTURES
from made_adapters import deltas
from made_adapters import differing

from harness.acceptance import Acceptance
from harness.artifacts.adapter import Adapter
from harness.checks import Check
from harness.kits import CREW
from harness.kits import KITS
from harness.kits import OF_THE_WIDEST
from harness.kits import SCALES
from harness.kits import Kits
from harness.plan import Plan


def kits_of(scratch: Path, *names: str) -> Kits:
    adapters = [Adapter.open(FIXTURES / "adapters" / name) for name in names]
    return Kits(adapters, 64, lambda: 0.01, scratch)


@pytest.fixture
def kits(tmp_path: Path) -> Kits:
    return kits_of(tmp_path, "r4-qv", "r8-all")


class TestNeeds:
    def test_only_what_the_arguments_say(self, kits: Kits) -> None:
        assert kits.needs(["device", "judge", "brief", "made"], "r4-qv") == {}
        mine, widest = (a.folder for a in kits.adapters)
        assert kits.needs(["device", "adapter"], "r4-qv") == {"r4-qv": mine}
        assert kits.needs(["widest_adapter"], "r4-qv") == {"r8-all": widest}
        assert kits.needs(["crew"], "") == {"r8-all": widest, "r4-qv": mine}
        assert kits.needs(["adapter", "other"], "r4-qv") == {
            "r4-qv": mine,
            "r8-all": widest,
        }

    def test_a_twin_is_needed_as_well(self, kits: Kits) -> None:
        made = kits.made("equivalents", "r8-all")
        twins = [m.twin for m in made if m.twin]
        needs = kits.needs(["equivalents"], "r8-all")
        assert twins and set(needs.values()) == {m.folder for m in made} | set(twins)

    @pytest.mark.parametrize("kit", KITS)
    def test_all_of_a_kit_under_its_own_names(self, kits: Kits, kit: str) -> None:
        needs = kits.needs([kit], "r8-all")
        folders = [f for made in kits.made(kit, "r8-all") for f in made.folders]
        assert needs == {folder.name: folder for folder in folders}
        assert len(needs) == len(folders) > 0
        assert all((folder / "adapter_config.json").is_file() for folder in folders)

    def test_no_two_have_one_name(self, kits: Kits) -> None:
        names: list[str] = []
        for adapter in kits.adapters:
            for kit in KITS.keys() - OF_THE_WIDEST - {"other"}:
                names += kits.needs([kit], adapter.name)
        for kit in OF_THE_WIDEST - {"crew"}:
            names += kits.needs([kit], "")
        names += [adapter.name for adapter in kits.adapters]
        names += [kits.new("same-name").name, kits.new("same-name").name]
        assert len(set(names)) == len(names)

    def test_made_once(self, kits: Kits) -> None:
        first = kits.made("copy", "r4-qv")
        assert kits.made("copy", "r4-qv") is first
        assert kits.made("copy", "r8-all") is not first
        for kit in OF_THE_WIDEST:
            assert kits.made(kit, "r4-qv") is kits.made(kit, "r8-all")
            assert kits.made(kit, "") is kits.made(kit, "r8-all")


class TestKits:
    def test_other(self, tmp_path: Path) -> None:
        """The widest one of other content, or a louder one where there is none."""
        several = kits_of(tmp_path, "r4-qv", "r8-all", "r16-rslora")
        widest = several.widest.name
        for adapter in several.adapters:
            [other] = several.made("other", adapter.name)
            assert other.folder.name != adapter.name
            assert widest in (adapter.name, other.folder.name)
        alone = kits_of(tmp_path, "r4-qv")
        [louder] = alone.made("other", "r4-qv")
        assert louder.folder.parent == tmp_path
        assert louder_by(alone.adapters[0].folder, louder.folder) == pytest.approx(2)

    def test_other_is_no_copy(self, tmp_path: Path) -> None:
        """Two folders of one content are one adapter."""
        source = FIXTURES / "adapters" / "r4-qv"
        again = tmp_path / "again"
        again.mkdir()
        for file in source.iterdir():
            (again / file.name).write_bytes(file.read_bytes())
        pair = [Adapter.open(source), Adapter.open(again)]
        kits = Kits(pair, 64, lambda: 0.01, tmp_path / "scratch")
        [made] = kits.made("other", "again")
        assert louder_by(source, made.folder) == pytest.approx(2)

    def test_poison_is_the_widest_much_louder(self, kits: Kits) -> None:
        [poison] = kits.made("poison", "r4-qv")
        assert louder_by(kits.widest.folder, poison.folder) == pytest.approx(8)

    def test_copy_means_the_same(self, kits: Kits) -> None:
        [copy] = kits.made("copy", "r4-qv")
        assert louder_by(kits.adapters[0].folder, copy.folder) == 1

    def test_lone_is_one_module(self, kits: Kits) -> None:
        [lone] = kits.made("lone", "r8-all")
        whole, part = deltas(kits.widest.folder), deltas(lone.folder)
        assert len(part) == 1
        assert all((whole[path] == part[path]).all() for path in part)

    def test_stranger_differs_in_everything(self, kits: Kits) -> None:
        [stranger] = kits.made("stranger", "r8-all")
        before, after = deltas(kits.widest.folder), deltas(stranger.folder)
        assert differing(before, after) == before.keys() == after.keys()

    def test_rescaled_by_each_scale(self, kits: Kits) -> None:
        made = kits.made("rescaled", "r8-all")
        assert [m.what.factor for m in made] == list(SCALES)
        for one in made:
            found = louder_by(kits.widest.folder, one.folder)
            assert found == pytest.approx(one.what.factor)

    def test_slightly_wrong_follows_the_margin(self, tmp_path: Path) -> None:
        for theta in (0.01, 0.04):
            adapter = Adapter.open(FIXTURES / "adapters" / "r8-all")
            kits = Kits([adapter], 64, lambda t=theta: t, tmp_path / f"{theta}")
            [made] = kits.made("slightly_wrong", "r8-all")
            found = louder_by(adapter.folder, made.folder)
            assert found == pytest.approx(1 + 5 * theta)

    def test_crew_is_a_few_under_test_the_widest_first(self, tmp_path: Path) -> None:
        names = ["r4-qv", "r8-all", "r16-rslora", "r32-half", "patterns", "r8-fp32"]
        several = kits_of(tmp_path, *names)
        crew = [made.folder for made in several.made("crew", "")]
        assert len(crew) == len(set(crew)) == CREW == 4
        assert crew[0] == several.widest.folder
        assert set(crew) <= {adapter.folder for adapter in several.adapters}
        [alone] = kits_of(tmp_path, "r4-qv").made("crew", "")
        assert alone.folder.name == "r4-qv"

    def test_controls_say_what_they_are(self, kits: Kits) -> None:
        made = kits.made("controls", "")
        assert len({m.what.name for m in made}) == len(made) > 5


def louder_by(quiet: Path, loud: Path) -> float:
    """The one factor between two adapters."""
    before, after = deltas(quiet), deltas(loud)
    assert before.keys() == after.keys()
    found = {
        round(float((after[path] * before[path]).sum() / (before[path] ** 2).sum()), 6)
        for path in before
    }
    [factor] = found
    return factor


class Needy:
    """A bench whose checks need what their `adapter` spells, a letter each.

    :ivar at_hand: letters that are on the board.
    """

    def __init__(self, most: int) -> None:
        self.at_hand: set[str] = set()
        self.kits = SimpleNamespace(needs=lambda fixtures, adapter: spelt(adapter))
        self.device = SimpleNamespace(
            supply=SimpleNamespace(has=lambda named: set(named) <= self.at_hand),
            capabilities=SimpleNamespace(max_adapters=most, bundles=True),
        )


def spelt(letters: str) -> Mapping[str, Path]:
    return {letter: Path(letter) for letter in letters}


def planned(*needs: str, board: str = "sim") -> Plan:
    """A plan of checks that need these adapters, with one of another board each."""
    plan = Plan(SimpleNamespace(), partial=False)  # type: ignore[arg-type]
    for number, letters in enumerate(needs):
        for name in (board, "elsewhere"):
            nodeid = f"{name}-{number}"
            what = letters if name == board else "zyx"
            plan.checks[nodeid] = Check(nodeid, name, what, (), "")
    return plan


def stocked(plan: Plan, bench: Any, number: int) -> set[str]:
    """What is to be at hand for one check of the plan."""
    acceptance: Any = SimpleNamespace(plan=plan)
    return set(Acceptance._stock(acceptance, bench, plan.checks[f"sim-{number}"]))


class TestPlanning:
    def test_as_many_checks_ahead_as_fit_together(self) -> None:
        plan = planned("ab", "bc", "", "d", "ae", "a")
        assert stocked(plan, Needy(4), 0) == set("abcd")
        assert stocked(plan, Needy(5), 0) == set("abcde")
        assert stocked(plan, Needy(3), 1) == set("bcd")
        assert stocked(plan, Needy(2), 5) == set("a")

    def test_it_ends_at_the_first_that_does_not_fit(self) -> None:
        """The next bundle begins there, so what comes later would be made twice."""
        assert stocked(planned("ab", "cd", "b"), Needy(3), 0) == set("ab")

    def test_nothing_more_where_all_is_at_hand(self) -> None:
        plan, bench = planned("ab", "bc"), Needy(3)
        bench.at_hand = set("abx")
        assert stocked(plan, bench, 0) == set("ab")
        assert stocked(plan, bench, 1) == set("bc")

    def test_nothing_where_adapters_come_on_their_own(self) -> None:
        bench = Needy(3)
        bench.device.capabilities.bundles = False
        assert stocked(planned("ab"), bench, 0) == set()

    def test_a_check_that_needs_more_than_fits_gets_it(self) -> None:
        """What is to be seen there is the refusal."""
        assert stocked(planned("abcd", "a"), Needy(3), 0) == set("abcd")

    @given(
        needs=st.lists(st.text("abcdef", max_size=3), min_size=1, max_size=12),
        most=st.integers(3, 6),
    )
    def test_each_check_finds_what_it_needs(self, needs: list[str], most: int) -> None:
        """Over a whole run, with no more bundles than checks that lack something."""
        plan, bench = planned(*needs), Needy(most)
        for number, letters in enumerate(needs):
            found = stocked(plan, bench, number)
            assert set(letters) <= found and len(found) <= most
            if not found <= bench.at_hand:  # as `Bench.begin` does
                assert not set(letters) <= bench.at_hand
                bench.at_hand = found

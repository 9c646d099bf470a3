"""Acceptances of a simulated RK1828: sound, wrong in every known way, and odd."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from inner_run import ADAPTERS
from inner_run import Ended
from inner_run import rk1828
from safetensors.numpy import load_file
from safetensors.numpy import save_file
from whole_run import accept
from whole_run import failed
from whole_run import harness

from harness.simulator.faults.catalogue import catalogue


# Checks by what they look at. All of them would take a minute and a half a fault.
ANSWERS = "test_loaded_equals or test_scale_and or test_every_module"
GRAPHS = "test_loaded_equals or test_prefill_and or test_lengths"
CLEARS = "test_clear or test_reports"
LOADS = "test_every_load or test_residue or test_restart or test_new_content"
SESSIONS = "test_sessions and not test_capacity_of_adapters"
UNLOADS = "test_unload or test_capacity_of_adapters"
REFUSALS = "test_damaged_bundle or test_capacity_of_sessions"

# By fault: the checks that run, and requirements that come to FAIL among them.
FAULTS = {
    "adapter-ignored": (ANSWERS, {"R11", "R20", "R22"}),
    "base-changed": ("test_states", {"R10", "R11"}),
    "bundle-names-exchanged": (ANSWERS, {"R11", "R20", "R22"}),
    "cache-file-accepted": ("test_cache", {"R52"}),
    "cache-survives-switch": ("test_cache", {"R50", "R51"}),
    "chunk-boundary-drops-adapter": (GRAPHS, {"R54"}),
    "clear-does-nothing": (CLEARS, {"R12", "R15"}),
    "conversion-drops-alpha": (ANSWERS, {"R11", "R20", "R22"}),
    "conversion-quantises-scale": (ANSWERS, {"R11", "R20", "R22"}),
    "decode-graph-ignores-adapter": (GRAPHS, {"R11", "R53", "R54"}),
    **{
        f"drops-{module}-proj": (ANSWERS, {"R11", "R20", "R22"})
        for module in ("q", "k", "v", "o", "gate", "up", "down")
    },
    "factor-transposed": (ANSWERS, {"R11", "R20", "R22"}),
    "failed-load-kills-process": (REFUSALS, {"R40", "R62"}),
    # A bundle that was not taken is known by what the runtime lists after it.
    "failed-load-silent": (REFUSALS, {"R62"}),
    "later-turns-lose-adapter": ("test_later_turns", {"R51", "R53"}),
    "layer-shifted": (ANSWERS, {"R11", "R20", "R22"}),
    "other-sessions-scale": (SESSIONS, {"R61"}),
    "precedence-reversed": (SESSIONS, {"R63"}),
    "prefill-graph-ignores-adapter": (GRAPHS, {"R11", "R53", "R54"}),
    "reports-wrong-state": ("test_states", {"R15"}),
    "runtime-scale-sticky": ("test_scale", {"R21"}),
    "scale-applied-twice": (ANSWERS, {"R11", "R20", "R22"}),
    "scale-off-by-five-percent": (ANSWERS, {"R11", "R20", "R22"}),
    "scale-zero-not-base": ("test_scale", {"R21"}),
    "second-load-incomplete": (LOADS, {"R30", "R66"}),
    "second-session-only": (SESSIONS, {"R15", "R60", "R61"}),
    "session-leak": (SESSIONS, {"R60", "R62"}),
    "setup-fails-to-base": (f"{ANSWERS} or test_reports", {"R11", "R15", "R20"}),
    "sixth-session-granted": ("test_capacity_of_sessions", {"R62"}),
    "stale-name": (LOADS, {"R30"}),
    "stale-rebuild": (LOADS, {"R30"}),
    "thirty-third-overwrites": ("test_one_adapter_too_many", {"R62"}),
    "unload-drops-neighbour": (UNLOADS, {"R12", "R62"}),
    "unload-keeps-weights": (UNLOADS, {"R12", "R62"}),
}
# These touch one thing only, so that among their checks nothing else may fail.
NARROW = {
    "cache-file-accepted",
    "cache-survives-switch",
    "chunk-boundary-drops-adapter",
    "clear-does-nothing",
    "failed-load-kills-process",
    "later-turns-lose-adapter",
    "other-sessions-scale",
    "precedence-reversed",
    "reports-wrong-state",
    "runtime-scale-sticky",
    "scale-zero-not-base",
    "stale-name",
    "stale-rebuild",
}
# Those that show only after some operations or in a corner: checks, what finds them.
HISTORIES = {
    "ContextScaleIsOne": ("test_session_goes", "R63"),
    "FirstScaleForBoth": ("test_adapters_in_one", "R65"),
    "LargeScaleIsClamped": ("test_run_time", "R21"),
    "LastSessionHasNoScale": ("test_every_session", "R60"),
    "NegativeFractionIsMinusOne": ("test_run_time", "R21"),
    "OnlyTheFirstSessionDropsItsCache": ("test_switch_inside", "R51"),
    "OnlyTheNewestRowsAreDropped": ("test_switch_inside", "R51"),
    "ScaleInSteps": ("test_run_time", "R21"),
    "SmallScaleIsZero": ("test_run_time", "R21"),
    "ThirdIsIgnored": ("test_adapters_in_one", "R65"),
}
# Right in another way than usual: nobody may be blamed for it.
TWINS = ("chatty", "noisy", "slow-load")
FORMATS = ("int4-adapters", "int6-adapters", "int8-adapters")
MOST = (
    "not test_damaged_adapter and not test_every_kind_of_wrong"
    " and not test_one_adapter_too_many and not test_capacity_of_adapters"
)


def test_every_fault_is_in_the_table() -> None:
    known = catalogue("rk1828")
    benign = {name for name, fault in known.items() if fault.benign}
    assert benign == {*TWINS, *FORMATS} and set(FAULTS) == set(known) - benign


@pytest.mark.parametrize(
    ("fault", "checks", "found"),
    [
        ("session-leak", "test_base_session", "R60"),
        ("drops-k-proj", "test_every_module", "R22"),
    ],
)
def test_a_wrong_board_is_no_go(
    tmp_path: Path, fault: str, checks: str, found: str
) -> None:
    ended = accept(tmp_path, rk1828(), f"--fault={fault}", "-k", checks)
    assert ended.status == 1, ended.output
    assert ended.signoff["verdict"] == "NO-GO"
    assert failed(ended) == {found}
    assert ended.signoff["environment"]["sim-1"]["fault"] == fault


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_no_go(tmp_path: Path, fault: str) -> None:
    checks, requirements = FAULTS[fault]
    ended = accept(tmp_path, rk1828(), f"--fault={fault}", "-k", checks)
    assert ended.status == 1, ended.output
    assert ended.signoff["verdict"] == "NO-GO"
    assert failed(ended) >= requirements
    if fault in NARROW:
        assert failed(ended) == requirements
    if fault.startswith("drops-"):
        blamed = ended.check("test_every_module_takes_effect")["reason"]
        assert fault.removeprefix("drops-").replace("-", "_") in blamed
    assert ended.signoff["missing"] == []
    latest = tmp_path / "reports" / "latest"
    assert harness("report", "verify", latest, cwd=tmp_path).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", HISTORIES)
def test_a_fault_in_a_corner_is_no_go(tmp_path: Path, fault: str) -> None:
    shutil.copy(Path(__file__).with_name("rk1828_histories.py"), tmp_path)
    checks, found = HISTORIES[fault]
    spec = f"--fault=rk1828_histories:{fault}"
    ended = accept(tmp_path, rk1828(), spec, "-k", checks)
    assert ended.status == 1, ended.output
    assert found in failed(ended)
    assert ended.signoff["missing"] == []


def nobody_is_blamed(ended: Ended) -> None:
    """Nothing failed; a run with checks left out is never GO."""
    assert ended.status == 10, ended.output
    assert ended.signoff["verdict"] == "INCONCLUSIVE"
    assert ended.signoff["counts"].keys() <= {"PASS", "SKIP", "INCONCLUSIVE"}
    assert ended.signoff["counts"]["PASS"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("fault", TWINS)
def test_what_is_only_unusual_passes(tmp_path: Path, fault: str) -> None:
    ended = accept(tmp_path, rk1828(), f"--fault={fault}", "-k", MOST)
    nobody_is_blamed(ended)
    # Noise of the size of the rounding leaves some comparisons with it undecided.
    assert fault == "noisy" or "INCONCLUSIVE" not in ended.signoff["counts"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FORMATS)
def test_quantised_adapters_are_judged_by_no_other_golden(
    tmp_path: Path, fault: str
) -> None:
    """What needs no reference passes; what needs one says which it lacks."""
    ended = accept(tmp_path, rk1828(), f"--fault={fault}", "-k", MOST)
    nobody_is_blamed(ended)
    reasons = {
        (check["adapter"], check["reason"])
        for check in ended.signoff["checks"]
        if check["status"] == "INCONCLUSIVE"
    }
    assert {name for name, _ in reasons} >= {"r8-all", "r32-half"}
    for name, reason in reasons:
        assert f"the converter quantises {name}" in reason


@pytest.mark.slow
def test_an_adapter_that_changes_nothing_passes(tmp_path: Path) -> None:
    folder = zeroed(tmp_path / "zero-b")
    ended = accept(tmp_path, rk1828(), f"--adapter={folder}", "-k", MOST)
    nobody_is_blamed(ended)
    assert [adapter["name"] for adapter in ended.signoff["adapters"]] == ["zero-b"]


def zeroed(folder: Path) -> Path:
    """An adapter as PEFT initialises it: every B is zero."""
    shutil.copytree(ADAPTERS / "r8-all", folder)
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(weights)
    for name, values in tensors.items():
        if "lora_B" in name:
            values[...] = 0
    save_file(tensors, weights, {"format": "pt"})
    return folder

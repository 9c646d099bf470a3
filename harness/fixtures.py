"""The fixtures that the suites are written with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.acceptance import ACCEPTANCE
from harness.acceptance import Acceptance
from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.artifacts.forge import Damaged
from harness.bench import Bench
from harness.evidence import Record
from harness.golden import GoldenStore
from harness.golden import PromptSet
from harness.golden import Reference
from harness.golden import Scores
from harness.golden.store import GoldenMissing
from harness.runtimes.device import Device
from harness.runtimes.runtime import Phase
from harness.verdict import Inconclusive
from harness.verdict import Judge
from harness.verdict import apart


__all__ = [
    "acceptance",
    "adapter",
    "base_reference",
    "base_scores",
    "bench",
    "board",
    "brief",
    "damage",
    "device",
    "effect",
    "forged",
    "golden",
    "judge",
    "non_finite",
    "other",
    "phase",
    "phase_prompts",
    "prompts",
    "records",
    "reference",
    "right",
    "widest_adapter",
]


_FORGED = itertools.count()
# The scale's standard error grows with the root of the rows left out: 24 rows of 24
# prompts keep it at about a quarter of the 1 % margin.
DECODE_ROWS = 24


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest) -> str:
    """The name of the board a check runs on."""
    return str(request.param)


@pytest.fixture(scope="session")
def acceptance(request: pytest.FixtureRequest) -> Acceptance:
    """The run that a check belongs to."""
    return request.config.stash[ACCEPTANCE]


@pytest.fixture
def bench(acceptance: Acceptance, board: str) -> Bench:
    """The board, brought up; a board that is away makes the check a MISS."""
    return acceptance.bench(board)


@pytest.fixture
def device(acceptance: Acceptance, board: str) -> Device:
    """The device in its base state."""
    return acceptance.device(board)


@pytest.fixture
def judge(
    request: pytest.FixtureRequest,
    acceptance: Acceptance,
    bench: Bench,
    device: Device,
) -> Judge:
    """Takes the measurements of one check and decides."""
    return acceptance.judge(request.node.nodeid, bench)


@pytest.fixture
def records(acceptance: Acceptance, board: str) -> list[Record]:
    """What this run has recorded of the board so far."""
    return [r for r in acceptance.run.records() if getattr(r, "board", "") == board]


@pytest.fixture
def golden(bench: Bench) -> GoldenStore:
    """The stored right answers."""
    return bench.golden


@pytest.fixture
def prompts(golden: GoldenStore) -> PromptSet:
    """All prompts: what is compared with the reference."""
    return golden.prompts


@pytest.fixture
def brief(bench: Bench) -> PromptSet:
    """A few rows: what a board is compared with itself on."""
    return bench.brief


@pytest.fixture
def adapter(
    request: pytest.FixtureRequest, acceptance: Acceptance, board: str
) -> Adapter:
    """The adapter under test."""
    return acceptance.selection.adapter(board, request.param)


@pytest.fixture
def damage(
    request: pytest.FixtureRequest, acceptance: Acceptance, board: str
) -> Damaged:
    """A damaged or unfit form of the widest adapter (R40)."""
    return acceptance.selection.damages(board)[request.param]


@pytest.fixture
def non_finite(
    request: pytest.FixtureRequest, acceptance: Acceptance, board: str
) -> Damaged:
    """The widest adapter with values that are no numbers (R42)."""
    return acceptance.selection.damages(board)[request.param]


@pytest.fixture
def other(
    acceptance: Acceptance, board: str, forged: Callable[[str], Path]
) -> Callable[[Adapter], Path]:
    """Gives a sound adapter of other content: the widest there is, or a louder one."""

    def choose(adapter: Adapter) -> Path:
        adapters = acceptance.selection.adapters(board)
        others = [a for a in adapters if a.digest != adapter.digest]
        if others:
            return max(others, key=Adapter.width).folder
        return forge.amplified(adapter, 2.0, forged("louder"))

    return choose


@pytest.fixture
def widest_adapter(acceptance: Acceptance, board: str) -> Adapter:
    """The adapter with the most modules, then the largest ranks."""
    return acceptance.selection.widest(board)


@pytest.fixture
def base_scores(bench: Bench, device: Device) -> Callable[..., Scores]:
    """Gives what the board answers in its base state, asked once in a run.

    For what adapters are compared with; a check of the base itself asks anew.
    """
    return bench.base_scores


@pytest.fixture
def base_reference(golden: GoldenStore) -> Reference:
    """The right answer of the base model."""
    return golden.base()


@pytest.fixture
def right(golden: GoldenStore) -> Callable[[Adapter], Reference]:
    """Gives the right answer with an adapter; without one nothing can be decided."""

    def find(adapter: Adapter) -> Reference:
        try:
            return golden.adapter(adapter.digest)
        except GoldenMissing as missing:
            raise Inconclusive(str(missing)) from None

    return find


@pytest.fixture
def reference(right: Callable[[Adapter], Reference], adapter: Adapter) -> Reference:
    """The right answer with the adapter under test."""
    return right(adapter)


@pytest.fixture
def effect(golden: GoldenStore, adapter: Adapter, brief: PromptSet) -> float | None:
    """How far the adapter moves the reference on the brief prompts, if known."""
    if not golden.has(adapter.digest):
        return None
    base, loaded = golden.base(), golden.adapter(adapter.digest)
    return apart(loaded.on(brief).exact, base.on(brief).exact)


@pytest.fixture
def phase(request: pytest.FixtureRequest, device: Device) -> Phase:
    """Each graph in turn whose logits the platform shows."""
    found: Phase = request.param
    if found not in device.capabilities.phases:
        pytest.skip(f"this platform shows no logits of {found}")
    return found


@pytest.fixture
def phase_prompts(phase: Phase, prompts: PromptSet) -> PromptSet:
    """What a graph is compared with the reference on.

    Decode costs a launch per row: all prompts, but fewer rows of each.
    """
    if phase == "prefill":
        return prompts
    return prompts.few(len(prompts), DECODE_ROWS)


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[str], Path]:
    """Gives new folders to forge adapters into.

    No two of a run have one name, so that only the check that asks for a name twice
    meets a board that keeps the old content of a name.
    """
    return lambda name: tmp_path / f"{name}-{next(_FORGED)}"

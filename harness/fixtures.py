"""The fixtures that the suites are written with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.acceptance import ACCEPTANCE
from harness.acceptance import Acceptance
from harness.artifacts.adapter import Adapter
from harness.artifacts.forge import Damaged
from harness.bench import Bench
from harness.evidence import Record
from harness.golden import GoldenStore
from harness.golden import PromptSet
from harness.golden import Reference
from harness.golden.store import GoldenMissing
from harness.runtimes.device import Device
from harness.verdict import Inconclusive
from harness.verdict import Judge


__all__ = [
    "acceptance",
    "adapter",
    "base_reference",
    "bench",
    "board",
    "brief",
    "damage",
    "device",
    "forged",
    "golden",
    "judge",
    "non_finite",
    "other_adapter",
    "prompts",
    "records",
    "reference",
    "widest_adapter",
]


_FORGED = itertools.count()


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
def other_adapter(acceptance: Acceptance, board: str, adapter: Adapter) -> Adapter:
    """An adapter of this board with other content, the widest there is."""
    adapters = acceptance.selection.adapters(board)
    others = [a for a in adapters if a.digest != adapter.digest]
    if not others:
        pytest.skip("needs a second adapter")
    return max(others, key=Adapter.width)


@pytest.fixture
def widest_adapter(acceptance: Acceptance, board: str) -> Adapter:
    """The adapter with the most modules, then the largest ranks."""
    return acceptance.selection.widest(board)


@pytest.fixture
def base_reference(golden: GoldenStore) -> Reference:
    """The right answer of the base model."""
    return golden.base()


@pytest.fixture
def reference(golden: GoldenStore, adapter: Adapter) -> Reference:
    """The right answer with the adapter under test."""
    try:
        return golden.adapter(adapter.digest)
    except GoldenMissing as missing:
        raise Inconclusive(str(missing)) from None


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[str], Path]:
    """Gives new folders to forge adapters into.

    No two of a run have one name, so that only the check that asks for a name twice
    meets a board that keeps the old content of a name.
    """
    return lambda name: tmp_path / f"{name}-{next(_FORGED)}"

"""The fixtures that the suites are written with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.acceptance import ACCEPTANCE
from harness.acceptance import Acceptance
from harness.artifacts.adapter import Adapter
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
    "adapter",
    "base_reference",
    "bench",
    "board",
    "brief",
    "device",
    "forged",
    "golden",
    "judge",
    "other_adapter",
    "prompts",
    "records",
    "reference",
    "widest_adapter",
]


@pytest.fixture(scope="session")
def board(request: pytest.FixtureRequest) -> str:
    """The name of the board a check runs on."""
    return str(request.param)


@pytest.fixture
def bench(request: pytest.FixtureRequest, board: str) -> Bench:
    """The board, brought up; a board that is away makes the check a MISS."""
    return request.config.stash[ACCEPTANCE].bench(board)


@pytest.fixture
def device(bench: Bench) -> Device:
    """The device in its base state."""
    return bench.begin()


@pytest.fixture
def judge(request: pytest.FixtureRequest, bench: Bench, device: Device) -> Judge:
    """Takes the measurements of one check and decides."""
    acceptance: Acceptance = request.config.stash[ACCEPTANCE]
    return acceptance.judge(request.node.nodeid, bench)


@pytest.fixture
def records(request: pytest.FixtureRequest, board: str) -> list[Record]:
    """What this run has recorded of the board so far."""
    acceptance: Acceptance = request.config.stash[ACCEPTANCE]
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
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """The adapter under test."""
    found: Adapter = request.param
    return found


@pytest.fixture
def other_adapter(
    request: pytest.FixtureRequest, board: str, adapter: Adapter
) -> Adapter:
    """An adapter of this board with other content, the widest there is."""
    acceptance = request.config.stash[ACCEPTANCE]
    others = [a for a in acceptance.adapters(board) if a.digest != adapter.digest]
    if not others:
        pytest.skip("needs a second adapter")
    return max(others, key=Adapter.width)


@pytest.fixture
def widest_adapter(request: pytest.FixtureRequest, board: str) -> Adapter:
    """The adapter with the most modules, then the largest ranks."""
    return request.config.stash[ACCEPTANCE].widest(board)


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
def forged(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Gives empty folders to forge adapters into."""
    count = 0

    def folder(name: str) -> Path:
        nonlocal count
        count += 1
        target = tmp_path / str(count) / name
        target.parent.mkdir()
        return target

    yield folder

"""The fixtures that the suites are written with."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
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
from harness.golden import Scores
from harness.golden.store import GoldenMissing
from harness.kits import Kits
from harness.kits import Made
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
    "controls",
    "copy",
    "crew",
    "damage",
    "dear_prompts",
    "device",
    "effect",
    "equivalents",
    "forged",
    "given_back",
    "golden",
    "judge",
    "kits",
    "lone",
    "made",
    "non_finite",
    "other",
    "phase",
    "phase_prompts",
    "poison",
    "prompts",
    "records",
    "reference",
    "rescaled",
    "right",
    "several",
    "slightly_wrong",
    "stranger",
    "widest_adapter",
]


# Rows of each prompt that are compared with the reference. A prefill that shows every
# position gives all of them at once. In decode each costs a launch; the scale's
# standard error grows with the root of the rows left out, and 24 of 40 keep it at a
# quarter of a 1 % margin. A prefill that shows its last position only must be run for
# each row anew; its graph counts in every row of decode as well, by way of the cache.
DECODE_ROWS, PREFILL_ROWS = 24, 4
# Free memory of a node is told with an error below 0.05 MB (seen on RK1828 boards).
NODE_ERROR = 50_000


def _affordable(prompts: PromptSet, phase: Phase, device: Device) -> PromptSet:
    """The prompts with as many rows as a graph can be asked for."""
    if phase == "decode":
        return prompts.few(len(prompts), DECODE_ROWS)
    if device.capabilities.phases[0] == "prefill":
        return prompts
    return prompts.few(len(prompts), PREFILL_ROWS)


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
def device(request: pytest.FixtureRequest, acceptance: Acceptance) -> Device:
    """The device in its base state."""
    return acceptance.device(request.node.nodeid)


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
def prompts(golden: GoldenStore, device: Device) -> PromptSet:
    """All prompts: what is compared with the reference, by the cheaper graph."""
    return _affordable(golden.prompts, device.capabilities.phases[0], device)


@pytest.fixture
def dear_prompts(golden: GoldenStore, device: Device) -> PromptSet:
    """All prompts with as many rows as both graphs can be asked for."""
    return _affordable(golden.prompts, device.capabilities.phases[-1], device)


@pytest.fixture
def several(bench: Bench) -> PromptSet:
    """A few rows of several prompts: what tells rounding from another state."""
    return bench.brief


@pytest.fixture
def brief(bench: Bench) -> PromptSet:
    """A few rows: what a board is compared with itself on.

    Where it repeats exactly, two prompts show what three would.
    """
    return bench.brief.first(2) if bench.floor.exact else bench.brief


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
def right(golden: GoldenStore, device: Device) -> Callable[..., Reference]:
    """Gives the right answer with an adapter; without one nothing can be decided."""

    def find(adapter: Adapter, domain: str | None = None) -> Reference:
        held = device.supply.held(adapter.name)
        if held is not None and not golden.has(held):
            raise Inconclusive(
                f"the converter quantises {adapter.name}, and the golden has no answer"
                " for what is left of it: make one of the dequantised adapter"
            )
        try:
            return golden.adapter(held or adapter.digest, domain)
        except GoldenMissing as missing:
            raise Inconclusive(str(missing)) from None

    return find


@pytest.fixture
def reference(right: Callable[..., Reference], adapter: Adapter) -> Reference:
    """The right answer with the adapter under test."""
    return right(adapter)


@pytest.fixture
def effect(golden: GoldenStore, adapter: Adapter, brief: PromptSet) -> float | None:
    """How far the adapter moves the reference on the brief prompts, if known."""
    if not adapter.effective:
        return 0.0  # every B or A is 0: no golden is needed to know
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
def phase_prompts(phase: Phase, device: Device, golden: GoldenStore) -> PromptSet:
    """What a graph is compared with the reference on."""
    return _affordable(golden.prompts, phase, device)


@pytest.fixture
def forged(bench: Bench) -> Callable[[str], Path]:
    """Gives new folders to forge adapters into that are no kit."""
    return bench.kits.new


# The kits: a check's arguments say which adapters it will put on the board.


@pytest.fixture
def made(request: pytest.FixtureRequest, bench: Bench) -> Callable[[str], list[Made]]:
    """Gives the adapters of a kit, made from the adapter under test."""
    callspec = getattr(request.node, "callspec", None)
    adapter = callspec.params.get("adapter", "") if callspec else ""
    return lambda kit: bench.kits.made(kit, adapter)


@pytest.fixture
def other(made: Callable[[str], list[Made]]) -> Path:
    """A sound adapter of other content."""
    return made("other")[0].folder


@pytest.fixture
def poison(made: Callable[[str], list[Made]], widest_adapter: Adapter) -> Path:
    """The widest adapter, much louder; of a silent one nothing could stay."""
    if not widest_adapter.effective:
        raise Inconclusive("the widest adapter changes nothing: every B or A is 0")
    return made("poison")[0].folder


@pytest.fixture
def copy(made: Callable[[str], list[Made]]) -> Path:
    """The same adapter under another name."""
    return made("copy")[0].folder


@pytest.fixture
def lone(made: Callable[[str], list[Made]]) -> Path:
    """One module of the adapter."""
    return made("lone")[0].folder


@pytest.fixture
def stranger(made: Callable[[str], list[Made]]) -> Path:
    """The adapter as one of another base of equal shapes would be."""
    return made("stranger")[0].folder


@pytest.fixture
def equivalents(made: Callable[[str], list[Made]]) -> list[Made]:
    """Folders that mean the same function as the adapter, or as their twin."""
    return made("equivalents")


@pytest.fixture
def rescaled(made: Callable[[str], list[Made]]) -> dict[float, Path]:
    """The adapter with alpha times as much, by the factor."""
    return {each.what.factor: each.folder for each in made("rescaled")}


@pytest.fixture
def slightly_wrong(made: Callable[[str], list[Made]]) -> Made:
    """The adapter at a scale that is off by little."""
    return made("slightly_wrong")[0]


@pytest.fixture
def controls(made: Callable[[str], list[Made]]) -> list[Made]:
    """Wrong adapters, one of each kind of fault."""
    return made("controls")


@pytest.fixture
def crew(made: Callable[[str], list[Made]]) -> list[Path]:
    """A few of the adapters under test."""
    return [each.folder for each in made("crew")]


@pytest.fixture
def kits(bench: Bench) -> Kits:
    """Makes adapters that are no kit: the check must have them stocked."""
    return bench.kits


@pytest.fixture
def given_back(judge: Judge) -> Callable[[Mapping[str, int], Mapping[str, int]], None]:
    """Judges that the free memory of the device is what it was before."""

    def check(before: Mapping[str, int], after: Mapping[str, int]) -> None:
        judge.at_most(
            abs(after["free"] - before["free"]),
            NODE_ERROR * before.get("nodes", 1),
            unit="bytes",
            source="the error of the figure, on all nodes",
            name="change of free memory",
        )

    return check

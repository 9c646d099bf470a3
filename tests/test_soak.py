"""Many switches over several sessions leave no trace, and a trace is seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from local_board import ADAPTERS
from local_board import BASE
from local_board import LocalBoard

from benchmarks.switching import Unsound
from benchmarks.switching import alone
from benchmarks.switching import soak
from benchmarks.switching import turns
from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.artifacts.convert import convert
from harness.artifacts.supply import Bundles
from harness.deadline import Deadline
from harness.golden.index import GoldenIndex
from harness.golden.scores import Scores
from harness.runtimes.device import Device
from harness.simulator.board import FAULT_FILE
from harness.simulator.board import ROOT


SESSIONS, LOOK = 4, 40
CONVERTER = "{python} -m harness.simulator.rk1828."
OURS, CATALOGUE = "soak_devices:", "harness.simulator.faults.rk1828:"
SOUND = "from harness.simulator.rk1828.api import *\n"
PROMPTS = GoldenIndex.read(BASE.parent / "golden-rk1828").prompts.few(1, 2)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Eight that differ by their scale."""
    folder = tmp_path_factory.mktemp("adapters")
    adapter = Adapter.open(ADAPTERS / "r8-all")
    scales = {f"scale-{n}": 1 + n / 8 for n in range(1, 9)}
    return {
        name: forge.rescaled(adapter, scale).make(folder / name)
        for name, scale in scales.items()
    }


@pytest.fixture(scope="module")
def board(
    tmp_path_factory: pytest.TempPathFactory, adapters: Mapping[str, Path]
) -> Iterator[tuple[Device, Path]]:
    """A board that is what its root says at every restart, and that root."""
    folder, deadline = tmp_path_factory.mktemp("board"), Deadline(60)
    cache, root = folder / "cache", folder / "root"
    model = convert(f"{CONVERTER}convert", BASE, cache, deadline)
    board = LocalBoard(root, model.for_board, SOUND, "rk1828")
    shutil.copy(Path(__file__).with_name("soak_devices.py"), root / "site")
    supply = Bundles(
        board.store,
        lambda named: convert(
            f"{CONVERTER}bundle",
            BASE,
            cache,
            deadline,
            None,
            named,
            suffix=".lora_weight",
        ),
    )
    supply.stock({**adapters, "scale-1-again": adapters["scale-1"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT, str(root))
        # As on the simulated boards: products this small gain nothing by threads.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        with board.runtime() as runtime:
            yield Device(runtime, supply), root
    board.host.close()


@pytest.fixture(scope="module")
def right(
    board: tuple[Device, Path], adapters: Mapping[str, Path]
) -> Mapping[str, Scores]:
    return alone(board[0], adapters, PROMPTS)


def test_a_sound_board_keeps_no_trace(
    board: tuple[Device, Path],
    adapters: Mapping[str, Path],
    right: Mapping[str, Scores],
) -> None:
    soak(board[0], adapters, right, switches=200, sessions=SESSIONS, look=LOOK)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (
            f"{OURS}SwitchKeepsMemory",
            rf"after {LOOK} switches: free \d+ -> \d+, free_min [^,]*$",
        ),
        (f"{OURS}SwitchKeepsFiles", f"after {LOOK} switches: files"),
        (f"{OURS}ThirtiethRunIsBase", "switch (2.|30): "),
        (f"{CATALOGUE}UnloadKeepsWeights", "after the last unload: free"),
        (f"{CATALOGUE}CacheSurvivesSwitch", "switch 5: session 0 under scale-5"),
    ],
)
def test_a_trace_is_seen(
    board: tuple[Device, Path],
    adapters: Mapping[str, Path],
    right: Mapping[str, Scores],
    fault: str,
    seen: str,
) -> None:
    device, root = board
    file = root / FAULT_FILE
    file.write_text(json.dumps({"device": fault}))
    try:
        with pytest.raises(Unsound, match=seen):
            soak(device, adapters, right, switches=LOOK, sessions=SESSIONS, look=LOOK)
    finally:
        file.unlink()


def test_adapters_that_answer_alike_prove_nothing(
    board: tuple[Device, Path], adapters: Mapping[str, Path]
) -> None:
    folder = adapters["scale-1"]
    with pytest.raises(Unsound, match="alike"):
        alone(board[0], {"scale-1": folder, "scale-1-again": folder}, PROMPTS)


def test_every_adapter_comes_into_every_session() -> None:
    names = [f"a{n}" for n in range(32)]
    seen = list(turns(4 * len(names), names, 4))
    assert len(set(seen)) == len(seen)
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in pairwise(seen))

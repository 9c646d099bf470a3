"""What the harness adds to the device's own time: per scoring call, per large row."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import FIXTURES
from benchmarks.board import VOCABULARY
from benchmarks.board import Board
from benchmarks.board import large_base
from benchmarks.board import started
from benchmarks.figure import Figure
from benchmarks.figure import median
from harness.deadline import Deadline
from harness.golden.index import GoldenIndex
from harness.golden.prompts import PromptSet
from harness.runtimes.device import Conversation


CLOCKED = "from benchmarks.clocked import *  # noqa: F403\n"
# A busy machine makes some of them longer, never shorter.
ROUNDS = 8
LARGE_PROMPTS, LARGE_ROWS = 6, 16


def run() -> Iterator[Figure]:
    """Host-side wall time without what the nets take on the board."""
    prompts = GoldenIndex.read(FIXTURES / "golden").prompts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(folder / "board") as board:
            (folder / "board" / "site" / "bmrt.py").write_text(CLOCKED, "utf-8")
            yield from _small(board, folder, prompts)
            few = prompts.few(LARGE_PROMPTS, LARGE_ROWS)
            yield from _large(board, folder, few)


def _small(board: Board, folder: Path, prompts: PromptSet) -> Iterator[Figure]:
    ours, device = _times(board, FIXTURES / "base", folder, prompts)
    yield Figure("device, a prompt of 40 rows x 512", device * 1e3, "ms")
    yield Figure(
        "harness, a scoring call",
        ours * 1e3,
        "ms",
        ours / device,
        "the device's own time",
        "<= 3 ms",
    )


def _large(board: Board, folder: Path, prompts: PromptSet) -> Iterator[Figure]:
    ours, device = _times(board, large_base(folder), folder, prompts)
    row = ours / LARGE_ROWS
    size = LARGE_ROWS * VOCABULARY * 4
    raw = _raw(board, size) / LARGE_ROWS
    yield Figure(f"device, a row of {VOCABULARY:,}", device / LARGE_ROWS * 1e3, "ms")
    yield Figure(
        f"harness, a row of {VOCABULARY:,}",
        row * 1e3,
        "ms",
        row / raw,
        f"the same bytes read from a plain command over SSH, {raw * 1e3:.2f} ms",
        "<= 10 ms",
    )
    yield Figure("logits over SSH", size / LARGE_ROWS / row / 1e6, "MB/s")


def _times(
    board: Board, base: Path, folder: Path, prompts: PromptSet
) -> tuple[float, float]:
    """Seconds of scoring a prompt from an empty cache: ours, and the device's.

    The device's are those of its launches, clocked in the probe's process; ours are
    all others, to the array in hand: the probe's included. Of each prompt the
    shortest of all rounds, of these the median.
    """
    ours, device = [], []
    with board.runtime(base, folder) as runtime:
        conversation = Conversation(runtime.session(), "prefill", "cleared")
        for _ in range(ROUNDS):
            for prompt in prompts:
                one = PromptSet((prompt,))
                before = runtime.memory()["launch_ns"]
                start = time.perf_counter()
                conversation.score(one)
                wall = time.perf_counter() - start
                device.append((runtime.memory()["launch_ns"] - before) / 1e9)
                ours.append(wall - device[-1])
    return _typical(ours, len(prompts)), _typical(device, len(prompts))


def _typical(seconds: list[float], prompts: int) -> float:
    return median([min(seconds[i::prompts]) for i in range(prompts)])


def _raw(board: Board, size: int) -> float:
    """Seconds that `size` bytes from a plain command take over the connection."""
    seconds = []
    for _ in range(ROUNDS):
        process = board.host.start(["sh", "-c", f"read go; head -c {size} /dev/zero"])
        deadline = Deadline(60)
        time.sleep(0.2)  # it has started and waits
        start = time.perf_counter()
        process.write(b"go\n", deadline)
        process.read(size, deadline)
        seconds.append(time.perf_counter() - start)
        process.close()
    return median(seconds)

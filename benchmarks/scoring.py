"""What the harness adds to the device's own time: per scoring call, per large row."""

from __future__ import annotations

import json
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


# Host and device take turns, so that a change of the machine's load meets both.
ROUNDS = 8
LARGE_PROMPTS, LARGE_ROWS = 6, 16


def run() -> Iterator[Figure]:
    """Host-side wall time minus what the same nets take on the board alone."""
    prompts = GoldenIndex.read(FIXTURES / "golden").prompts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(folder / "board") as board:
            yield from _small(board, folder, prompts)
            few = prompts.few(LARGE_PROMPTS, LARGE_ROWS)
            yield from _large(board, folder, few)


def _small(board: Board, folder: Path, prompts: PromptSet) -> Iterator[Figure]:
    host, device = _times(board, FIXTURES / "base", folder, prompts)
    yield Figure("device, a prompt of 40 rows x 512", device * 1e3, "ms")
    yield Figure(
        "harness, a scoring call",
        (host - device) * 1e3,
        "ms",
        (host - device) / device,
        "the device's own time",
        "<= 3 ms",
    )


def _large(board: Board, folder: Path, prompts: PromptSet) -> Iterator[Figure]:
    host, device = _times(board, large_base(folder), folder, prompts)
    row = (host - device) / LARGE_ROWS
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
    """Seconds of scoring a prompt from an empty cache: from here, and there.

    Of each prompt the shortest of all rounds, of these the median.
    """
    runtime, model = board.runtime(base, folder)
    with runtime:
        conversation = Conversation(runtime.session(), "prefill")
        host, device = [], []
        for _ in range(ROUNDS):
            device.append(_on_device(board, model, prompts))
            host.append(_from_here(conversation, prompts))
    return _typical(host), _typical(device)


def _typical(rounds: list[list[float]]) -> float:
    return median([min(prompt) for prompt in zip(*rounds, strict=True)])


def _from_here(conversation: Conversation, prompts: PromptSet) -> list[float]:
    seconds = []
    for prompt in prompts:
        one = PromptSet((prompt,))
        start = time.perf_counter()
        conversation.score(one)
        seconds.append(time.perf_counter() - start)
    return seconds


def _on_device(board: Board, model: str, prompts: PromptSet) -> list[float]:
    question = json.dumps([[p.tokens, p.continuation] for p in prompts])
    done = board.host.run(
        [board.host.python, "-m", "benchmarks.ondevice", model],
        stdin=question.encode(),
        deadline=Deadline(120),
    )
    if done.status:
        raise RuntimeError(done.errors)
    seconds: list[float] = json.loads(done.output.splitlines()[-1])
    return seconds


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

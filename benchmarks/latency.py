"""Round trips: a request to a running probe, and taking and leaving the board."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import FIXTURES
from benchmarks.board import Board
from benchmarks.board import started
from benchmarks.figure import Figure
from benchmarks.figure import median
from harness.boards.lease import Lease
from harness.deadline import Deadline


ROUNDS = 400
LEASES = 7


def run() -> Iterator[Figure]:
    """Medians of round trips over one connection."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(folder / "board") as board:
            echo = _echo(board)
            yield Figure("one byte to `cat` over SSH and back", echo * 1e3, "ms")
            with board.runtime(FIXTURES / "base", folder) as runtime:
                ping = _median(runtime.session().reported, ROUNDS)
                yield Figure(
                    "request to a running probe that computes nothing",
                    ping * 1e3,
                    "ms",
                    ping / echo,
                    "one byte and back",
                )
                start = _median(runtime.restart, LEASES)
            yield Figure("the probe started again", start * 1e3, "ms")
            plain = _median(lambda: _true(board), LEASES)
            lease = _median(lambda: _lease(board), LEASES)
            yield Figure(
                "lease taken and given back",
                lease * 1e3,
                "ms",
                lease / plain,
                f"`true` over SSH, {plain * 1e3:.1f} ms",
            )


def _echo(board: Board) -> float:
    process = board.host.start(["cat"])

    def once() -> None:
        deadline = Deadline(10)
        process.write(b".", deadline)
        process.read(1, deadline)

    seconds = _median(once, ROUNDS)
    process.close()
    return seconds


def _true(board: Board) -> None:
    board.host.run(["true"], deadline=Deadline(10))


def _lease(board: Board) -> None:
    with Lease(board.host, board.workdir, "benchmark"):
        pass


def _median(act: Callable[[], object], rounds: int) -> float:
    act()  # warms up
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return median(seconds)

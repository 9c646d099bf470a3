"""The whole acceptance of each simulated board, then of both at the same time.

With every adapter of the fixtures; both boards have a worker each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.board import REPOSITORY
from benchmarks.board import inventory
from benchmarks.figure import Figure


# A run that takes ten times as long as it should hangs.
LIMIT = 600.0
DEMANDED_MB = 600
DEMANDED_S = {"bm1688": "<= 60 s on two quiet cores"}


def run() -> Iterator[Figure]:
    """`pytest suites` in a process of its own; metered from inside for one board."""
    walls = []
    boards = inventory().simulated()
    for board in boards:
        told = _metered(board.name)
        walls.append(told["wall"])
        yield from _figures(board.name, told, DEMANDED_S.get(board.platform, ""))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--board={board.name}" for board in boards]
        _accept(Path(folder), [f"-n{len(boards)}", *words], {})
    wall = time.perf_counter() - start
    yield Figure(
        f"{len(boards)} boards with {len(boards)} workers: wall time",
        wall,
        "s",
        wall / sum(walls),
        "one after the other",
    )


def _figures(board: str, told: Mapping[str, Any], demand: str) -> Iterator[Figure]:
    wall, cpu, others = told["wall"], told["cpu"], told["board_cpu"]
    requests = told["requests"]
    of_wall = "wall time"
    yield Figure(f"{board}: wall time", wall, "s", demand=demand)
    yield Figure(
        "waiting for the board", told["waited"], "s", told["waited"] / wall, of_wall
    )
    here = wall - told["waited"]
    yield Figure("in the harness and its converters", here, "s", here / wall, of_wall)
    both = cpu + others
    of_both = "all processes"
    yield Figure("processor time, all processes", both, "s", both / wall, of_wall)
    yield Figure("of board and converters", others, "s", others / both, of_both)
    yield Figure("of the harness", cpu, "s", cpu / both, of_both)
    peak = told["peak"] / 1e6
    yield Figure(
        "peak memory of the host process",
        peak,
        "MB",
        peak / DEMANDED_MB,
        "what is demanded",
        f"< {DEMANDED_MB} MB",
    )
    total = sum(requests.values())
    yield Figure("requests to the probe", total, "")
    for op in ("score", "reset", "activate", "restart"):
        count = requests.get(op, 0)
        yield Figure(f"of these `{op}`", count, "", count / total, "all requests")


def _metered(board: str) -> dict[str, Any]:
    """Accept one board, and read what the meter wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = folder / "meter.json"
        words = [f"--board={board}", "-p", "benchmarks.meter"]
        _accept(folder, words, {"BENCHMARK_METER": str(target)})
        told: dict[str, Any] = json.loads(target.read_text("utf-8"))
        return told


def _accept(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the suites.

    :raises RuntimeError: the acceptance did not come to GO.
    """
    command = [sys.executable, "-m", "pytest", "suites", "-q", *words]
    command += ["--report", str(folder / "reports")]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"the acceptance ended with {done.returncode}:\n{done.stdout}"
        )

"""The whole acceptance of the simulated BM1688 with every adapter of the fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.board import FIXTURES
from benchmarks.figure import Figure


REPOSITORY = FIXTURES.parent
# A run that takes ten times as long as it should hangs.
LIMIT = 600.0
DEMANDED_MB = 600


def run() -> Iterator[Figure]:
    """`pytest suites` in a process of its own, metered from inside."""
    with tempfile.TemporaryDirectory() as folder:
        told = _accept(Path(folder))
    wall, cpu, board = told["wall"], told["cpu"], told["board_cpu"]
    requests = told["requests"]
    of_wall = "wall time"
    yield Figure("wall time", wall, "s", demand="<= 60 s on two quiet cores")
    yield Figure(
        "waiting for the board", told["waited"], "s", told["waited"] / wall, of_wall
    )
    here = wall - told["waited"]
    yield Figure("in the harness", here, "s", here / wall, of_wall)
    both = cpu + board
    yield Figure("processor time, all processes", both, "s", both / wall, of_wall)
    yield Figure("processor time, board", board, "s", board / both, "all processes")
    yield Figure("processor time, harness", cpu, "s", cpu / both, "all processes")
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


def _accept(folder: Path) -> dict[str, Any]:
    """Run it, and read what the meter wrote.

    :raises RuntimeError: the acceptance did not come to GO.
    """
    target = folder / "meter.json"
    command = [sys.executable, "-m", "pytest", "suites", "-q"]
    command += ["-p", "benchmarks.meter", "--report", str(folder / "reports")]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "BENCHMARK_METER": str(target)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"the acceptance ended with {done.returncode}:\n{done.stdout}"
        )
    told: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return told

"""Whole runs of pytest in a process of their own, on boards of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from harness.cache import cache_folder


ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures"
ADAPTERS = FIXTURES / "adapters"
CONVERT = "{python} -m harness.simulator.bm1688.convert --reserved-rank 32"
# Other plugins of this environment take longer to load than ours.
LIGHT = "-p no:hypothesispytest -p no:anyio"
# A run of a few checks takes three seconds; this only ends a test that hangs.
PATIENCE_S = 300.0


def simulated(name: str = "sim-1", **other: str) -> str:
    """An entry of boards.toml for a simulated board with two adapters.

    :param other: values put in place, as TOML; empty to leave a key out.
    """
    adapters = [str(ADAPTERS / adapter) for adapter in ("r8-all", "r4-qv")]
    keys = {
        "platform": '"bm1688"',
        "simulated": "true",
        "base": f'"{FIXTURES / "base"}"',
        "golden": f'"{FIXTURES / "golden"}"',
        "adapters": json.dumps(adapters),
        "convert": f'"{CONVERT}"',
        **other,
    }
    lines = [f"{key} = {value}" for key, value in keys.items() if value]
    return "\n".join([f"[boards.{name}]", *lines, ""])


# What the keys of a BM1688 are replaced with on an RK1828.
RK1828 = {
    "platform": '"rk1828"',
    "golden": f'"{FIXTURES / "golden-rk1828"}"',
    "convert": '"{python} -m harness.simulator.rk1828.convert"',
    "bundle": '"{python} -m harness.simulator.rk1828.bundle"',
    "reserved_rank": "64",
    "guards_cache_files": "true",
}


def rk1828(name: str = "sim-1", **other: str) -> str:
    """An entry for a simulated RK1828 with two adapters, unlike in rank and scale."""
    adapters = [str(ADAPTERS / adapter) for adapter in ("r8-all", "r32-half")]
    return simulated(name, **{**RK1828, "adapters": json.dumps(adapters), **other})


def real(name: str, host: str, **other: str) -> str:
    """An entry for a board that is reached over SSH, as hardware is."""
    return simulated(name, simulated="", host=f'"{host}"', **other)


@dataclass(frozen=True)
class Ended:
    """A run that ended."""

    status: int
    output: str
    seconds: float
    folder: Path

    @cached_property
    def signoff(self) -> dict[str, Any]:
        """`signoff.json` of the run."""
        path = self.folder / "reports" / "latest" / "signoff.json"
        return dict(json.loads(path.read_text()))

    @property
    def statuses(self) -> dict[str, str]:
        """Statuses by the checks' names without the board."""
        return {
            check["nodeid"].partition("::")[2].partition("[")[0]: check["status"]
            for check in self.signoff["checks"]
        }

    def check(self, name: str) -> dict[str, Any]:
        """One check by its function's name."""
        [found] = [c for c in self.signoff["checks"] if f"::{name}[" in c["nodeid"]]
        return dict(found)


@dataclass(frozen=True)
class Inner:
    """A folder with suites and boards of its own."""

    folder: Path

    def write(self, name: str, content: str) -> Path:
        """Write one file of it."""
        path = self.folder / name
        path.write_text(content)
        return path

    def command(self, *arguments: str) -> list[str]:
        """The command line of a run in it."""
        # No colours, no line breaks that depend on a terminal, no cache folder.
        plain = ["-p", "no:cacheprovider", "--color=no", f"--rootdir={self.folder}"]
        return [sys.executable, "-m", "pytest", *plain, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Converted models are shared with all other runs of this user."""
        return {
            **os.environ,
            "HARNESS_CACHE": str(cache_folder()),
            "COLUMNS": "200",
            "PYTEST_ADDOPTS": LIGHT,
        }

    def run(self, *arguments: str) -> Ended:
        """Run pytest in it, to the end."""
        started = time.monotonic()
        ended = subprocess.run(  # noqa: PLW1510 - the status is what is tested
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        seconds = time.monotonic() - started
        return Ended(ended.returncode, ended.stdout, seconds, self.folder)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A run under way; it and all it started are ended afterwards."""
        process = subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C in a test is for the run alone.
            start_new_session=True,
        )
        try:
            yield process
        finally:
            family = descendants(process.pid)
            if process.poll() is None:
                process.kill()
            for one in family:
                if one.is_running():
                    one.kill()
            process.communicate()

    def ended(self, process: subprocess.Popen[str], started: float = 0.0) -> Ended:
        """Wait for a run under way."""
        output, _ = process.communicate(timeout=PATIENCE_S)
        seconds = time.monotonic() - started
        return Ended(process.returncode, output, seconds, self.folder)


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below one that we started."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_until(true: Any, what: str, seconds: float = PATIENCE_S) -> Any:
    """What `true` gives as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:g} s")

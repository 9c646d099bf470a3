"""A pytest plugin that measures an acceptance from inside its own process.

`python -m pytest -p benchmarks.meter`, with the file to write in BENCHMARK_METER.
Time on the board is what the checks' thread spends in calls of `SshProcess`: it
holds the board's work, the network and whatever SSH costs on either side.
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.hosts.channel import SshProcess
from harness.hosts.ssh import SshHost
from harness.runtimes.client import Client
from harness.runtimes.remote import RemoteRuntime


# Every way into SSH that waits; calls inside another are part of it.
WAITS = (
    (SshHost, "run"),
    (SshHost, "start"),
    (SshHost, "put"),
    (SshHost, "close"),
    (SshProcess, "read"),
    (SshProcess, "write"),
    (SshProcess, "close"),
)


class Meter:
    """Seconds spent waiting for the board, and requests by operation."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._thread = threading.get_ident()
        self._inside = False
        self._waited = 0.0
        self._requests: Counter[str] = Counter()
        for kind, name in WAITS:
            self._wrap(kind, name, self._timed)
        self._wrap(Client, "call", self._counted)
        self._wrap(RemoteRuntime, "restart", self._counted)

    def _wrap(self, kind: type, name: str, around: Callable[..., Any]) -> None:
        act = getattr(kind, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            return around(act, *arguments, **named)

        setattr(kind, name, wrapped)

    def _timed(self, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._inside or threading.get_ident() != self._thread:
            return act(*arguments, **named)
        self._inside = True
        start = time.perf_counter()
        try:
            return act(*arguments, **named)
        finally:
            self._waited += time.perf_counter() - start
            self._inside = False

    def _counted(
        self, act: Callable[..., Any], *arguments: Any, first: str = "", **named: Any
    ) -> Any:
        op = arguments[1] if len(arguments) > 1 else act.__name__
        self._requests[op] += 1
        if first:
            self._requests[first] += 1
            named["first"] = first
        return act(*arguments, **named)

    def to_json(self) -> dict[str, object]:
        """All that was measured; the board has ended by now."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        board = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "wall": time.perf_counter() - self._started,
            "waited": self._waited,
            "cpu": own.ru_utime + own.ru_stime,
            "board_cpu": board.ru_utime + board.ru_stime,
            "peak": _peak(),
            "requests": dict(self._requests),
        }


def _peak() -> int:
    """Most bytes this process had in memory.

    Not `ru_maxrss`: that one starts with what the process had that started this one.
    """
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


METER = pytest.StashKey[Meter]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[METER] = Meter()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    target = Path(os.environ["BENCHMARK_METER"])
    target.write_text(json.dumps(config.stash[METER].to_json()), "utf-8")

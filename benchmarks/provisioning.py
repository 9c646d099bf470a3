"""Putting adapters and models onto a board over SSH."""

from __future__ import annotations

import hashlib
import os
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
from harness.artifacts.provision import Store
from harness.deadline import Deadline


FOLDERS = 9
LARGE = 256 << 20
PIECE = 1 << 20


def run() -> Iterator[Figure]:
    """Small folders one by one, then one large file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(folder / "board") as board:
            yield from _folders(board, folder)
            yield from _large(board, folder)


def _folders(board: Board, folder: Path) -> Iterator[Figure]:
    plain = _median(lambda _: board.host.run(["true"], deadline=Deadline(10)))
    yield Figure("`true` over SSH", plain * 1e3, "ms")
    adapters = [_adapter(folder / str(i)) for i in range(FOLDERS + 1)]
    stores = [Store(board.host, board.workdir) for _ in adapters]
    for what, act in (
        ("new", lambda i: board.store.put_folder(adapters[i])),
        (
            "known to the board, first question of a store",
            lambda i: stores[i].put_folder(adapters[i]),
        ),
        ("known to this process", lambda i: board.store.put_folder(adapters[i])),
    ):
        taken = _median(act)
        yield Figure(
            f"small folder, {what}", taken * 1e3, "ms", taken / plain, "`true`"
        )


def _adapter(folder: Path) -> Path:
    """A folder like an adapter of the fixtures, with contents nobody has seen."""
    folder.mkdir()
    for file in sorted((FIXTURES / "adapters" / "r8-all").iterdir()):
        (folder / file.name).write_bytes(os.urandom(file.stat().st_size))
    return folder


def _large(board: Board, folder: Path) -> Iterator[Figure]:
    path = folder / "large.bin"
    with path.open("wb") as file:
        for _ in range(LARGE // PIECE):
            file.write(os.urandom(PIECE))
    start = time.perf_counter()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    local = LARGE / (time.perf_counter() - start)
    start = time.perf_counter()
    board.store.put_file(path)
    sent = LARGE / (time.perf_counter() - start)
    start = time.perf_counter()
    _pour(board, path)
    raw = LARGE / (time.perf_counter() - start)
    yield Figure("sha256 here", local / 1e6, "MB/s")
    yield Figure(
        "file of 256 MiB, new",
        sent / 1e6,
        "MB/s",
        sent / raw,
        f"the same bytes to a command over SSH that drops them, {raw / 1e6:.0f} MB/s",
    )
    start = time.perf_counter()
    Store(board.host, board.workdir).put_file(path)
    known = LARGE / (time.perf_counter() - start)
    yield Figure(
        "file of 256 MiB, known to the board",
        known / 1e6,
        "MB/s",
        known / local,
        "sha256 here",
    )


def _pour(board: Board, path: Path) -> None:
    process = board.host.start(["sh", "-c", "cat >/dev/null; echo ."])
    deadline = Deadline(300)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            process.write(piece, deadline)
    process.end_input()
    process.read(1, deadline)
    process.close()


def _median(act: Callable[[int], object]) -> float:
    act(FOLDERS)  # warms up
    seconds = []
    for i in range(FOLDERS):
        start = time.perf_counter()
        act(i)
        seconds.append(time.perf_counter() - start)
    return median(seconds)

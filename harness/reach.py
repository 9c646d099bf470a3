"""A board reached: a simulated one started, any connected to and looked at."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import contextmanager
from pathlib import Path

from harness.boards import simulated
from harness.boards.health import Health
from harness.boards.health import preflight
from harness.boards.inventory import Board
from harness.deadline import Deadline
from harness.hosts import open_host
from harness.hosts.host import Host


__all__ = ["START_UP_S", "Progress", "reached"]

Progress = Callable[[str], None]

# A simulated board starts in about a second; this covers a busy machine.
START_UP_S = 20.0


@contextmanager
def reached(
    board: Board, fault: str | None = None, progress: Progress = lambda line: None
) -> Iterator[tuple[Board, Host, Health]]:
    """A board with its address, its host, and what it says of itself.

    A simulated board is started, and ended afterwards.

    :raises Infrastructure: it is away, or unfit for a probe.
    """
    with ExitStack() as resources:
        if board.simulated:
            board = _started(board, fault, resources)
        progress(f"{board.name}: connecting")
        host = open_host(board)
        resources.callback(host.close)
        yield board, host, preflight(host, board.workdir)


def _started(board: Board, fault: str | None, resources: ExitStack) -> Board:
    root = Path(tempfile.mkdtemp(prefix=f"{board.name}-"))
    resources.callback(shutil.rmtree, root, ignore_errors=True)
    simulation = simulated.start(
        board.name, board.platform, root, fault, Deadline(START_UP_S)
    )
    resources.callback(simulation.stop)
    return board.model_copy(
        update={
            "host": simulation.host,
            "identity": simulation.identity,
            "known_hosts": simulation.known_hosts,
            "workdir": simulation.workdir,
            "loader": simulation.loader or board.loader,
            "bundle": _faulty(board.bundle, simulation.bundler),
        }
    )


def _faulty(command: str | None, bundler: str | None) -> str | None:
    """The converter's command with another one in its place, as a fault asks."""
    return f"{command} --as {bundler}" if command and bundler else command

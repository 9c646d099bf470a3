"""How a machine is reached."""

from __future__ import annotations

from pathlib import Path

from harness.boards.inventory import Board
from harness.errors import UsageFault
from harness.hosts.host import Host
from harness.hosts.ssh import SshHost


__all__ = ["open_host"]


def open_host(board: Board) -> Host:
    """The machine of a board; it is connected to when it is first used.

    :raises UsageFault: a simulated board that has not been started.
    """
    address = board.address
    if address is None:
        raise UsageFault(
            "a simulated board has no address before it runs",
            where=f"board {board.name}",
            cure="start it first",
        )
    return SshHost(
        board.name,
        address,
        identity=board.identity,
        known_hosts=board.known_hosts or Path("~/.ssh/known_hosts").expanduser(),
        python=board.python,
    )

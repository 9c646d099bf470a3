"""An asyncssh server on loopback for tests: runs commands in a folder.

`python tests/ssh_server.py ROOT [--fault NAME]` prints one JSON line with its port
and serves until its stdin ends. Faults: `damage` flips a bit of the stdin of every
command, `cut` swallows its second half, `refuse` opens no session.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import asyncssh


PIECE = 1 << 18


class Server(asyncssh.SSHServer):
    """Lets in whoever is in authorized_keys; commands die with their connection."""

    def __init__(self, refuse: bool) -> None:
        self._refuse = refuse

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        conn.set_keepalive(30)
        transport_socket = conn.get_extra_info("socket")
        if transport_socket is not None:
            import socket

            transport_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def session_requested(self) -> bool:
        if self._refuse:
            raise asyncssh.ChannelOpenError(4, "no session today")
        return False


def spoil(data: bytes, fault: str, seen: int) -> bytes:
    """What a faulty network makes of a piece of stdin; `seen` bytes came before."""
    if fault == "damage" and seen == 0 and data:
        return bytes([data[0] ^ 1]) + data[1:]
    if fault == "cut" and seen > PIECE:
        return b""
    return data


async def serve_command(process: Any, root: Path, fault: str) -> None:
    """Run one command with its three pipes joined to the channel."""
    child = await asyncio.create_subprocess_shell(
        process.command or "true",
        cwd=root,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1 << 20,
    )

    async def feed() -> None:
        seen = 0
        try:
            while data := await process.stdin.read(PIECE):
                child.stdin.write(spoil(data, fault, seen))
                seen += len(data)
                await child.stdin.drain()
        except (OSError, asyncssh.Error):
            pass
        child.stdin.close()

    async def show(source: asyncio.StreamReader, target: Any) -> None:
        try:
            while data := await source.read(PIECE):
                target.write(data)
                await target.drain()
        except (OSError, asyncssh.Error):
            pass

    feeder = asyncio.create_task(feed())
    await asyncio.gather(
        show(child.stdout, process.stdout), show(child.stderr, process.stderr)
    )
    status = await child.wait()
    feeder.cancel()
    if status < 0:
        process.exit_with_signal(signal.Signals(-status).name[3:])
    else:
        process.exit(status)


async def serve(root: Path, fault: str) -> None:
    """Serve until stdin ends."""
    server = await asyncssh.create_server(
        lambda: Server(fault == "refuse"),
        "127.0.0.1",
        0,
        server_host_keys=[str(root / "host_key")],
        authorized_client_keys=str(root / "authorized_keys"),
        process_factory=lambda process: serve_command(process, root, fault),
        encoding=None,
        allow_scp=False,
    )
    print(json.dumps({"port": server.get_port(), "pid": os.getpid()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Start the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    asyncio.run(serve(given.root, given.fault))


if __name__ == "__main__":
    main()

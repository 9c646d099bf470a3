"""SSH servers on loopback for tests: asyncssh in a process of its own, and sshd.

`python tests/ssh_server.py FOLDER [--fault NAME]` prints one JSON line with its port
and serves until its stdin ends. Faults: `damage` flips a bit of each command's
stdin, `cut` swallows what follows its first 256 KiB, `refuse` opens no session.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from harness.boards.address import Address
from harness.hosts.ssh import SshHost


SSHD = Path("/usr/sbin/sshd")
PIECE = 1 << 18


@dataclass(frozen=True)
class Loopback:
    """A server that runs: where it listens and the keys that open it."""

    kind: str
    folder: Path
    port: int

    def host(self, port: int | None = None, **given: Any) -> SshHost:
        """A host for it; `given` replaces the right identity, known hosts, ..."""
        known = self.folder / f"known_hosts_{port or self.port}"
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        known.write_text(f"[127.0.0.1]:{port or self.port} {kind} {key}\n")
        settings = {
            "identity": self.folder / "identity",
            "known_hosts": known,
            "python": sys.executable,
            **given,
        }
        user = getpass.getuser()
        address = Address(user, "127.0.0.1", port or self.port)
        return SshHost("board", address, **settings)


def keygen(path: Path, passphrase: str = "") -> None:
    """A new ed25519 key pair."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)],
        check=True,
    )


@contextmanager
def serving(kind: str, folder: Path, fault: str = "") -> Iterator[Loopback]:
    """A server of this kind (`asyncssh`, `openssh`) with keys in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    keygen(folder / "host_key")
    keygen(folder / "identity")
    (folder / "authorized_keys").write_text((folder / "identity.pub").read_text())
    start = _start_asyncssh if kind == "asyncssh" else _start_sshd
    process, port = start(folder, fault)
    try:
        yield Loopback(kind, folder, port)
    finally:
        process.terminate()
        process.wait(10)


def _start_asyncssh(folder: Path, fault: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder), "--fault", fault],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    return process, json.loads(process.stdout.readline())["port"]


def _start_sshd(folder: Path, fault: str) -> tuple[subprocess.Popen, int]:
    assert not fault, "sshd has no faults"
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where root's sshd separates
    for _ in range(5):
        port = free_port()
        conf = folder / "sshd_config"
        conf.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nUsePAM no\n"
            "StrictModes no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\n"
        )
        process = subprocess.Popen(
            [str(SSHD), "-D", "-f", str(conf), "-E", str(folder / "sshd.log")]
        )
        for _ in range(100):
            if process.poll() is not None:
                break  # somebody else took the port
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process, port
            time.sleep(0.05)
        process.kill()
        process.wait()
    raise RuntimeError("sshd does not start: " + (folder / "sshd.log").read_text())


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Proxy:
    """Passes connections on to a port until it is told to cut them."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.accepted = 0
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut every connection, as a pulled plug with a reset does."""
        # Not those of a connection that is made again meanwhile.
        ends, self._ends = self._ends, []
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Cut, and listen no longer."""
        # Closing alone would leave the thread in accept() to take one more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=self._pass, args=(source, target), daemon=True
                ).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Server(asyncssh.SSHServer):
    """Lets in whoever is in authorized_keys."""

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        link = conn.get_extra_info("socket")
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def session_requested(self) -> bool:
        return False  # asked only where there is no process factory


def spoil(data: bytes, fault: str, seen: int) -> bytes:
    """What a faulty link makes of a piece of stdin; `seen` bytes came before."""
    if fault == "damage" and not seen:
        return bytes([data[0] ^ 1]) + data[1:]
    if fault == "cut" and seen >= PIECE:
        return b""
    return data


async def run_command(process: Any, folder: Path, fault: str) -> None:
    """Run one command with its three pipes joined to the channel."""
    child = await asyncio.create_subprocess_shell(
        process.command or "true",
        cwd=folder,
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


async def serve(folder: Path, fault: str) -> None:
    """Serve until stdin ends."""

    async def process_factory(process: Any) -> None:
        await run_command(process, folder, fault)

    server = await asyncssh.create_server(
        Server,
        "127.0.0.1",
        0,
        server_host_keys=[str(folder / "host_key")],
        authorized_client_keys=str(folder / "authorized_keys"),
        process_factory=None if fault == "refuse" else process_factory,
        encoding=None,
    )
    print(json.dumps({"port": server.get_port()}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    asyncio.run(serve(given.folder, given.fault))

"""One simulated board: an SSH server on loopback with its own root folder.

Prints one line of JSON on stdout when it serves, and serves until its stdin ends,
so it does not outlive whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh

from harness.errors import UsageFault
from harness.simulator.board import FAULT_FILE
from harness.simulator.board import ROOT
from harness.simulator.faults.catalogue import PLATFORMS
from harness.simulator.faults.catalogue import Fault
from harness.simulator.faults.catalogue import OfAnotherPlatform
from harness.simulator.faults.catalogue import find


__all__ = ["main"]

USER = "board"
REPOSITORY = Path(__file__).resolve().parents[2]
# A model of gigabytes passes in pieces of this size, a whole SSH window of ours.
PIECE = 1 << 20


class Gate(asyncssh.SSHServer):
    """Lets in one user with one key, and nobody else by any other means."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._key = key.public_data

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == USER and key.public_data == self._key


class Commands:
    """Runs what clients ask for, as sshd would: through the login shell.

    :param environment: of every command; what the client sends is added.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._groups: set[int] = set()

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """One command, from request to exit status."""
        if process.command is None:
            process.stderr.write(b"no shell here: give a command\n")
            process.exit(1)
            return
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=PIECE,
            env={**self._environment, **process.env},
            start_new_session=True,
        )
        self._groups.add(child.pid)
        feed = asyncio.ensure_future(_feed(process, child))
        gone = asyncio.ensure_future(process.wait_closed())
        ended = asyncio.ensure_future(_ended(process, child))
        try:
            await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A dropped connection takes along everything that it started.
            if not ended.done() or ended.exception():
                _kill(child.pid)
            status = await child.wait()
            self._groups.discard(child.pid)
            for task in (feed, gone, ended):
                task.cancel()
            await asyncio.gather(feed, gone, ended, return_exceptions=True)
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name[3:])
        else:
            process.exit(status)

    def kill(self) -> None:
        """End all commands that run."""
        for group in self._groups:
            _kill(group)


async def _feed(
    process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process
) -> None:
    """Pass on what the client sends, to its end; a command may read less of it."""
    assert child.stdin is not None
    while True:
        try:
            data = await process.stdin.read(PIECE)
        except asyncssh.SignalReceived as sent:
            number = getattr(signal, f"SIG{sent.signal}", None)
            if number is not None:
                child.send_signal(number)
            continue
        if not data:
            break
        try:
            child.stdin.write(data)
            await child.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass
    child.stdin.close()


async def _ended(
    process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process
) -> None:
    """Pass on what a command puts out, and wait for its end."""

    async def pass_on(source: asyncio.StreamReader | None, target: Any) -> None:
        assert source is not None
        while data := await source.read(PIECE):
            target.write(data)
            await target.drain()

    await asyncio.gather(
        pass_on(child.stdout, process.stdout), pass_on(child.stderr, process.stderr)
    )
    await child.wait()


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


# The vendor's modules on a board, each ours under its name: file, what is in it.
MODULES = {
    "bm1688": {"bmrt.py": "harness.simulator.bm1688.bmrt"},
    "rk1828": {
        "rknn3lite/__init__.py": "",
        "rknn3lite/api/__init__.py": "harness.simulator.rk1828.api",
        "rknn3lite/api/rknn3_types.py": "harness.simulator.rk1828.types",
    },
}


def prepare(root: Path, platform: str, python: str, fault: Fault | None) -> None:
    """Lay out a board's root: `bin/python3`, the vendor's modules, the fault."""
    for folder in ("bin", "site", "work"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for place, module in MODULES[platform].items():
        file = root / "site" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"from {module} import *  # noqa: F403\n" if module else "")
    # Behind whatever the command brings along, as site-packages would be.
    path = f"{root / 'site'}:{REPOSITORY}:{Path.cwd()}"
    command = root / "bin" / "python3"
    command.write_text(
        "#!/bin/sh\n"
        f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(path)}\n'
        f'exec {shlex.quote(python)} "$@"\n'
    )
    command.chmod(0o755)
    if fault is not None and fault.where == "device":
        (root / FAULT_FILE).write_text(json.dumps({"device": fault.spec}))


async def serve(root: Path, fault: Fault | None) -> None:
    """Serve until stdin ends."""
    keys = root / "keys"
    keys.mkdir(mode=0o700, exist_ok=True)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    user_key = asyncssh.generate_private_key("ssh-ed25519")
    user_key.write_private_key(keys / "identity")
    (keys / "identity").chmod(0o600)
    environment = {
        "HOME": str(root),
        "LANG": "C.UTF-8",
        "LOGNAME": USER,
        "USER": USER,
        "PATH": f"{root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        ROOT: str(root),
        # The decoder's products are small: a second thread costs more than it
        # gives, and boards share the machine.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    commands = Commands(environment)
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: Gate(user_key),
        server_host_keys=[host_key],
        process_factory=commands.run,
        sftp_factory=True,
        encoding=None,
        window=4 * PIECE,
        allow_pty=False,
        line_editor=False,
        agent_forwarding=False,
        keepalive_interval=0,
    )
    port = server.get_port()
    line = host_key.export_public_key().decode().split()[:2]
    (keys / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(line)}\n")
    told = {
        "host": f"ssh://{USER}@127.0.0.1:{port}",
        "identity": str(keys / "identity"),
        "known_hosts": str(keys / "known_hosts"),
        "workdir": str(root / "work"),
        "loader": fault.file if fault and fault.where == "loader" else None,
        "bundler": fault.spec if fault and fault.where == "converter" else None,
    }
    print(json.dumps(told), flush=True)
    try:
        await _end_of_stdin()
    finally:
        commands.kill()
        server.close()


async def _end_of_stdin() -> None:
    """Wait for the end of stdin, or to be told to end."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status, 2 for a mistake in the options."""
    parser = argparse.ArgumentParser(prog="farm", description=__doc__)
    parser.add_argument("--board", required=True, help="Its name")
    parser.add_argument("--platform", required=True, help="bm1688 or rk1828")
    parser.add_argument("--root", required=True, type=Path, help="Its root folder")
    parser.add_argument("--fault", help="A built-in fault, or module:Class")
    parser.add_argument("--python", default=sys.executable, help="Its python3")
    options = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    root = options.root.resolve()
    try:
        if options.platform not in PLATFORMS:
            raise UsageFault(
                f"no simulated {options.platform!r}", cure=f"one of {PLATFORMS}"
            )
        fault = find(options.fault, options.platform) if options.fault else None
        prepare(root, options.platform, options.python, fault)
    except UsageFault as error:
        told = {
            "refused": error.cause,
            "cure": error.cure,
            "elsewhere": isinstance(error, OfAnotherPlatform),
        }
        print(json.dumps(told), flush=True)
        return 2
    os.chdir(root)  # where relative paths of commands and files start
    asyncio.run(serve(root, fault))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Starting a simulated board: a process that serves SSH on loopback."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.deadline import Deadline
from harness.errors import Infrastructure
from harness.errors import UsageFault


__all__ = ["FaultElsewhere", "SimulatedBoard", "start"]

# The server ends its commands and itself at once; this only keeps a broken one
# from holding up the run.
STOP_S = 5.0
MOST_LINE = 1 << 16


class FaultElsewhere(UsageFault):
    """The fault is none of this platform."""

    code = "fault-elsewhere"


@dataclass(frozen=True)
class SimulatedBoard:
    """A simulated board that serves, and how it is reached.

    :param host: `ssh://user@127.0.0.1:port`.
    :param identity: private key of the one user.
    :param known_hosts: file with its host key.
    :param workdir: absolute folder over there for files of the harness.
    :param loader: `FILE:Class` of a faulty loader, None for the sound one.
    :param bundler: `module:Class` of a faulty converter of adapters, None for the
        sound one.
    :param process: the server.
    """

    host: str
    identity: Path
    known_hosts: Path
    workdir: str
    loader: str | None
    bundler: str | None
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End the board and every command on it."""
        _stop(self.process)


def start(
    name: str,
    platform: str,
    root: Path,
    fault: str | None,
    deadline: Deadline,
    *,
    python: str | None = None,
) -> SimulatedBoard:
    """Start a simulated board with its root in the folder `root`.

    :param fault: name of a built-in fault, or `module:Class` that can be imported
        from the current folder.
    :param python: the board's own interpreter (>= 3.8, with numpy); None: ours.
    :raises FaultElsewhere: the fault is one of another platform.
    :raises UsageFault: there is no such fault or platform.
    :raises Infrastructure: it did not start in time.
    """
    command = [sys.executable, "-m", "harness.simulator.farm"]
    command += ["--board", name, "--platform", platform, "--root", str(root)]
    command += ["--fault", fault] if fault else []
    command += ["--python", python] if python else []
    root.mkdir(parents=True, exist_ok=True)
    log = root / "farm.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Ctrl-C goes to us; the board ends with our end of its stdin.
            start_new_session=True,
        )
    try:
        told = _first_line(process, name, log, deadline)
    except BaseException:
        _stop(process)
        raise
    if "refused" in told:
        _stop(process)
        kind = FaultElsewhere if told["elsewhere"] else UsageFault
        raise kind(str(told["refused"]), where=name, cure=str(told["cure"]))
    return SimulatedBoard(
        host=told["host"],
        identity=Path(told["identity"]),
        known_hosts=Path(told["known_hosts"]),
        workdir=told["workdir"],
        loader=told["loader"],
        bundler=told["bundler"],
        process=process,
    )


def _first_line(
    process: subprocess.Popen[bytes], name: str, log: Path, deadline: Deadline
) -> dict[str, Any]:
    assert process.stdout is not None
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], deadline.remaining)
        piece = os.read(process.stdout.fileno(), MOST_LINE) if ready else b""
        if not piece:
            cause = "ended" if ready else f"said nothing in {deadline.seconds:g} s"
            tail = log.read_text(errors="replace")[-500:].strip().split("\n")[-1]
            raise Infrastructure(
                f"the simulated board's start-up {cause}: {tail or 'no message'}",
                where=name,
                cure=f"see {log}",
            )
        text += piece
    value: dict[str, Any] = json.loads(text)
    return value


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()

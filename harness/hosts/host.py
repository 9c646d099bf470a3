"""The protocol of a machine: run, start, put, get, digest.

Paths on a host are POSIX paths; relative ones start in the login folder.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.deadline import Deadline


__all__ = ["Completed", "Host", "Process"]


@dataclass(frozen=True)
class Completed:
    """A command that ended.

    :param output: stdout, at most 1 MiB of it.
    :param errors: the last 64 KiB of stderr, decoded with replacement.
    """

    status: int
    output: bytes
    errors: str


class Process(Protocol):
    """A command that runs, its stdin and stdout open to us."""

    def write(self, data: bytes | memoryview, deadline: Deadline) -> None:
        """Write all of `data` to its stdin.

        :raises HostUnreachable: the connection is gone.
        :raises TimeoutError: `deadline` passed.
        """

    def read(self, size: int, deadline: Deadline) -> bytes:
        """Read exactly `size` bytes of its stdout, fewer only at its end.

        :raises HostUnreachable: the connection is gone.
        :raises TimeoutError: `deadline` passed.
        """

    def errors(self) -> str:
        """The last 64 KiB of its stderr so far."""

    def status(self) -> int | None:
        """Its exit status (negative: killed by that signal), None while it runs."""

    def close(self) -> None:
        """Close its stdin and let go of it; ends a well-behaved program."""


class Host(Protocol):
    """A machine that commands run on. All methods are deadline-bound."""

    @property
    def name(self) -> str:
        """The board's name, for messages."""

    @property
    def address(self) -> str:
        """Where it is: `ssh://user@host:port` or `local:FOLDER`."""

    @property
    def python(self) -> str:
        """The Python command over there."""

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end; its exit status is not an error here.

        :raises HostUnreachable: no connection, or it was lost.
        :raises CommandFailed: `deadline` passed; the command is ended.
        """

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a command and talk to it.

        :raises HostUnreachable: no connection.
        """

    def put(
        self,
        source: Path,
        target: str,
        *,
        deadline: Deadline,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Copy a file to the host; `target` appears whole or not at all.

        :param progress: called with bytes sent and bytes in all.
        :raises TransferDamaged: the digest over there differs.
        :raises DiskFull: it would not fit; nothing was written.
        """

    def get(self, source: str, target: Path, *, deadline: Deadline, limit: int) -> None:
        """Copy a file of at most `limit` bytes from the host, whole or not at all.

        :raises TransferDamaged: larger than `limit`, or cut.
        """

    def digest(self, path: str, *, deadline: Deadline) -> str | None:
        """sha256 of a file over there in hex, None where there is none."""

    def free_space(self, path: str, *, deadline: Deadline) -> int:
        """Free bytes in the file system of `path`."""

    def close(self) -> None:
        """Let go of the machine; commands that were started end."""

"""A machine reached by SSH, with keys only and strict host keys."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

import paramiko

from harness.boards.address import Address
from harness.deadline import Deadline
from harness.errors import HostUnreachable
from harness.errors import Infrastructure
from harness.hosts.channel import SshProcess
from harness.hosts.connection import CONNECT_SECONDS
from harness.hosts.connection import Connection
from harness.hosts.connection import connect
from harness.hosts.host import Completed
from harness.hosts.transfer import Transfers


__all__ = ["SshHost"]


class SshHost(Transfers):
    """A machine over one SSH connection, made when it is first needed.

    A connection lost between two commands is made again once; commands that ran in
    it are lost. Several threads may use it, each process belongs to one.

    :param name: the board's name, for messages.
    :param address: where it is reached.
    :param identity: private key; None: the agent's keys.
    :param known_hosts: the only host keys that are trusted.
    :param python: the Python command over there.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        identity: Path | None,
        known_hosts: Path,
        python: str = "python3",
    ) -> None:
        self.name = name
        self.address = str(address)
        self.python = python
        self._address = address
        self._identity = identity
        self._known_hosts = known_hosts
        self._where = f"{name} ({address})"
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False
        self._started: weakref.WeakSet[SshProcess] = weakref.WeakSet()

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
        process = self._start(argv, env, deadline.at_most(CONNECT_SECONDS))
        return process.complete(stdin, deadline, self._where)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> SshProcess:
        """Start a command and talk to it.

        :raises HostUnreachable: no connection.
        """
        process = self._start(argv, env, Deadline(CONNECT_SECONDS))
        self._started.add(process)
        return process

    def close(self) -> None:
        """Let go of the machine; commands that were started end."""
        for process in list(self._started):
            process.close()
        with self._lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None, deadline: Deadline
    ) -> SshProcess:
        if env:
            # Servers accept no variables but their own AcceptEnv.
            argv = ["env", *(f"{key}={value}" for key, value in env.items()), *argv]
        connection, channel = self._open(deadline)
        process = SshProcess(connection, channel, self._where, self._kill)
        process.execute(argv, deadline)
        return process

    def _open(self, deadline: Deadline) -> tuple[Connection, paramiko.Channel]:
        """A session channel, on a new connection where the old one is gone."""
        with self._lock:
            if self._closed:
                raise HostUnreachable(
                    "it was let go of", where=self._where, cure="open it again"
                )
            for attempt in (1, 2):
                if self._connection is None or not self._connection.is_active():
                    self._connection = connect(
                        self.name, self._address, self._identity, self._known_hosts
                    )
                try:
                    channel = self._connection.open_session(
                        timeout=max(deadline.remaining, 1.0)
                    )
                    return self._connection, channel
                except paramiko.ChannelException as error:
                    raise HostUnreachable(
                        f"it opens no further session: {error.text}",
                        where=self._where,
                        cure="raise MaxSessions over there, or close other sessions",
                    ) from None
                except (paramiko.SSHException, EOFError, OSError) as error:
                    self._connection.close()
                    if attempt == 2:
                        raise HostUnreachable(
                            f"no session: {error or 'the connection is gone'}",
                            where=self._where,
                            cure="see whether the board is overloaded or restarting",
                        ) from None
        raise AssertionError("unreachable")

    def _kill(self, pid: int, signal: str) -> None:
        """Signal a command that we started, with its children if it leads them."""
        script = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2"'
        deadline = Deadline(5)
        try:
            process = self._start(
                ["sh", "-c", script, "sh", signal, str(pid)], None, deadline
            )
            process.complete(b"", deadline, self._where)
        except Infrastructure:
            pass  # the host is gone, and what ran on it

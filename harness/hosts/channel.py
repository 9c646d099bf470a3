"""A command on the far side of an SSH connection."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable
from collections.abc import Sequence

import paramiko

from harness.deadline import Deadline
from harness.errors import HostUnreachable
from harness.hosts.connection import Connection
from harness.hosts.piped import GRACE
from harness.hosts.piped import Piped


__all__ = ["SshProcess"]

# The command's process id comes first on stderr. SSH servers let a program live on
# when its channel closes, so ending it for certain takes a `kill`.
_ANNOUNCE = 'echo "harness-pid:$$" >&2; exec "$@"'
_ANNOUNCED = re.compile(rb"^harness-pid:(\d{1,10})\n", re.MULTILINE)
_HEAD_LIMIT = 64 << 10

# What SSH servers take in one packet; paramiko cuts larger pieces by copying.
_PACKET = 32 << 10

# At least as much as the window: whatever is there is taken in one go, because
# taking a part makes paramiko move the rest.
_ALL = 1 << 30


class SshProcess(Piped):
    """A command over one channel.

    :param connection: the connection the channel belongs to.
    :param channel: an open session channel.
    :param where: the board, for messages.
    :param kill: sends a signal to a process id over there, on another channel.
    """

    def __init__(
        self,
        connection: Connection,
        channel: paramiko.Channel,
        where: str,
        kill: Callable[[int, str], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._channel = channel
        self._where = where
        self._kill = kill
        self._pid: int | None = None
        self._closed = False
        channel.closed_by_peer = False
        self._drainer = threading.Thread(target=self._drain, daemon=True)

    def execute(self, argv: Sequence[str], deadline: Deadline) -> None:
        """Start the command.

        :raises HostUnreachable: the connection is gone, or the server refuses.
        """
        command = shlex.join(["exec", "sh", "-c", _ANNOUNCE, "sh", *argv])
        # paramiko waits for the answer without limit; closing the channel ends it.
        watch = threading.Timer(deadline.remaining, self._channel.close)
        watch.daemon = True
        watch.start()
        try:
            self._channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(
                f"a command could not be started: {error or 'the connection is gone'}",
                where=self._where,
                cure="see the SSH server's log over there",
            ) from None
        finally:
            watch.cancel()
        self._drainer.start()

    def write(self, data: bytes | memoryview, deadline: Deadline) -> None:
        """Write all of `data` to its stdin.

        :raises HostUnreachable: the connection is gone.
        :raises TimeoutError: `deadline` passed.
        """
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            if not self._connection.is_active():
                raise self._lost()
            self._channel.settimeout(max(deadline.remaining, 0.001))
            try:
                count = self._channel.send(bytes(view[start : start + _PACKET]))
            except TimeoutError:
                raise TimeoutError(f"stdin took no data in {deadline!r}") from None
            except (paramiko.SSHException, EOFError, OSError):
                count = 0
            finally:
                self._channel.settimeout(None)
            if not count:
                # A lost connection closes the channel, too.
                if self._channel.closed_by_peer or self._closed:
                    return
                raise self._lost()
            start += count

    def end_input(self) -> None:
        """Close its stdin."""
        try:
            self._channel.shutdown_write()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # it has ended, or the connection is gone: reading will tell

    def status(self) -> int | None:
        """Its exit status (negative: killed by that signal), None while it runs.

        A lost connection counts as a hang-up, -1.
        """
        if not self._channel.exit_status_ready():
            return None
        return int(self._channel.exit_status)

    def close(self) -> None:
        """Close its stdin; a command that does not end by itself is killed."""
        if self._closed:
            return
        self._closed = True
        self.end_input()
        for signal in ("TERM", "KILL"):
            if self._wait(GRACE) is not None or self._pid is None:
                break
            self._kill(self._pid, signal)
        try:
            self._channel.close()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # the connection is gone, and the channel with it

    def _receive(self, deadline: Deadline) -> bytes:
        self._channel.settimeout(max(deadline.remaining, 0.001))
        try:
            data = self._channel.recv(_ALL)
        except TimeoutError:
            raise TimeoutError(f"nothing on stdout in {deadline!r}") from None
        except (paramiko.SSHException, EOFError, OSError):
            data = b""
        finally:
            self._channel.settimeout(None)
        ended = self._channel.eof_received or self._channel.closed_by_peer
        if not data and not ended and not self._closed:
            raise self._lost()
        return bytes(data)

    def _wait(self, seconds: float) -> int | None:
        self._channel.status_event.wait(seconds)
        return self.status()

    def _drained(self, seconds: float) -> None:
        if self._drainer.is_alive():
            self._drainer.join(seconds)

    def _drain(self) -> None:
        """Keep the tail of stderr; a full window would stop the program."""
        head = b""
        while True:
            try:
                data = self._channel.recv_stderr(_ALL)
            except TimeoutError:
                continue  # a reader's time-out, which paramiko shares
            except (paramiko.SSHException, EOFError, OSError):
                data = b""
            if not data:
                break
            if self._pid is None and len(head) < _HEAD_LIMIT:
                # A login shell's start-up files may have spoken before.
                head += data
                found = _ANNOUNCED.search(head)
                if not found:
                    continue
                self._pid = int(found[1])
                data = head[: found.start()] + head[found.end() :]
                head = b""
            self._tail.add(data)
        if head:
            self._tail.add(head)

    def _lost(self) -> HostUnreachable:
        return HostUnreachable(
            "the connection was lost",
            where=self._where,
            cure="see whether the board has restarted or its network is down",
        )

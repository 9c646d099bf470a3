"""This machine, reached like a board: the same commands without SSH."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

from harness.deadline import Deadline
from harness.hosts.host import Completed
from harness.hosts.piped import GRACE
from harness.hosts.piped import WINDOW
from harness.hosts.piped import Piped
from harness.hosts.transfer import Transfers


__all__ = ["LocalHost", "LocalProcess"]

# A pipe holds 64 KiB by default, which cuts a reply of 600 kB into ten turns.
_PIPE = 1 << 20


class LocalProcess(Piped):
    """A command of this machine in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__()
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = process.stderr
        self._closed = False
        self._ended = False
        os.set_blocking(self._stdin.fileno(), False)
        for pipe in (self._stdin, self._stdout):
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                try:
                    fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
                except PermissionError:
                    pass  # the user's share of pipe memory is used up
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    def write(self, data: bytes | memoryview, deadline: Deadline) -> None:
        """Write all of `data` to its stdin.

        :raises TimeoutError: `deadline` passed.
        """
        view = memoryview(data).cast("B")
        while view and not self._stdin.closed:
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BlockingIOError:
                self._await_writable(deadline)
            except BrokenPipeError:
                return

    def end_input(self) -> None:
        """Close its stdin."""
        self._stdin.close()

    def status(self) -> int | None:
        """Its exit status (negative: killed by that signal), None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """Close its stdin; a command that does not end by itself is killed."""
        if self._closed:
            return
        self._closed = True
        self.end_input()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._wait(GRACE) is not None:
                break
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                pass  # it ended meanwhile
        self._wait(GRACE)
        self._stdout.close()

    def _await_writable(self, deadline: Deadline) -> None:
        """Wait until stdin takes data, and keep what stdout has meanwhile."""
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        if not self._ended and self._held < WINDOW:
            poll.register(self._stdout, select.POLLIN)
        ready = poll.poll(deadline.remaining * 1000)
        if not ready:
            raise TimeoutError(f"stdin took no data in {deadline!r}")
        if self._stdout.fileno() in (fd for fd, _ in ready):
            self._keep(self._receive(deadline))

    def _receive(self, deadline: Deadline) -> bytes:
        if self._ended or self._stdout.closed:
            return b""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if not poll.poll(deadline.remaining * 1000):
            raise TimeoutError(f"nothing on stdout in {deadline!r}")
        data = os.read(self._stdout.fileno(), _PIPE)
        self._ended = not data
        return data

    def _wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _drained(self, seconds: float) -> None:
        self._drainer.join(seconds)

    def _drain(self) -> None:
        with self._stderr:
            while data := os.read(self._stderr.fileno(), 1 << 16):
                self._tail.add(data)


class LocalHost(Transfers):
    """This machine.

    :param name: its name, for messages.
    :param root: folder that commands start in, and relative paths too.
    :param python: the Python command for the harness's own helpers.
    """

    def __init__(
        self, name: str, root: Path | None = None, *, python: str = sys.executable
    ) -> None:
        self.name = name
        self.python = python
        self._root = (root or Path.home()).absolute()
        self.address = f"local:{self._root}"
        self._started: weakref.WeakSet[LocalProcess] = weakref.WeakSet()

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end; its exit status is not an error here.

        :raises CommandFailed: `deadline` passed; the command is ended.
        """
        return self.start(argv, env=env).complete(stdin, deadline, self.name)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> LocalProcess:
        """Start a command and talk to it."""
        process = LocalProcess(
            subprocess.Popen(
                # Through sh as on a board: a command that is not there is status 127.
                ["sh", "-c", 'exec "$@"', "sh", *argv],
                cwd=self._root,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        )
        self._started.add(process)
        return process

    def close(self) -> None:
        """Let go of the machine; commands that were started end."""
        for process in list(self._started):
            process.close()

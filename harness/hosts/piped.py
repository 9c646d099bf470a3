"""A command with its three pipes: what SSH and local processes share."""

from __future__ import annotations

import threading
from abc import ABC
from abc import abstractmethod
from collections import deque

from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.hosts.host import Completed


__all__ = ["GRACE", "WINDOW", "Piped", "Tail"]

# Seconds a program gets to end by itself after its stdin was closed; a probe
# that frees gigabytes needs a good part of one.
GRACE = 2.0

# Output that is kept while nobody reads it: a reply of a hundred rows of logits.
WINDOW = 64 << 20

_OUTPUT_LIMIT = 1 << 20
_TAIL_LIMIT = 64 << 10


class Tail:
    """The last 64 KiB of a stream, fed by one thread and read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what is older than the last 64 KiB."""
        with self._lock:
            self._bytes += data[-_TAIL_LIMIT:]
            # Cut at double the size: a cut for every line would move it all.
            if len(self._bytes) > 2 * _TAIL_LIMIT:
                del self._bytes[:-_TAIL_LIMIT]

    def text(self) -> str:
        """What is kept, decoded with replacement."""
        with self._lock:
            return bytes(self._bytes[-_TAIL_LIMIT:]).decode("utf-8", "replace")


class Piped(ABC):
    """A running command; one thread at a time may use it.

    A program that has ended takes no more input: `write` drops it and `read`
    shows the end. While `write` waits, up to 64 MiB of output are kept for `read`,
    so a program that answers while it is fed does not wait for us.
    """

    def __init__(self) -> None:
        self._tail = Tail()
        self._chunks: deque[memoryview] = deque()
        self._held = 0
        self._at_end = False

    @abstractmethod
    def write(self, data: bytes | memoryview, deadline: Deadline) -> None:
        """Write all of `data` to its stdin."""

    @abstractmethod
    def end_input(self) -> None:
        """Close its stdin."""

    @abstractmethod
    def status(self) -> int | None:
        """Its exit status (negative: killed by that signal), None while it runs."""

    @abstractmethod
    def close(self) -> None:
        """Close its stdin and end it if it does not end by itself."""

    @abstractmethod
    def _receive(self, deadline: Deadline) -> bytes:
        """Whatever stdout has, at least one byte; empty at its end."""

    @abstractmethod
    def _wait(self, seconds: float) -> int | None:
        """Its status, waiting for at most so long."""

    @abstractmethod
    def _drained(self, seconds: float) -> None:
        """Wait until stderr has been read to its end, for at most so long."""

    def read(self, size: int, deadline: Deadline) -> bytes:
        """Read exactly `size` bytes of its stdout, fewer only at its end.

        :raises HostUnreachable: the connection is gone.
        :raises TimeoutError: `deadline` passed; what came stays readable.
        """
        while self._held < size:
            data = self._receive(deadline)
            if not data:
                self._at_end = True
                break
            self._keep(data)
        # Whole chunks are taken as they are: each byte is copied once.
        parts = []
        missing = min(size, self._held)
        self._held -= missing
        while missing:
            chunk = self._chunks.popleft()
            parts.append(chunk[:missing])
            if len(chunk) > missing:
                self._chunks.appendleft(chunk[missing:])
            missing -= len(parts[-1])
        return b"".join(parts)

    def _keep(self, data: bytes) -> None:
        self._chunks.append(memoryview(data))
        self._held += len(data)

    def _some(self, deadline: Deadline) -> bytes | memoryview:
        """What is kept here, else what stdout has; empty at its end."""
        if not self._chunks:
            return self._receive(deadline)
        chunk = self._chunks.popleft()
        self._held -= len(chunk)
        return chunk

    def errors(self) -> str:
        """The last 64 KiB of its stderr so far."""
        if self._at_end or self.status() is not None:
            # It has ended or is about to: the rest of its stderr and its status
            # are under way.
            self._wait(0.5)
            self._drained(0.5)
        return self._tail.text()

    def complete(self, stdin: bytes, deadline: Deadline, where: str) -> Completed:
        """Feed `stdin`, collect stdout and wait for the end.

        :raises CommandFailed: `deadline` passed; the command is ended.
        """
        output = bytearray()
        try:
            self.write(stdin, deadline)
            self.end_input()
            while data := self._some(deadline):
                output += data[: _OUTPUT_LIMIT - len(output)]
            status = self._wait(deadline.remaining)
            if status is None:
                raise TimeoutError
            return Completed(status, bytes(output), self.errors())
        except TimeoutError:
            last = self._tail.text().strip().splitlines()[-1:]
            said = f"; it last said: {printable(last[0])}" if last else ""
            raise CommandFailed(
                f"a command did not end within {deadline.seconds:g} s{said}",
                where=where,
                cure="see whether the board is overloaded or the command hangs",
            ) from None
        finally:
            self.close()

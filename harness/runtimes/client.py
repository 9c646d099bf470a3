"""The harness's end of a probe's stream: requests out, replies in, faults named."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from typing import NoReturn
from typing import TypeVar

import numpy as np
from pydantic import BaseModel

from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import Infrastructure
from harness.errors import ProtocolBroken
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.errors import UsageFault
from harness.hosts.host import Process
from harness.probes.wire import StreamCut
from harness.probes.wire import WireError
from harness.probes.wire import read_frame
from harness.probes.wire import write_frame
from harness.runtimes.replies import Failure
from harness.runtimes.replies import parse


__all__ = ["Arrays", "Client"]

# A program's status arrives after the end of its output, on a line of its own.
STATUS_SECONDS = 2.0
HELLO = "start"  # the step that a probe's first frame belongs to

Arrays = Mapping[str, np.ndarray]
R = TypeVar("R", bound=BaseModel)


class Client:
    """One running probe; it is closed for good once it died, hung or babbled.

    :param board: the board's name, for messages.
    :param process: the probe, just started.
    """

    def __init__(self, board: str, process: Process) -> None:
        self._board = board
        self._process = process
        self._number = 0
        self._closed = False

    def close(self) -> None:
        """End the program; it is killed where it does not end by itself."""
        if not self._closed:
            self._closed = True
            self._process.close()

    @property
    def closed(self) -> bool:
        """Whether the program has been ended, or was found ended."""
        return self._closed

    def hello(self, seconds: float) -> dict[str, Any]:
        """The probe's first frame.

        :raises RuntimeRefused: the vendor's runtime does not take the model.
        :raises UsageFault: loader, model or vendor's module are not to be had.
        :raises Infrastructure: the probe could not be started.
        """
        header, _ = self._receive(HELLO, Deadline(seconds), 0)
        if "hello" not in header:
            self._check_ok(HELLO, header)
        return header

    def call(
        self,
        op: str,
        seconds: float,
        fields: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        limit: int = 0,
        *,
        first: str = "",
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """One request and its reply.

        :param limit: bytes of arrays that the reply may have.
        :param first: an operation on the same fields that goes ahead in the same
            packet, so that both take one round trip.
        :raises RuntimeRefused: it said no.
        :raises RuntimeDied: the program ended, now or before.
        :raises RuntimeHung: no reply in time; the program was killed.
        :raises ProtocolBroken: the reply is nonsense; the program was killed.
        :raises HostUnreachable: the connection is gone.
        """
        if self._closed:
            raise RuntimeDied(
                "the program does not run any more",
                where=self._where(op),
                cure="restart it",
            )
        steps = [(first, None), (op, arrays)] if first else [(op, arrays)]
        start = self._number + 1
        pieces: list[bytes | memoryview] = []
        for self._number, (step, given) in enumerate(steps, start):
            header = {**(fields or {}), "id": self._number, "op": step}
            write_frame(pieces.append, header, given)
        deadline = Deadline(seconds)
        try:
            self._process.write(b"".join(pieces), deadline)
        except TimeoutError:
            self._hung(op, deadline)
        except Infrastructure:
            self.close()
            raise
        replies = []
        for number, (step, _) in enumerate(steps, start):
            header, got = self._receive(step, deadline, limit if step == op else 0)
            if header.get("id") != number:
                self.broken(step, "a reply to another request came")
            replies.append((step, header))
        # All are read before one is judged: a refusal leaves no reply behind.
        for step, header in replies:
            self._check_ok(step, header)
        return header, got

    def _receive(
        self, step: str, deadline: Deadline, limit: int
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        process = self._process
        try:
            return read_frame(lambda n: process.read(n, deadline), limit)
        except TimeoutError:
            self._hung(step, deadline)
        except (EOFError, StreamCut):
            self._died(step)
        except WireError as error:
            self.broken(step, str(error))
        except Infrastructure:
            self.close()
            raise

    def parsed(self, step: str, kind: type[R], header: Mapping[str, Any]) -> R:
        """A reply's fields, checked.

        :raises ProtocolBroken: it is no reply of this kind.
        """
        try:
            return parse(kind, header)
        except ValueError as error:
            self.broken(step, str(error))

    # What can go wrong

    def _check_ok(self, step: str, header: Mapping[str, Any]) -> None:
        if header.get("ok") is True:
            return
        error = self.parsed(step, Failure, header).error
        if step == HELLO:
            self.close()
        if error.kind == "bug":
            raise Infrastructure(
                f"the probe failed: {error.text}",
                where=self._where(step),
                cure="report it with the probe's stderr",
            )
        if error.kind == "setup":
            raise UsageFault(
                error.text,
                where=self._where(step),
                cure="see loader, model, the vendor's Python module and its version on "
                "the board",
            )
        raise RuntimeRefused(
            f"{error.text} (code {error.code})",
            where=self._where(step),
            cure="mend what it names, or look the code up",
            vendor_code=error.code,
        )

    def _died(self, step: str) -> NoReturn:
        process = self._process
        end = time.monotonic() + STATUS_SECONDS
        while (status := process.status()) is None and time.monotonic() < end:
            time.sleep(0.01)
        if status is None:
            how = "the program closed its output"
        elif status < 0:
            how = f"the program was killed by signal {-status}"
        else:
            how = f"the program ended with exit status {status}"
        said = self._last_words()
        self.close()
        # What shells and Python say when a program cannot even begin: 126 and 127
        # no such command, 1 an import that failed, 2 arguments it does not know.
        if step == HELLO and status in (1, 2, 126, 127):
            raise Infrastructure(
                f"the probe did not start: {how}{said}",
                where=self._where(step),
                cure="the board needs Python >= 3.8 with numpy; set python in "
                "boards.toml",
            )
        raise RuntimeDied(
            f"{how}{said}",
            where=self._where(step),
            cure="restart it, and see the board's system log",
        )

    def _hung(self, step: str, deadline: Deadline) -> NoReturn:
        self.close()
        raise RuntimeHung(
            f"no reply in {deadline.seconds:g} s, the program was ended"
            f"{self._last_words()}",
            where=self._where(step),
            cure="restart it; if it hangs again, restart the board",
        )

    def broken(self, step: str, what: str) -> NoReturn:
        """End the program, since what it says makes no sense.

        :raises ProtocolBroken: always.
        """
        self.close()
        raise ProtocolBroken(
            printable(what),
            where=self._where(step),
            cure="see that nothing but the probe writes to its stdout",
        )

    def _where(self, step: str) -> str:
        return f"{self._board}, {step}"

    def _last_words(self) -> str:
        lines = [line for line in self._process.errors().splitlines() if line.strip()]
        return f"; it last said: {printable(' | '.join(lines[-3:]))}" if lines else ""

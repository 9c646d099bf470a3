"""Whose turn it is: one holder per board, on the board itself.

A few lines of Python over there hold a flock as long as we beat; when this process
dies, its connection drops or its machine sleeps, the board is free within seconds.
A file lock on this machine makes its workers queue instead of being refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Self

from filelock import FileLock
from filelock import Timeout

from harness.boards.words import printable
from harness.cache import cache_folder
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import Infrastructure
from harness.errors import LeaseHeld
from harness.errors import LeaseLost


if TYPE_CHECKING:
    from harness.hosts.host import Host
    from harness.hosts.host import Process

__all__ = ["Lease"]

_HOLDER = Path(__file__).with_name("holder.py").read_text("utf-8")

# One beat a second, and four seconds of silence end the lease: three beats may be
# late (a busy network, a garbage collection) before a board is given away.
_BEAT_SECONDS = 1.0
_PATIENCE_SECONDS = 4.0

# A slow board needs a second or two to start Python.
_CLAIM_SECONDS = 20.0


class Lease:
    """The exclusive use of a board, as a context manager.

    :param host: the board's machine.
    :param workdir: the harness' folder over there; the lease is `lease` in it.
    :param owner: who holds it, shown to whoever is refused.
    :param queue: seconds to wait for other processes of this machine.
    """

    def __init__(
        self, host: Host, workdir: str, owner: str, *, queue: float = 600.0
    ) -> None:
        self._host = host
        self._path = f"{workdir}/lease"
        self._owner = printable(owner, 120) or "somebody"
        self._queue = queue
        self._turn = FileLock(_turn_file(host.address, workdir), thread_local=False)
        self._process: Process | None = None
        self._beater: threading.Thread | None = None
        self._stop = threading.Event()
        self._heard = 0.0
        self._lost = ""

    def acquire(self) -> None:
        """Take the board.

        :raises LeaseHeld: somebody else has it; names who and since when.
        :raises HostUnreachable: no connection.
        :raises CommandFailed: the lease cannot be kept over there.
        """
        if self._process is not None:
            raise LeaseHeld("this process holds it already", where=self._host.name)
        try:
            self._turn.acquire(timeout=self._queue)
        except Timeout:
            # The board knows the owner's name.
            self._claim().close()
            raise LeaseHeld(
                f"another process of this machine kept it for {self._queue:g} s",
                where=self._host.name,
                cure="wait for it to end",
            ) from None
        try:
            self._process = self._claim()
        except BaseException:
            self._turn.release()
            raise
        self._lost = ""
        self._heard = time.monotonic()
        self._stop.clear()
        self._beater = threading.Thread(target=self._beat, daemon=True)
        self._beater.start()

    def check(self) -> None:
        """Pass while the board is ours.

        :raises LeaseLost: it is not, or not for certain.
        """
        silent = time.monotonic() - self._heard
        if not self._lost and self._process and silent > _PATIENCE_SECONDS:
            # We were asleep: by now it may be another's.
            self._lost = f"no answer to a heartbeat for {silent:.1f} s"
        if self._lost or self._process is None:
            raise LeaseLost(
                self._lost or "it is not held",
                where=self._host.name,
                cure="run again; see the network and the load of this machine",
            )

    def release(self) -> None:
        """Give the board back; nothing happens where it is not held."""
        process, self._process = self._process, None
        if process is None:
            return
        self._stop.set()
        if self._beater:
            self._beater.join(2 * _PATIENCE_SECONDS)
        process.close()
        self._turn.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _claim(self) -> Process:
        """A holder over there that has the lock."""
        deadline = Deadline(_CLAIM_SECONDS)
        process = self._host.start(
            [
                *(self._host.python, "-I", "-S", "-c", _HOLDER),
                *(self._path, self._owner, str(_PATIENCE_SECONDS)),
            ]
        )
        try:
            line = _line(process, deadline)
            told = json.loads(line) if line else None
            if told == {}:
                # It holds the lock as long as it runs; a refusal ends at once.
                process.write(b".", deadline)
                if process.read(1, deadline) == b".":
                    return process
            if isinstance(told, dict):
                raise self._held(told)
            said = process.errors().strip().splitlines()[-1:]
            raise CommandFailed(
                f"no lease in {self._path}: {printable(said[0]) if said else 'ended'}",
                where=self._host.name,
                cure="see workdir = and python = in boards.toml",
            )
        except (TimeoutError, ValueError):
            process.close()
            raise CommandFailed(
                f"no sensible answer about the lease in {self._path}",
                where=self._host.name,
                cure="see whether the board is overloaded",
            ) from None
        except BaseException:
            process.close()
            raise

    def _held(self, told: dict) -> LeaseHeld:
        owner = printable(str(told.get("owner", "somebody")), 120)
        age = told.get("age")
        since = ""
        if isinstance(age, int | float) and 0 <= age < 1e8:
            # The age is the board's; its clock need not be right.
            clock = time.localtime(time.time() - age)
            since = f" since {time.strftime('%Y-%m-%d %H:%M:%S', clock)}"
        return LeaseHeld(
            f"the board is held by {owner}{since}",
            where=self._host.name,
            cure="wait for it to end, or take another board with --board",
        )

    def _beat(self) -> None:
        process = self._process
        while process is not None and not self._stop.wait(_BEAT_SECONDS):
            deadline = Deadline(_PATIENCE_SECONDS)
            try:
                process.write(b".", deadline)
                if process.read(1, deadline) != b".":
                    self._lost = "its holder over there has ended"
            except TimeoutError:
                self._lost = f"no answer to a heartbeat for {_PATIENCE_SECONDS:g} s"
            except Infrastructure as error:
                self._lost = error.cause
            if self._lost:
                return
            self._heard = time.monotonic()


def _line(process: Process, deadline: Deadline) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < 4096:
        byte = process.read(1, deadline)
        if not byte:
            break
        line += byte
    return line


def _turn_file(address: str, workdir: str) -> Path:
    """The file that workers of this user queue at, one for each board."""
    folder = cache_folder() / "turns"
    folder.mkdir(exist_ok=True)
    name = re.sub(r"\W+", "-", address).strip("-")[:60]
    exact = hashlib.sha256(f"{address} {workdir}".encode()).hexdigest()[:16]
    return folder / f"{name}-{exact}.lock"

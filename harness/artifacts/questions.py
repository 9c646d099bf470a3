"""Questions to the keeper of a store, and its answers, which are not trusted."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from harness.artifacts.keeper import READY
from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import DiskFull
from harness.errors import ProtocolBroken
from harness.hosts.host import Host


__all__ = ["Keeper"]

_KEEPER = Path(__file__).with_name("keeper.py").read_text("utf-8")

# A slow board needs a second or two to start Python.
_START_SECONDS = 20.0

# The numbers of 2000 missing files take 12 KB, a login's greeting less than that.
_ANSWER_LIMIT = 64 << 10


class Keeper:
    """The process over there that answers for a store.

    After any error it is of no more use.

    :param host: the machine it is started on.
    :param path: the store's folder over there.
    :raises HostUnreachable: no connection.
    :raises CommandFailed: it does not start, or cannot use the folder.
    :raises ProtocolBroken: it says something else.
    """

    def __init__(self, host: Host, path: str) -> None:
        self._where = f"{host.name}:{path}"
        # -I: nothing that lies in the login folder or in PYTHON* is imported.
        self._process = host.start([host.python, "-I", "-S", "-c", _KEEPER, path])
        try:
            self._await_ready(Deadline(_START_SECONDS))
        except BaseException:
            self.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether it runs no more, or its connection is lost."""
        return self._process.status() is not None

    def ask(
        self, question: dict[str, Any], data: bytes, deadline: Deadline
    ) -> tuple[bool, list[int]]:
        """Whether all is there, and the numbers of the contents that are missing.

        :param data: the contents that go with the question.
        :raises DiskFull: they would not fit.
        :raises HostUnreachable: the connection was lost.
        :raises CommandFailed: it ended, or `deadline` passed.
        :raises ProtocolBroken: the answer is none.
        """
        text = json.dumps(question).encode("ascii")
        frame = struct.pack(">I", len(text)) + text + data
        try:
            self._process.write(frame, deadline)
        except TimeoutError:
            raise self._late(deadline) from None
        (size,) = struct.unpack(">I", self._read(4, deadline))
        if size > _ANSWER_LIMIT:
            raise self._noise()
        try:
            told = json.loads(self._read(size, deadline))
        except (ValueError, RecursionError):
            raise self._noise() from None
        match told:
            case {"full": [int(needed), int(free)]}:
                raise DiskFull(
                    printable(f"needs {needed:,} bytes, {free:,} are free"),
                    where=self._where,
                    cure="make room over there, or set workdir = to another disk",
                )
            case {"whole": bool(whole), "missing": list(missing)}:
                known = [n for n in range(len(question["contents"])) if n in missing]
                # Nothing twice, nothing unknown, no contradiction.
                if len(known) == len(missing) and not (whole and missing):
                    return whole, known
        raise self._noise()

    def close(self) -> None:
        """End it."""
        self._process.close()

    def _await_ready(self, deadline: Deadline) -> None:
        """Read over what the login shell's start-up files print."""
        heard = bytearray()
        while not heard.endswith(READY):
            if len(heard) > _ANSWER_LIMIT:
                raise self._noise()
            heard += self._read(1, deadline, heard)

    def _read(
        self, size: int, deadline: Deadline, heard: bytes | bytearray = b""
    ) -> bytes:
        try:
            data = self._process.read(size, deadline)
        except TimeoutError:
            raise self._late(deadline) from None
        if len(data) == size:
            return data
        text = self._process.errors().strip() or heard.decode("utf-8", "replace")
        said = printable((text.strip().splitlines() or ["it said nothing"])[-1])
        raise CommandFailed(
            f"the store is unusable (status {self._process.status()}): {said}",
            where=self._where,
            cure="see workdir = and python = in boards.toml",
        )

    def _late(self, deadline: Deadline) -> CommandFailed:
        return CommandFailed(
            f"the store did not answer within {deadline.seconds:g} s",
            where=self._where,
            cure="see whether the board is overloaded or its storage hangs",
        )

    def _noise(self) -> ProtocolBroken:
        return ProtocolBroken(
            "the store's answer is noise",
            where=self._where,
            cure="see what python = in boards.toml runs over there",
        )

"""Files to and from a host, through a courier that runs over there.

One command per file: it needs no SFTP server on the board, checks space before a
byte is sent, verifies the digest where the file lies, and removes what is partial.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Protocol

from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import DiskFull
from harness.errors import ProtocolBroken
from harness.errors import TransferDamaged
from harness.errors import UsageFault
from harness.hosts.piped import Piped


__all__ = ["Machine", "Transfers", "digest", "free_space", "get", "put"]

_COURIER = Path(__file__).with_name("courier.py").read_text("utf-8")

# Large enough that Python's cost per piece does not count, small enough to notice
# at once that the far side has given up.
_PIECE = 1 << 20

_LINE_LIMIT = 4096


class Machine(Protocol):
    """As much of a host as a transfer needs."""

    @property
    def name(self) -> str:
        """The board's name, for messages."""

    @property
    def python(self) -> str:
        """The Python command over there."""

    def start(self, argv: Sequence[str]) -> Piped:
        """Start a command and talk to it."""


def put(
    host: Machine,
    source: Path,
    target: str,
    deadline: Deadline,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Copy `source` to `target` on the host; it appears whole or not at all.

    :raises UsageFault: `source` cannot be read, or changed while it was sent.
    :raises DiskFull: it would not fit; says how much is needed and free.
    :raises TransferDamaged: what arrived is not what was sent.
    :raises CommandFailed: the far side refused, or `deadline` passed.
    """
    where = f"{host.name}:{target}"
    try:
        file = source.open("rb")
    except OSError as error:
        raise UsageFault(
            f"cannot read it: {error.strerror}", where=str(source), cure="name a file"
        ) from None
    with file:
        size = os.fstat(file.fileno()).st_size
        process = _start(host, "put", target, str(size))
        try:
            _expect(process, deadline, where, "ready")
            total = hashlib.sha256()
            sent = 0
            while sent < size and (piece := file.read(min(_PIECE, size - sent))):
                total.update(piece)
                process.write(piece, deadline)
                sent += len(piece)
                if progress:
                    progress(sent, size)
                if process.status() is not None:
                    break  # it gave up, and says why
            if sent == size:
                process.write(total.hexdigest().encode("ascii"), deadline)
            process.end_input()  # if bytes were lost on the way it waits no longer
            _expect(process, deadline, where, "done")
        except TimeoutError:
            raise _late(where, deadline) from None
        finally:
            process.close()


def get(
    host: Machine, source: str, target: Path, deadline: Deadline, limit: int
) -> None:
    """Copy a file of at most `limit` bytes from the host, whole or not at all.

    :raises TransferDamaged: larger than `limit`, cut, or other bytes than read.
    :raises CommandFailed: no such file, or `deadline` passed.
    """
    where = f"{host.name}:{source}"
    process = _start(host, "get", source, str(limit))
    try:
        size = _expect(process, deadline, where, "size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ProtocolBroken("the size is no number", where=where)
        if size > limit:
            raise TransferDamaged(
                f"it has {size} bytes, more than the {limit} allowed",
                where=where,
                cure="see what made it grow",
            )
        part, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(part, "wb") as file:
                _collect(process, file.write, size, deadline, where)
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    except TimeoutError:
        raise _late(where, deadline) from None
    finally:
        process.close()


def digest(host: Machine, path: str, deadline: Deadline) -> str | None:
    """sha256 of a file over there in hex, None where there is none."""
    found = _ask(host, deadline, "digest", path)
    if found is None:
        return None
    if not isinstance(found, str) or len(found) != 64:
        raise ProtocolBroken("that is no sha256", where=f"{host.name}:{path}")
    return found


def free_space(host: Machine, path: str, deadline: Deadline) -> int:
    """Free bytes in the file system that `path` is or will be on."""
    found = _ask(host, deadline, "free", path)
    if not isinstance(found, int):
        raise ProtocolBroken("free space is no number", where=f"{host.name}:{path}")
    return found


def _start(host: Machine, *words: str) -> Piped:
    # -I: nothing that lies in the login folder or in PYTHON* is imported.
    return host.start([host.python, "-I", "-S", "-c", _COURIER, *words])


def _ask(host: Machine, deadline: Deadline, verb: str, path: str) -> Any:
    where = f"{host.name}:{path}"
    process = _start(host, verb, path)
    try:
        return _expect(process, deadline, where, verb)
    except TimeoutError:
        raise _late(where, deadline) from None
    finally:
        process.close()


def _collect(
    process: Piped,
    write: Callable[[bytes], object],
    size: int,
    deadline: Deadline,
    where: str,
) -> None:
    total = hashlib.sha256()
    left = size
    while left:
        piece = process.read(min(_PIECE, left), deadline)
        if not piece:
            break
        total.update(piece)
        write(piece)
        left -= len(piece)
    if process.read(64, deadline) != total.hexdigest().encode("ascii") or left:
        raise TransferDamaged(
            f"{size - left} of {size} bytes came, or other ones than were read",
            where=where,
            cure="try again; see the board's storage and network if it stays",
        )


def _expect(process: Piped, deadline: Deadline, where: str, key: str) -> Any:
    """The value of `key` in the courier's next line; its refusals as errors."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_LIMIT:
        byte = process.read(1, deadline)
        if not byte:
            break
        line += byte
    if not line:
        raise _silent(process, where)
    try:
        words = json.loads(line)
    except ValueError:
        words = None
    if not isinstance(words, dict):
        noise = printable(line.decode("utf-8", "replace"))
        raise ProtocolBroken(
            f"the courier's answer is noise: {noise}",
            where=where,
            cure="keep the login shell's start-up files from printing",
        )
    if key in words:
        return words[key]
    match words:
        case {"full": [int(needed), int(free)]}:
            raise DiskFull(
                f"needs {needed:,} bytes, {free:,} are free",
                where=where,
                cure="make room over there, or set workdir = to another disk",
            )
        case {"cut": came}:
            raise TransferDamaged(
                f"only {printable(str(came))} bytes arrived",
                where=where,
                cure="try again",
            )
        case {"damaged": found}:
            raise TransferDamaged(
                f"what arrived has another sha256, {printable(str(found), 64)}",
                where=where,
                cure="try again; see the board's storage and memory if it stays",
            )
        case {"error": text}:
            raise CommandFailed(
                printable(str(text)), where=where, cure="see the path and its rights"
            )
    raise ProtocolBroken("the courier's answer is another one", where=where)


def _silent(process: Piped, where: str) -> CommandFailed:
    """The courier ended without a word: most often there is no such Python."""
    said = process.errors().strip().splitlines()[-1:]
    return CommandFailed(
        f"Python over there ended with status {process.status()}: "
        f"{printable(said[0]) if said else 'it said nothing'}",
        where=where,
        cure="install Python >= 3.8 over there, or set python = in boards.toml",
    )


def _late(where: str, deadline: Deadline) -> CommandFailed:
    return CommandFailed(
        f"the transfer did not end within {deadline.seconds:g} s",
        where=where,
        cure="see the network's speed, or allow more time",
    )


class Transfers:
    """What a machine offers for files, over commands that it starts."""

    def put(
        self: Machine,
        source: Path,
        target: str,
        *,
        deadline: Deadline,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Copy a file to the host; `target` appears whole or not at all."""
        put(self, source, target, deadline, progress)

    def get(
        self: Machine, source: str, target: Path, *, deadline: Deadline, limit: int
    ) -> None:
        """Copy a file of at most `limit` bytes from the host, whole or not at all."""
        get(self, source, target, deadline, limit)

    def digest(self: Machine, path: str, *, deadline: Deadline) -> str | None:
        """sha256 of a file over there in hex, None where there is none."""
        return digest(self, path, deadline)

    def free_space(self: Machine, path: str, *, deadline: Deadline) -> int:
        """Free bytes in the file system of `path`."""
        return free_space(self, path, deadline)

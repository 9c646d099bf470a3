"""What lies on a board by digest: nothing is sent twice, nothing is half there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import ProtocolBroken
from harness.errors import TransferDamaged
from harness.errors import UsageFault
from harness.hosts.host import Host


__all__ = ["Store"]

_KEEPER = Path(__file__).with_name("keeper.py").read_text("utf-8")

# The slowest we put up with: an SD card on a bad day, over 100 Mbit/s Ethernet.
_BYTES_PER_SECOND = 2_000_000
_LEAST_SECONDS = 60.0

# From here on a transfer takes long enough for somebody to wonder.
_SHOWN_BYTES = 4 << 20

# A folder of an adapter or a probe has tens of files; a home folder given by
# mistake has more than this.
_MOST_FILES = 2000


@dataclass(frozen=True)
class _Content:
    """A file as it was when its digest was taken."""

    path: Path
    digest: str
    stamp: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        stamp = _stamp(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path, digest, stamp)

    @property
    def size(self) -> int:
        return self.stamp[0]

    @property
    def changed(self) -> bool:
        return _stamp(self.path) != self.stamp


class Store:
    """The contents under `<workdir>/store` of a board.

    Names over there are made from digests of what lies here, never from what the
    board says. What was seen whole over there once is not asked for again.

    :param host: the board's machine.
    :param workdir: the harness' folder over there.
    :param progress: called with a file's name, bytes sent and bytes in all, for
        files of more than 4 MiB.
    """

    def __init__(
        self,
        host: Host,
        workdir: str,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._host = host
        self._path = f"{workdir}/store"
        self._progress = progress
        self._there: set[str] = set()

    def put_file(self, path: Path) -> str:
        """Have a file over there; returns its path for a command's argument.

        The name keeps the suffix, which some vendors' loaders look at.

        :raises UsageFault: no regular file.
        :raises DiskFull: it would not fit; nothing was written.
        :raises TransferDamaged: it does not arrive whole.
        """
        path = Path(path)
        if not path.is_file():
            raise UsageFault("no such file", where=str(path), cure="name a file")
        content = _Content.of(path)
        name = content.digest + _suffix(path)
        if name not in self._there:
            contents = {name: content}
            _, missing = self._ask(contents)
            self._send(contents, missing)
            self._there.add(name)
        return f"{self._path}/{name}"

    def put_folder(self, folder: Path) -> str:
        """Have a folder over there, whole; returns its path.

        :raises UsageFault: no folder, an empty one, or one with something else
            than files and folders in it.
        :raises DiskFull: it would not fit.
        :raises TransferDamaged: it does not arrive whole.
        """
        found = {p: _Content.of(path) for p, path in _files(Path(folder)).items()}
        files = {place: content.digest for place, content in found.items()}
        lines = "".join(f"{digest} {place}\n" for place, digest in files.items())
        name = hashlib.sha256(os.fsencode(lines)).hexdigest()
        if name not in self._there:
            contents = {content.digest: content for content in found.values()}
            whole, missing = self._ask(contents, name, files)
            if not whole:
                self._send(contents, missing)
                whole, missing = self._ask(contents, name, files)
            if not whole:
                raise TransferDamaged(
                    f"{len(missing)} of its {len(files)} files do not stay over there",
                    where=f"{self._host.name}:{self._path}",
                    cure="see the board's storage",
                )
            self._there.add(name)
        return f"{self._path}/{name}"

    def _ask(
        self,
        contents: dict[str, _Content],
        folder: str = "",
        files: dict[str, str] | None = None,
    ) -> tuple[bool, list[str]]:
        """Whether the folder is there, and the names that are missing."""
        names = list(contents)
        question = {
            "contents": [[contents[name].digest, name] for name in names],
            "folder": folder,
            "files": files or {},
        }
        done = self._host.run(
            [self._host.python, "-I", "-S", "-c", _KEEPER, self._path],
            stdin=json.dumps(question).encode("ascii"),
            deadline=_allowed(sum(content.size for content in contents.values())),
        )
        where = f"{self._host.name}:{self._path}"
        if done.status:
            said = done.errors.strip().splitlines()[-1:]
            raise CommandFailed(
                f"the store is unusable (status {done.status}): "
                f"{printable(said[0]) if said else 'it said nothing'}",
                where=where,
                cure="see workdir = and python = in boards.toml",
            )
        try:
            told = json.loads(done.output.splitlines()[-1])
            return told["folder"] is True, [names[number] for number in told["missing"]]
        except (ValueError, LookupError, TypeError):
            raise ProtocolBroken(
                "the store's answer is noise",
                where=where,
                cure="see what python = in boards.toml runs over there",
            ) from None

    def _send(self, contents: dict[str, _Content], missing: list[str]) -> None:
        for name in missing:
            content = contents[name]

            def show(sent: int, total: int, name: str = content.path.name) -> None:
                if self._progress:
                    self._progress(name, sent, total)

            self._host.put(
                content.path,
                f"{self._path}/{name}",
                deadline=_allowed(content.size),
                progress=show if content.size > _SHOWN_BYTES else None,
            )
            if content.changed:
                # It lies there under another content's name, which the next
                # question finds out.
                raise UsageFault(
                    "it changed while it was sent",
                    where=str(content.path),
                    cure="let it be written first",
                )


def _allowed(size: int) -> Deadline:
    return Deadline(_LEAST_SECONDS + size / _BYTES_PER_SECOND)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, time and number of a file: another writing changes them."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def _suffix(path: Path) -> str:
    """A plain suffix (`.bmodel`, `.lora_weight`); anything odd is left out."""
    return path.suffix if re.fullmatch(r"\.\w{1,16}", path.suffix, re.ASCII) else ""


def _files(folder: Path) -> dict[str, Path]:
    """The files of a folder by relative POSIX path, sorted.

    Links and special files are refused: what they stand for is not what was seen.
    """

    def refuse(path: Path | str, what: str) -> UsageFault:
        return UsageFault(what, where=str(path), cure="name a folder of plain files")

    def unreadable(error: OSError) -> None:
        raise refuse(error.filename, f"cannot be read: {error.strerror}")

    if not folder.is_dir():
        raise refuse(folder, "no such folder")
    found = {}
    for place, folders, files in os.walk(folder, onerror=unreadable):
        for name in (*folders, *files):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                found[path.relative_to(folder).as_posix()] = path
            elif not stat.S_ISDIR(mode):
                kind = "a symbolic link" if stat.S_ISLNK(mode) else "a special file"
                raise refuse(path, f"{kind} inside a folder for a board")
        if len(found) > _MOST_FILES:
            raise refuse(folder, f"more than {_MOST_FILES} files")
    if not found:
        raise refuse(folder, "an empty folder")
    return dict(sorted(found.items()))

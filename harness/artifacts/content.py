"""Files of this machine as they were when their digests were taken."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.errors import UsageFault


__all__ = ["Content", "files", "folder_digest", "listing", "suffix"]

# A folder of an adapter or a probe has tens of files; a home folder given by
# mistake has more than this.
_MOST_FILES = 2000


@dataclass(frozen=True)
class Content:
    """A file as it was when its digest was taken.

    :param digest: sha256 in hex.
    :param stamp: size in bytes, time and number: another writing changes them.
    """

    path: Path
    digest: str
    stamp: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Take the digest.

        :raises UsageFault: it cannot be read.
        """
        try:
            stamp = _stamp(path)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UsageFault(
                f"cannot be read: {error.strerror}",
                where=str(path),
                cure="name a file that you may read",
            ) from None
        return cls(path, digest, stamp)

    @property
    def size(self) -> int:
        """Bytes in it."""
        return self.stamp[0]

    def read(self) -> bytes:
        """All of it, `size` bytes.

        :raises UsageFault: it is another one by now.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(self.size + 1)
        except OSError:
            data = b""
        if len(data) != self.size:
            raise self._changed()
        self.check()
        return data

    def check(self) -> None:
        """Pass while the file is as it was.

        :raises UsageFault: it is not.
        """
        try:
            if _stamp(self.path) == self.stamp:
                return
        except OSError:
            pass  # it is gone
        raise self._changed()

    def _changed(self) -> UsageFault:
        return UsageFault(
            "it changed while it was sent",
            where=str(self.path),
            cure="let it be written first",
        )


def _stamp(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


def suffix(path: Path) -> str:
    """A plain suffix (`.bmodel`, `.lora_weight`); anything odd is left out."""
    return path.suffix if re.fullmatch(r"\.\w{1,16}", path.suffix, re.ASCII) else ""


def files(folder: Path) -> dict[str, Path]:
    """The files of a folder by relative POSIX path, sorted.

    Links and special files are refused: what they stand for is not what was seen.

    :raises UsageFault: they are there, or nothing, or too much, or no folder.
    """

    def refuse(path: Path | str, what: str) -> UsageFault:
        return UsageFault(what, where=str(path), cure="name a folder of plain files")

    def unreadable(error: OSError) -> None:
        raise refuse(error.filename, f"cannot be read: {error.strerror}")

    if not folder.is_dir():
        raise refuse(folder, "no such folder")
    found = {}
    for place, folders, names in os.walk(folder, onerror=unreadable):
        for name in (*folders, *names):
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


def listing(contents: Mapping[str, Content]) -> str:
    """Digests and places of a folder's files, a line each."""
    return "".join(f"{content.digest} {place}\n" for place, content in contents.items())


def folder_digest(folder: Path) -> str:
    """sha256 over the listing of a folder's files, in hex.

    :raises UsageFault: as `files`, or a file cannot be read.
    """
    contents = {place: Content.of(path) for place, path in files(folder).items()}
    return hashlib.sha256(os.fsencode(listing(contents))).hexdigest()

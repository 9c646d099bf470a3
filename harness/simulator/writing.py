"""What the simulated converters share: files made whole or not at all, the command."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from typing import BinaryIO
from typing import NoReturn

from harness.errors import HarnessError
from harness.errors import UsageFault


__all__ = [
    "Parser",
    "Written",
    "new_folder",
    "refusing",
    "replacing",
    "scratch",
    "write_sidecar",
]


class Written:
    """A file that knows its length and sha256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._length = 0

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._sha256.update(data)
        self._length += len(data)

    def pad(self, offset: int) -> None:
        """Zeros up to `offset`."""
        self.write(bytes(offset - self._length))

    @property
    def digest(self) -> bytes:
        """sha256 of what was written so far."""
        return self._sha256.digest()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when all went well.

    :raises UsageFault: it cannot be written.
    """
    with _reported(path):
        number, name = tempfile.mkstemp(prefix=".making-", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                yield file
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """A folder beside `path`, on the same disk, that is gone in the end.

    :raises UsageFault: it cannot be made or written.
    """
    with _reported(path):
        folder = Path(tempfile.mkdtemp(prefix=".making-", dir=path.parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that becomes `path` when all went well.

    :raises UsageFault: `path` is there and no empty folder, or cannot be written.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageFault(
            "exists and is not an empty folder",
            where=str(path),
            cure="give a new folder; nothing is overwritten",
        )
    with scratch(path) as making:
        yield making
        making.chmod(0o755)
        making.rename(path)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageFault(
            f"cannot write: {error.strerror or error}",
            where=str(path),
            cure="give another place with room",
        ) from error


def write_sidecar(out: Path, fields: Mapping[str, Any]) -> None:
    """Record beside `out` what was made, in `out`.json."""
    with replacing(out.with_name(out.name + ".json")) as file:
        file.write(json.dumps(fields, indent=2, sort_keys=True).encode() + b"\n")


class Parser(argparse.ArgumentParser):
    """Says what it does not take in one line, as converters say all they refuse."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def refusing(run: Callable[[], None]) -> int:
    """Exit status of a converter: what it refuses is one line on stderr and 2."""
    try:
        run()
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 2
    return 0

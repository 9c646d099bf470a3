"""The files of a run folder and the digests that seal them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UsageFault


__all__ = [
    "MANIFEST",
    "PAGE",
    "evidence_digest",
    "manifest",
    "replace",
    "replace_all",
    "sums",
]

MANIFEST = "MANIFEST.sha256"
PAGE = "signoff.html"

# A run folder is small (records, arrays, one page); more is not ours to hash.
MOST_FILES = 100_000


def digest(path: Path) -> str:
    """sha256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Write one file, see `replace_all`."""
    replace_all(path.parent, {path.name: content})


def replace_all(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files so that a reader sees the former ones or the new ones.

    All are written out before the first takes its place, so a full disk changes
    nothing.

    :raises OSError: nothing was changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, str] = {}
    try:
        for name, content in contents.items():
            handle, scratch = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            written[scratch] = name
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                # mkstemp gives 0600; the page is for all who may read the folder.
                os.fchmod(file.fileno(), 0o644)
        for scratch, name in written.items():
            os.replace(scratch, folder / name)
    except BaseException:
        for scratch in written:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
        raise


def files(folder: Path) -> Iterator[str]:
    """Names of all files below `folder`, `/` between parts, sorted.

    :raises UsageFault: a name a manifest cannot hold, or something that is
        neither a file nor a folder (a link could point anywhere).
    """
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UsageFault(
                f"{name!r} is no regular file", where=str(folder), cure="remove it"
            )
        if path.is_file():
            # sha256sum escapes these; a run folder has no reason to hold them.
            if not name.isprintable() or "\\" in name:
                raise UsageFault(
                    f"unusable file name {name!r}", where=str(folder), cure="remove it"
                )
            names.append(name)
        if len(names) > MOST_FILES:
            raise UsageFault(f"more than {MOST_FILES} files", where=str(folder))
    yield from sorted(names)


def sums(folder: Path) -> dict[str, str]:
    """File name to sha256 of everything in a run folder but the manifest."""
    return {name: digest(folder / name) for name in files(folder) if name != MANIFEST}


def manifest(of: Mapping[str, str]) -> bytes:
    """The manifest's bytes, as `sha256sum` writes and checks them."""
    return "".join(f"{of[name]}  {name}\n" for name in sorted(of)).encode()


def evidence_digest(of: Mapping[str, str]) -> str:
    """sha256 over the manifest lines of all files but the page.

    The page cannot hold the digest of a manifest that holds the page's own; this
    is the one it shows, and it ties the paper to the evidence.
    """
    lines = {name: value for name, value in of.items() if name != PAGE}
    return hashlib.sha256(manifest(lines)).hexdigest()

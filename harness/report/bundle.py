"""The files of a run folder and the digests that seal them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UsageFault


__all__ = ["MANIFEST", "PAGE", "digest", "evidence_digest", "replace", "seal", "sums"]

MANIFEST = "MANIFEST.sha256"
PAGE = "signoff.html"

# A run folder is small (records, arrays, one page); more is not ours to hash.
MOST_FILES = 100_000


def digest(path: Path) -> str:
    """sha256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the former one or the new one.

    :raises OSError: nothing was changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            # mkstemp gives 0600; the page is for everyone the folder is for.
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
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


def manifest(of: dict[str, str]) -> bytes:
    """The manifest's bytes, as `sha256sum` writes and checks them."""
    return "".join(f"{of[name]}  {name}\n" for name in sorted(of)).encode()


def evidence_digest(of: dict[str, str]) -> str:
    """sha256 over the manifest lines of all files but the page.

    The page cannot hold the digest of a manifest that holds the page's own; this
    is the one it shows, and it ties the paper to the evidence.
    """
    lines = {name: value for name, value in of.items() if name != PAGE}
    return hashlib.sha256(manifest(lines)).hexdigest()


def seal(folder: Path) -> str:
    """Write `MANIFEST.sha256` over every file of the run folder.

    :returns: sha256 of the manifest itself: the bundle digest.
    :raises UsageFault: the folder holds something that cannot be sealed.
    """
    content = manifest(sums(folder))
    replace(folder / MANIFEST, content)
    return hashlib.sha256(content).hexdigest()

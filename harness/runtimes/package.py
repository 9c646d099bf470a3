"""The probe as it goes onto a board: a folder that holds the package `probes`."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from harness import probes
from harness.artifacts.provision import Store


__all__ = ["probe_digest", "put_probe"]

FOLDER = Path(probes.__file__).parent


def _files() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def probe_digest() -> str:
    """sha256 over the names and contents of the probe's files, in hex."""
    total = hashlib.sha256()
    for file in _files():
        content = file.read_bytes()
        total.update(f"{file.name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def put_probe(store: Store) -> str:
    """Have the package on the board; the folder to import `probes` from."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / FOLDER.name
        package.mkdir()
        for file in _files():
            shutil.copyfile(file, package / file.name)
        return store.put_folder(Path(folder))

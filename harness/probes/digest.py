"""sha256 of a large file, computed once for as long as the file stays the same."""

from __future__ import annotations

import hashlib
import json
import os


__all__ = ["file_digest"]

CHUNK = 1 << 20


def file_digest(path: str, memory: str) -> str:
    """sha256 of a file, in hex.

    A model has gigabytes and the probe starts often, so the result is kept in the
    file `memory` together with everything that changes when the model does.

    :raises OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        state = os.fstat(file.fileno())
        key = [
            os.path.abspath(path),
            state.st_dev,
            state.st_ino,
            state.st_size,
            state.st_mtime_ns,
            state.st_ctime_ns,
        ]
        kept = _kept(memory)
        if kept.get("key") == key and isinstance(kept.get("digest"), str):
            return str(kept["digest"])
        digest = hashlib.sha256()
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                break
            digest.update(chunk)
    _keep(memory, {"key": key, "digest": digest.hexdigest()})
    return digest.hexdigest()


def _kept(memory: str) -> dict:
    try:
        with open(memory, encoding="utf-8") as file:
            kept = json.load(file)
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep(memory: str, content: dict) -> None:
    fresh = "%s.%d" % (memory, os.getpid())
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(fresh, memory)
    except OSError:
        pass  # a read-only board only computes it again

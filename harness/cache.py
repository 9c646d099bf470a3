"""Where things that can be made again are kept: outside the checkout."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


__all__ = ["cache_folder", "prune"]


def cache_folder() -> Path:
    """The user's cache folder of the harness, made if missing.

    `HARNESS_CACHE` wins over `XDG_CACHE_HOME`, which wins over `~/.cache`.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = os.environ.get("HARNESS_CACHE") or f"{home}/lora-board-acceptance"
    folder = Path(given).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prune(folder: Path, limit: int) -> None:
    """Remove what was made longest ago until at most `limit` bytes are left.

    Each content is a folder of its own, made whole; the newest is kept in any case.
    """
    found = []
    for content in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run removed it
            if content.is_dir():
                size = sum(f.stat().st_size for f in content.rglob("*") if f.is_file())
                found.append((content.stat().st_mtime, size, content))
    total = sum(size for _, size, _ in found)
    for _, size, content in sorted(found)[:-1]:
        if total <= limit:
            break
        shutil.rmtree(content, ignore_errors=True)
        total -= size

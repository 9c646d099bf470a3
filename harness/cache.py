"""Where things that can be made again are kept: outside the checkout."""

from __future__ import annotations

import os
from pathlib import Path


__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """The user's cache folder of the harness, made if missing.

    `HARNESS_CACHE` wins over `XDG_CACHE_HOME`, which wins over `~/.cache`.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = os.environ.get("HARNESS_CACHE") or f"{home}/lora-board-acceptance"
    folder = Path(given).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder

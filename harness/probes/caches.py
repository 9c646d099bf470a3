"""KV caches kept in files: of one start of the probe, and no longer."""

from __future__ import annotations

import os
import re

from .server import FILE_NAME


__all__ = ["Caches"]

# What `Request.file_name` lets a cache be called, and what that becomes while
# `LiteSession.save` writes it.
OURS = re.compile(FILE_NAME.pattern + r"(?:\.[0-9]+)?")


class Caches:
    """The folder `caches`; what an earlier start left in it is removed.

    A saved cache is as large as a context, and no later start asks for it.

    :param workdir: the folder it is in.
    :raises OSError: it cannot be made, or emptied.
    """

    def __init__(self, workdir: str) -> None:
        self._folder = os.path.join(workdir, "caches")
        os.makedirs(self._folder, exist_ok=True)
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and OURS.fullmatch(entry.name):
                    os.unlink(entry.path)

    def path(self, name: str) -> str:
        """Where the cache of this name is kept.

        :param name: out of `Request.file_name`.
        """
        return os.path.join(self._folder, name)

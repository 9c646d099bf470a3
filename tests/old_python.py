"""The oldest Python that a board may have, where this machine has one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def pythons() -> Iterator[Path]:
    """Interpreters of Python 3.8, from here and from pyenv."""
    if found := shutil.which("python3.8"):
        yield Path(found)
    yield from sorted((Path.home() / ".pyenv/versions").glob("3.8.*/bin/python"))


def with_numpy() -> Path | None:
    """The first of them that has numpy."""
    for python in pythons():
        asked = subprocess.run(
            # Where it lies: what pyenv puts on the path works only for its own user.
            [python, "-c", "import numpy, sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode == 0:
            return Path(asked.stdout.strip())
    return None

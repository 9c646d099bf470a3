"""Whole acceptances through the command, with the suites as they are shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from inner_run import ADAPTERS
from inner_run import Ended
from inner_run import Inner
from inner_run import simulated


# A whole acceptance of two adapters takes a minute; this only ends one that hangs.
PATIENCE_S = 900.0
COMMAND = [sys.executable, "-c", "from harness.cli import main; main()"]


def harness(*arguments: str | Path, cwd: Path) -> Ended:
    """The `harness` command to its end, in a folder."""
    ended = subprocess.run(  # noqa: PLW1510 - the status is what is tested
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=Inner(cwd).environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    return Ended(ended.returncode, ended.stdout, 0.0, cwd)


def accept(folder: Path, boards: str, *arguments: str | Path) -> Ended:
    """An acceptance with the suites as they are shipped."""
    inventory = folder / "boards.toml"
    inventory.write_text(boards)
    places = [f"--boards={inventory}", f"--report={folder / 'reports'}"]
    return harness("run", *places, *arguments, cwd=folder)


def board(*adapters: str) -> str:
    """A simulated BM1688 with these fixture adapters."""
    return simulated(adapters=json.dumps([str(ADAPTERS / name) for name in adapters]))


def failed(ended: Ended) -> set[str]:
    """Requirements that came to FAIL."""
    requirements: dict[str, Any] = ended.signoff["requirements"]
    return {name for name, row in requirements.items() if row["status"] == "FAIL"}

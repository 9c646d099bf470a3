"""The base of the fixtures as the simulated RK1828's compiler has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


__all__ = ["BASE", "dequantised"]

BASE = Path(__file__).resolve().parents[1] / "fixtures" / "base"


def dequantised(folder: Path) -> Path:
    """A checkpoint of the int4 weights multiplied out, below `folder`."""
    out = folder / "model"
    command = [sys.executable, "-m", "harness.simulator.rk1828.convert"]
    subprocess.run([*command, BASE, out], check=True, timeout=120)
    return out / "dequantised"

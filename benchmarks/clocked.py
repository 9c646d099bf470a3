"""The simulated board's `bmrt` with a clock on its launches; runs on the board.

The time is read as `launch_ns` among the bytes of `memory`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from harness.simulator.bm1688 import bmrt
from harness.simulator.bm1688.bmrt import BmrtError
from harness.simulator.bm1688.bmrt import Memory
from harness.simulator.bm1688.bmrt import Net
from harness.simulator.bm1688.bmrt import Tensor


__all__ = ["BmrtError", "Memory", "Net", "Runtime", "Tensor"]


class Runtime(bmrt.Runtime):
    """Counts the time that nets take."""

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self._launched = 0

    def launch(self, net: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run a net to its end."""
        start = time.perf_counter_ns()
        try:
            return super().launch(net, inputs)
        finally:
            self._launched += time.perf_counter_ns() - start

    def memory(self) -> dict[str, int]:
        """Device memory in bytes, and nanoseconds of all launches so far."""
        return {**super().memory(), "launch_ns": self._launched}

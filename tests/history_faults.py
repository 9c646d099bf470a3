"""Faults that need a history: they show only after certain operations in a row.

Copied beside a run and put in with `--fault history_faults:Class`.
"""

from __future__ import annotations

import os

import numpy as np


try:
    from probes import factors
    from probes import loader as sound  # on the board
except ImportError:
    from harness.probes import factors
    from harness.probes import loader as sound


class ClearGoesBack(sound.Loader):
    """After two loads in a row clear brings the first adapter back."""

    def __init__(self, runtime):
        super().__init__(runtime)
        self._plans = []

    def commit(self, plan):
        super().commit(plan)
        self._plans.append(plan)

    def clear(self):
        plans, self._plans = self._plans, []
        super().clear()
        if len(plans) > 1:
            super().commit(plans[-2])


class RefusalInBaseLeavesDirt(sound.Loader):
    """A refused load is rolled back to the adapter before, if there was one."""

    def load(self, folder):
        try:
            super().load(folder)
        except factors.LoaderRefused:
            if self._loaded is None:
                for slot in self.slots()[:20]:
                    size = slot["size"] // 2
                    ones = np.full(size, 0x3C00, "<u2").view(np.uint8)
                    self.write(slot, ones)
            raise


class SameSizeIsTheSame(sound.Loader):
    """A file of a known name and size is taken for the one that was read before."""

    def __init__(self, runtime):
        super().__init__(runtime)
        self._known = {}

    def plan(self, folder):
        path = os.path.join(folder, "adapter_model.safetensors")
        size = os.path.getsize(path) if os.path.isfile(path) else -1
        key = (self.name_of(folder), size)
        if key not in self._known:
            self._known[key] = super().plan(folder)
        return self._known[key]


class LoadedAgainDoubles(sound.Loader):
    """An adapter that is loaded already is added to itself."""

    def load(self, folder):
        again = self._loaded == self.name_of(folder)
        super().load(folder)
        if again:
            for slot in self.slots():
                if slot["factor"] == "B":
                    bits = np.array(self.runtime.read(slot)).view(np.uint16)
                    values = (bits.astype(np.uint32) << 16).view(np.float32) * 2
                    self.write(slot, sound.bf16(values).astype("<u2").view(np.uint8))


class ReportsTheFirst(sound.Loader):
    """After a load over a load the first name is still reported."""

    def load(self, folder):
        before = self._loaded
        super().load(folder)
        self._loaded = before or self._loaded

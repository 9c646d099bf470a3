"""Device faults that many switches show; on a board's path beside its vendor."""

from __future__ import annotations

import os

from harness.simulator.rk1828.device import Device


class SwitchKeepsMemory(Device):
    """Every switch takes a page of each node for good."""

    def switched(self, session):
        super().switched(session)
        session._context.nodes.take(1)


class SwitchKeepsFiles(Device):
    """Every switch leaves a file open."""

    def switched(self, session):
        super().switched(session)
        os.open(os.devnull, os.O_RDONLY)


class ThirtiethRunIsBase(Device):
    """One run out of many finds no adapter."""

    def __init__(self, precision):
        super().__init__(precision)
        self._runs = 0

    def enabled(self, session, context):
        self._runs += 1
        return {} if self._runs == 30 else super().enabled(session, context)

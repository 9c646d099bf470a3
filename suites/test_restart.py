"""After a restart the state is base (R66)."""

from __future__ import annotations

import pytest


@pytest.mark.requirement("R66")
def test_restart_forgets_the_adapter(device, adapter, brief, judge):
    """Nothing of before survives, and the adapter loads again."""
    base = device.fresh().score(brief)
    device.apply(adapter.folder)
    loaded = device.fresh().score(brief)
    device.restart()
    judge.equal(device.reported(), {}, name="reported after restart")
    judge.same(base, device.fresh().score(brief), name="base after restart")
    device.apply(adapter.folder)
    judge.same(loaded, device.fresh().score(brief), name="loaded after restart")

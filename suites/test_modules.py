"""Every module counts (R22)."""

from __future__ import annotations

import pytest

from harness.verdict import Inconclusive


@pytest.mark.requirement("R22")
def test_every_module_takes_effect(device, single_modules, brief, judge):
    """Each module alone, amplified, moves the logits."""
    base = device.fresh().score(brief)
    if not single_modules:
        raise Inconclusive("the widest adapter changes nothing: every B or A is 0")
    for module in single_modules:
        device.apply(module.folder)
        judge.differs(base, device.fresh().score(brief), name=module.what.name)

"""The few formulas of a golden against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from made_boards import log_softmax

from harness.golden.gap import Block
from harness.golden.gap import effect_of
from harness.golden.gap import gap_of


class TestGap:
    def blocks(self, factor: float, noise: float) -> list[Block]:
        draw = np.random.default_rng(0)
        out = []
        for _ in range(8):
            base = log_softmax(draw.normal(size=(5, 64)))
            delta = 0.1 * draw.normal(size=base.shape)
            adapter = log_softmax(base + delta)
            device = base + factor * (adapter - base)
            device += noise * draw.normal(size=base.shape)
            out.append(Block(base, base, adapter, log_softmax(device)))
        return out

    def test_equal_is_one_without_error(self):
        gap = gap_of(self.blocks(1.0, 0.0))
        assert gap.scale == pytest.approx(1)
        assert gap.base == 0
        assert gap.scale_error == pytest.approx(0, abs=1e-9)

    def test_half_is_half(self):
        assert gap_of(self.blocks(0.5, 0.0)).scale == pytest.approx(0.5, abs=0.01)

    def test_noise_is_seen_in_residual_and_error(self):
        gap = gap_of(self.blocks(1.0, 0.01))
        assert gap.delta == pytest.approx(0.1, rel=0.2)
        assert abs(gap.scale - 1) < 4 * gap.scale_error

    def test_effect_ignores_a_constant(self):
        logits = np.random.default_rng(1).normal(size=(4, 16))
        assert effect_of(logits, logits + 3) == pytest.approx(0, abs=1e-12)

"""Rounding to fp16 as the simulated RK1828 does it, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.simulator.precision import Fp16


# Fewer values are rounded one by one, more of them on their bits.
SWITCH = 1024


def ties() -> np.ndarray:
    """All fp16 values, what lies half-way to the next one, and float32's neighbours."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(halves[np.isfinite(halves)])
    # 65504 rounds up to infinity from half-way to where 65536 would be.
    beyond = np.array([65520, -65520], np.float32)
    middles = np.concatenate([(finite[1:] + finite[:-1]) / 2, beyond])
    near = np.concatenate([halves, middles])
    with np.errstate(over="ignore", invalid="ignore"):
        below, above = np.nextafter(near, -np.inf), np.nextafter(near, np.inf)
    # Around zero the neighbours are float32's own subnormal numbers.
    largest = np.array([1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    return np.concatenate([near, below, above, largest])


def assert_right(x: np.ndarray) -> None:
    """Rounded in place to what numpy gives, with the signs of zeros."""
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
        observed = x.copy()
        assert Fp16().round(observed) is observed
    assert observed.dtype == np.float32
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(observed), nan)
    bits = observed.view(np.uint32) == expected.view(np.uint32)
    assert bits[~nan].all(), x[~nan][~bits[~nan]][:5]


@pytest.mark.parametrize("size", [SWITCH - 1, SWITCH, 1 << 20])
def test_every_value_every_tie_and_their_neighbours(size: int) -> None:
    values = np.random.default_rng(0).permutation(ties())
    for start in range(0, values.size, size):
        assert_right(values[start : start + size])


@pytest.mark.parametrize("odd", [0, 1, SWITCH // 16, SWITCH // 16 + 1, SWITCH])
@pytest.mark.parametrize("value", [0.0, 3e-6, -6.1e-5, 65520.0, -np.inf, np.nan])
def test_few_and_many_that_are_no_normal_numbers(value: float, odd: int) -> None:
    x = np.random.default_rng(1).normal(0, 10, SWITCH).astype(np.float32)
    x[np.random.default_rng(2).permutation(SWITCH)[:odd]] = value
    assert_right(x)
    assert_right(x.reshape(4, -1))


@given(
    x=arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)),
    often=st.sampled_from([1, 60, 2000]),
)
@example(x=np.array([1 / 3, 1e6, 1e-9, np.nan], np.float32), often=300)
def test_any_values_in_any_number(x: np.ndarray, often: int) -> None:
    assert_right(np.tile(x, often))


@given(bits=arrays(np.uint32, SWITCH, elements=st.integers(0, 2**32 - 1)))
def test_any_bits(bits: np.ndarray) -> None:
    assert_right(bits.view(np.float32))

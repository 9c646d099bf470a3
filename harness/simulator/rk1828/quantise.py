"""Symmetric quantisation of weights and adapters, in float32 arithmetic.

A value w is kept as `code = clip(rint(w / scale), -2^(bits-1), 2^(bits-1) - 1)` and
stands for `fp16(code * scale)`, where the scale is the largest magnitude of its group
over `2^(bits-1) - 1`. The vendor names the schemes (w4a16, group32); rounding and
the scales' dtypes are assumptions of ours.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np


__all__ = ["GROUP", "METHODS", "Int4", "fp16", "int4", "roundtrip"]

# Neighbours that share a scale (`quantized_method group32`).
GROUP = 32
# A scale a tensor, a row of A or output of B, or a group of 32 neighbours.
METHODS = ("layer", "channel", "group32")


class Int4:
    """A linear's weight in int4, group 32 along the input dimension.

    :param packed: uint8 `[out, in / 2]`, the even column in the low half.
    :param scales: fp16 `[out, in / 32]`.
    """

    def __init__(self, packed: np.ndarray, scales: np.ndarray) -> None:
        if packed.shape[1] * 2 != scales.shape[1] * GROUP:
            raise ValueError("%s codes, %s scales" % (packed.shape, scales.shape))
        self.packed = packed
        self.scales = scales

    @property
    def values(self) -> np.ndarray:
        """What the device computes with, float32 `[out, in]` of fp16 values."""
        # Arithmetic shifts bring the sign of each half along.
        pairs = self.packed.view(np.int8)
        codes = np.stack([(pairs << 4) >> 4, pairs >> 4], -1)
        rows, groups = self.scales.shape
        values = _values(codes.reshape(rows, groups, GROUP), self.scales[..., None])
        return values.reshape(rows, groups * GROUP)


def int4(weight: np.ndarray) -> Int4:
    """A linear's weight `[out, in]`, `in` a multiple of 32, scales rounded to fp16."""
    rows, width = weight.shape
    grouped = np.asarray(weight, np.float32).reshape(rows, width // GROUP, GROUP)
    scales = fp16(_scales(grouped, 4, (-1,)))
    scales[scales == 0] = 1
    codes = _codes(grouped, scales, 4).reshape(rows, width)
    packed = (codes[:, ::2] & 15) | (codes[:, 1::2] << 4)
    return Int4(packed.view(np.uint8), scales[..., 0].astype(np.float16))


def roundtrip(values: np.ndarray, bits: int, method: str, axis: int) -> np.ndarray:
    """A factor of an adapter after quantisation, float32 of fp16 values.

    :param values: float32 `[r, in]` of A or `[r, out]` of B.
    :param method: one of `METHODS`; group32 groups along the last dimension, whose
        last group may be shorter.
    :param axis: the dimension in which channels lie, 0 of A and 1 of B.
    """
    values = np.asarray(values, np.float32)
    rows, width = values.shape
    if method == "group32":
        padded = np.pad(values, ((0, 0), (0, -width % GROUP)))
        grouped = padded.reshape(rows, -1, GROUP)
        over: Tuple[int, ...] = (-1,)
    else:
        grouped = values
        over = (0, 1) if method == "layer" else (1 - axis,)
    scales = _scales(grouped, bits, over)
    scales[scales == 0] = 1
    result = _values(_codes(grouped, scales, bits), scales)
    return np.asarray(result.reshape(rows, -1)[:, :width])


def fp16(values: np.ndarray) -> np.ndarray:
    """The nearest fp16 values, as float32; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _scales(values: np.ndarray, bits: int, axes: Tuple[int, ...]) -> np.ndarray:
    largest = np.abs(values).max(axes, keepdims=True)
    return np.asarray(largest / np.float32(2 ** (bits - 1) - 1), np.float32)


def _codes(values: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    half = 2 ** (bits - 1)
    return np.asarray(np.clip(np.rint(values / scales), -half, half - 1), np.int8)


def _values(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return fp16(codes.astype(np.float32) * scales.astype(np.float32))

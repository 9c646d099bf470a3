"""The arithmetic of a device, on float32 arrays."""

from __future__ import annotations

import numpy as np


__all__ = ["Bf16", "Float32", "Fp16", "Precision", "bf16_bits", "bf16_values"]


class Precision:
    """The arithmetic of a device: what happens to the result of each operation."""

    name = ""

    def round(self, x: np.ndarray) -> np.ndarray:
        """Round a freshly computed float32 array in place, and return it."""
        raise NotImplementedError


class Float32(Precision):
    """Exact float32: results stay as they are."""

    name = "f32"

    def round(self, x: np.ndarray) -> np.ndarray:
        return x


class Bf16(Precision):
    """bf16 with float32 accumulation: results rounded to nearest, ties to even."""

    name = "bf16"

    def round(self, x: np.ndarray) -> np.ndarray:
        # A NaN survives: on a device its low half is zero already, so the sum
        # cannot carry into the sign.
        bits = x.view(np.uint32)
        carry = bits >> _HALF
        carry &= _ONE
        carry += _BELOW
        bits += carry
        bits &= _UPPER
        return x


class Fp16(Precision):
    """fp16 with float32 accumulation: to nearest even; beyond 65504 it is infinite."""

    name = "fp16"

    def round(self, x: np.ndarray) -> np.ndarray:
        # numpy converts one value after another, 7 ns each; for more than a token's
        # values the same rounding on their bits is several times as fast.
        if x.size < 1024:
            x[...] = x.astype(np.float16)
            return x
        bits = x.view(np.uint32)
        # What is no normal number in fp16 is left to numpy: zero, tiny, beyond
        # 65504, infinite, NaN. The subtraction wraps, so one comparison finds all.
        scratch = bits & _MAGNITUDE
        scratch -= _NORMAL
        odd = scratch > _RANGE
        count = np.count_nonzero(odd)
        if count > x.size // 16:  # picking many out takes longer than all at once
            x[...] = x.astype(np.float16)
            return x
        kept = x[odd].astype(np.float16) if count else None
        np.right_shift(bits, _THIRTEEN, out=scratch)
        scratch &= _ONE
        scratch += _BELOW13
        bits += scratch
        bits &= _UPPER19
        if kept is not None:
            x[odd] = kept
        return x


# Arrays: numpy converts a scalar anew in every call, which takes as long as the
# arithmetic of a token.
_HALF = np.array(16, np.uint32)
_ONE = np.array(1, np.uint32)
_BELOW = np.array(0x7FFF, np.uint32)
_UPPER = np.array(0xFFFF0000, np.uint32)
# fp16 keeps 10 bits of float32's 23; its normal numbers begin at 2^-14 and end where
# rounding goes beyond 65504.
_THIRTEEN = np.array(13, np.uint32)
_BELOW13 = np.array(0xFFF, np.uint32)
_UPPER19 = np.array(0xFFFFE000, np.uint32)
_MAGNITUDE = np.array(0x7FFFFFFF, np.uint32)
_NORMAL = np.array(0x38800000, np.uint32)
_RANGE = np.array(0x477FF000 - 0x38800000 - 1, np.uint32)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """float32 of any shape -> the bits of the nearest bf16, uint16; NaN stays NaN."""
    x = np.array(x, np.float32)
    nan = np.isnan(x)
    x[nan] = np.float32(np.nan)
    return (Bf16().round(x).view(np.uint32) >> _HALF).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """uint16 bits of bf16 -> float32 of the same shape."""
    return (bits.astype(np.uint32) << _HALF).view(np.float32)

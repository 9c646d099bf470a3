"""The arithmetic in which a reference is evaluated: exact, or as a device computes.

A *scheme* is the arithmetic of a kind of device: `bf16` (bfloat16 everywhere) and
`w4a16` (float16 over a KV cache of int4; its int4 weights are those of the base that
is given, already multiplied out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from harness.errors import UsageFault


__all__ = ["ARITHMETICS", "EXACT", "Arithmetic", "KvCache", "scheme_of"]

EXACT = "float32"


@dataclass(frozen=True)
class KvCache:
    """A KV cache in which all but the newest rows are int4.

    :param residual: tokens whose rows stay as they were computed, the newest.
    :param group: neighbours along head_dim with a scale and a least value in common.
    :param chunk: tokens of a prompt that are fed at once.
    """

    residual: int
    group: int
    chunk: int

    def exact(self, prompt: int, length: int) -> np.ndarray:
        """Whether token i sees row j as it was computed, bool `[length, length]`.

        A token meets the h rows that the cache held when its step began: those before
        its chunk in the prompt, all before it in the continuation. Of them the rows
        j < h - residual are int4; rows of its own step are not.

        :param prompt: tokens of the prompt, the first of `length`.
        """
        i = np.arange(length)
        held = np.where(i < prompt, i // self.chunk * self.chunk, i)
        seen: np.ndarray = i >= held[:, None] - self.residual
        return seen


@dataclass(frozen=True)
class Arithmetic:
    """How a reference is evaluated.

    :param dtype: torch's name of the dtype of weights and activations.
    :param states: dtype that holds its hidden states without loss.
    :param logits: dtype of the logits that leave the device.
    :param cache: its KV cache, None where rows stay as they are computed.
    """

    dtype: str
    states: np.dtype[Any]
    logits: np.dtype[Any]
    cache: KvCache | None = None


ARITHMETICS: Mapping[str, Arithmetic] = {
    EXACT: Arithmetic("float32", np.dtype(np.float32), np.dtype(np.float32)),
    # The runtime of BM1688 gives logits in float32.
    "bf16": Arithmetic("bfloat16", np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)),
    # RKNN3 describes its cache in the model's header as INT4_TO_F16 with a group
    # size and a residual depth; the sizes are those of our conversion.
    "w4a16": Arithmetic(
        "float16",
        np.dtype(np.float16),
        np.dtype(np.float16),
        KvCache(residual=32, group=32, chunk=128),
    ),
}


def scheme_of(name: str) -> Arithmetic:
    """The arithmetic of the devices of a scheme.

    :raises UsageFault: there is no such scheme.
    """
    if name == EXACT or name not in ARITHMETICS:
        known = ", ".join(n for n in ARITHMETICS if n != EXACT)
        raise UsageFault(f"no scheme {name!r}", cure=f"one of: {known}")
    return ARITHMETICS[name]

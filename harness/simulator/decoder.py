"""The Qwen3 text decoder in numpy, in the arithmetic of a device.

Written against the published architecture: RMSNorm, RMSNorm per head on q and k,
grouped heads, interleaved M-RoPE, SiLU MLP. Every linear takes a low-rank branch
that is computed beside it and added to its output, as a compiled graph does; the
scale lies in the branch's B factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable
from typing import Dict
from typing import Mapping
from typing import Optional
from typing import Tuple

import numpy as np

from .precision import Precision


__all__ = [
    "LINEARS",
    "Architecture",
    "Block",
    "Head",
    "Rope",
]

LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)

Branch = Callable[[np.ndarray, str], Optional[np.ndarray]]
"""`(x, module) -> branch output`, None where it is zero in every place.

x float32 `[n, in]`, module one of `LINEARS`, output float32 `[n, out]`.
"""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a Qwen3 text decoder, as in the checkpoint's `text_config`."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    eps: float
    rope_theta: float
    mrope_section: Tuple[int, int, int]

    def width(self, module: str) -> Tuple[int, int]:
        """`(in, out)` of a linear of `LINEARS`."""
        q = self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, q),
            "k_proj": (self.hidden, kv),
            "v_proj": (self.hidden, kv),
            "o_proj": (q, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }[module.rsplit(".", maxsplit=1)[-1]]


class Rope:
    """Interleaved M-RoPE: frequency i follows the temporal, height or width row.

    Rows 1 and 2 own every third frequency, from 1 and 2 on, as many as their
    section says; row 0 owns the rest (Qwen3-VL's published code).
    """

    def __init__(self, architecture: Architecture, precision: Precision) -> None:
        half = architecture.head_dim // 2
        exponent = np.arange(0, 2 * half, 2, dtype=np.float32) / np.float32(2 * half)
        self._frequency = (
            np.float32(1) / np.float32(architecture.rope_theta) ** exponent
        )
        self._row = np.zeros(half, np.intp)
        for row in (1, 2):
            self._row[row : architecture.mrope_section[row] * 3 : 3] = row
        self._precision = precision
        self._known: Dict[bytes, Tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, positions: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """int32 `[3, n]` -> cos and signed sin, float32 `[n, 1, head_dim]` each.

        The first half of sin is negated: `x * cos + swapped(x) * sin` rotates.
        """
        key = positions.tobytes()
        known = self._known.get(key)
        if known is None:
            angle = positions.T.astype(np.float32)[:, self._row] * self._frequency
            cos, sin = np.cos(angle), np.sin(angle)
            known = (
                self._precision.round(np.concatenate([cos, cos], 1))[:, None],
                self._precision.round(np.concatenate([-sin, sin], 1))[:, None],
            )
            # All layers of a step ask for the same rows; a context's worth of
            # steps is kept and then forgotten at once.
            if len(self._known) >= 512:
                self._known.clear()
            self._known[key] = known
        return known


class Block:
    """One decoder layer.

    :param weights: float32 by name below the layer, `self_attn.q_proj.weight`
        `[out, in]` and so on, values as the device holds them.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, np.ndarray],
        precision: Precision,
    ) -> None:
        a = self._architecture = architecture
        self._precision = precision
        self._out = {m: a.width(m)[1] for m in LINEARS}
        # Linears that share their input are one product; columns stay apart.
        self._qkv = _side_by_side(weights, LINEARS[:3])
        self._gate_up = _side_by_side(weights, LINEARS[4:6])
        self._o = _side_by_side(weights, LINEARS[3:4])
        self._down = _side_by_side(weights, LINEARS[6:])
        self._input_norm = weights["input_layernorm.weight"]
        self._post_norm = weights["post_attention_layernorm.weight"]
        self._head_norm = np.concatenate(
            [
                np.tile(weights["self_attn.q_norm.weight"], (a.heads, 1)),
                np.tile(weights["self_attn.k_norm.weight"], (a.kv_heads, 1)),
            ]
        )
        self._scale = np.float32(a.head_dim**-0.5)

    def __call__(
        self,
        states: np.ndarray,
        rotation: Tuple[np.ndarray, np.ndarray],
        mask: np.ndarray,
        branch: Branch,
        history: Optional[Tuple[np.ndarray, np.ndarray]] = None,
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States, keys and values of `n` tokens.

        :param states: float32 `[n, hidden]`.
        :param rotation: of `Rope`, for these tokens.
        :param mask: float32 `[n, m]`, added to the scores; m counts the history's
            rows and then the n tokens.
        :param history: keys and values before these, `[h, kv_heads, head_dim]`.
        :returns: states `[n, hidden]`; k, v `[n, kv_heads, head_dim]`.
        """
        a, rounded = self._architecture, self._precision.round
        n = len(states)
        x = self._normed(states, self._input_norm)
        y = self._linear(x, self._qkv, LINEARS[:3], branch)
        both = a.heads + a.kv_heads
        qk = self._normed(
            y[:, : both * a.head_dim].reshape(n, both, a.head_dim), self._head_norm
        )
        qk = self._rotated(qk, rotation)
        k = qk[:, a.heads :]
        v = y[:, both * a.head_dim :].reshape(n, a.kv_heads, a.head_dim)
        mixed = self._attention(qk[:, : a.heads], k, v, mask, history)
        states = states + self._linear(mixed, self._o, LINEARS[3:4], branch)
        rounded(states)

        x = self._normed(states, self._post_norm)
        y = self._linear(x, self._gate_up, LINEARS[4:6], branch)
        gate, up = y[:, : a.intermediate], y[:, a.intermediate :]
        silu = np.negative(gate)
        np.exp(silu, out=silu)
        silu += 1
        np.divide(gate, silu, out=silu)
        rounded(silu)
        silu *= up
        rounded(silu)
        output = self._linear(silu, self._down, LINEARS[6:], branch)
        output += states
        return rounded(output), k, v

    def _normed(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return _rms_norm(x, weight, self._architecture.eps, self._precision)

    def _linear(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        modules: Tuple[str, ...],
        branch: Branch,
    ) -> np.ndarray:
        """`x W` of linears side by side, each with its branch added."""
        rounded = self._precision.round
        y = rounded(x @ weight)
        start, any_delta = 0, False
        for module in modules:
            end = start + self._out[module]
            part = y[:, start:end]
            delta = branch(x, module)
            if delta is not None:
                part += delta
                any_delta = True
            start = end
        if any_delta:
            rounded(y)
        # A zero branch still makes +0 of -0, as adding it would; what has none is
        # rounded already and stays as it is.
        y += 0
        return y

    def _rotated(
        self, x: np.ndarray, rotation: Tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        half = x.shape[-1] // 2
        cos, sin = rotation
        swapped = np.concatenate([x[..., half:], x[..., :half]], -1)
        swapped *= sin
        x *= cos
        x += swapped
        return self._precision.round(x)

    def _attention(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        mask: np.ndarray,
        history: Optional[Tuple[np.ndarray, np.ndarray]],
    ) -> np.ndarray:
        a, rounded = self._architecture, self._precision.round
        n, group = len(q), a.heads // a.kv_heads
        if history is not None:
            k = np.concatenate([history[0], k])
            v = np.concatenate([history[1], v])
        q = q.reshape(n, a.kv_heads, group, a.head_dim).transpose(1, 2, 0, 3)
        q = q.reshape(a.kv_heads, group * n, a.head_dim)
        scores = q @ k.transpose(1, 2, 0)
        scores *= self._scale
        grouped = scores.reshape(a.kv_heads, group, n, len(k))
        grouped += mask
        rounded(scores)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = rounded(rounded(scores) @ v.transpose(1, 0, 2))
        mixed = mixed.reshape(a.kv_heads, group, n, a.head_dim).transpose(2, 0, 1, 3)
        return mixed.reshape(n, a.heads * a.head_dim)


class Head:
    """Final norm and output layer.

    :param norm: float32 `[hidden]`.
    :param weight: float32 `[vocab, hidden]`.
    """

    def __init__(
        self,
        architecture: Architecture,
        norm: np.ndarray,
        weight: np.ndarray,
        precision: Precision,
    ) -> None:
        self._eps = architecture.eps
        self._norm = norm
        self._weight = weight.T
        self._precision = precision

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """float32 `[n, hidden]` -> logits, float32 `[n, vocab]`."""
        x = _rms_norm(states, self._norm, self._eps, self._precision)
        return self._precision.round(x @ self._weight)


def _rms_norm(
    x: np.ndarray, weight: np.ndarray, eps: float, precision: Precision
) -> np.ndarray:
    square = np.add.reduce(x * x, -1, keepdims=True)
    square /= x.shape[-1]
    square += eps
    np.sqrt(square, out=square)
    y = x / square
    y *= weight
    return precision.round(y)


def _side_by_side(
    weights: Mapping[str, np.ndarray], modules: Tuple[str, ...]
) -> np.ndarray:
    """Weights `[out, in]` as one contiguous `[in, sum of out]`."""
    parts = [weights[f"{m}.weight"] for m in modules]
    return np.ascontiguousarray(np.concatenate(parts).T)

"""The numbers of the simulated RK1828 once more: slow, plain, token by token.

Written from the numeric design alone and shares no code with the simulator: float32
products, every result rounded to fp16, rows of the cache int4 once they are old.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  (safetensors needs its bfloat16)
import numpy as np
from safetensors.numpy import load_file


Values = dict[str, np.ndarray]
PLACE = "model.language_model."
CHUNK, RESIDUAL, GROUP = 128, 32, 32
HEADS, HEAD_DIM = 2, 64  # one key head
THETA = 5e6


def half(x: np.ndarray) -> np.ndarray:
    """Rounded to fp16, as float32."""
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def checkpoint(folder: Path) -> Values:
    """Weights of a dequantised checkpoint, float32."""
    return {n: half(v) for n, v in load_file(folder / "model.safetensors").items()}


def factors(folder: Path) -> tuple[Values, float]:
    """A PEFT adapter of one rank: tensors in fp16, and alpha/r."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    return {n: half(v) for n, v in tensors.items()}, config["lora_alpha"] / config["r"]


class Plain:
    """A decoder with its cache.

    :param adapters: folders of PEFT adapters with their scales at run time.
    :param old: whether old rows become int4.
    """

    def __init__(
        self,
        weights: Values,
        adapters: Mapping[Path, float] | None = None,
        *,
        old: bool = True,
    ) -> None:
        self.weights = weights
        self.adapters = [
            (tensors, np.float32(ratio * scale))
            for folder, scale in (adapters or {}).items()
            for tensors, ratio in [factors(folder)]
        ]
        self.old = old
        self.layers = 1 + max(
            int(n.split("layers.")[1].split(".")[0])
            for n in weights
            if n.startswith(PLACE + "layers.")
        )
        # Keys and values of each layer, a row [HEAD_DIM] a token.
        self.rows: list[tuple[list, list]] = [([], []) for _ in range(self.layers)]

    def score(self, prompt: Sequence[int], continuation: Sequence[int]) -> np.ndarray:
        """Teacher-forced logits, float32 `[t, vocab]`."""
        pieces = [prompt[i : i + CHUNK] for i in range(0, len(prompt), CHUNK)]
        for piece in pieces[:-1]:
            self.step(piece)
        steps = [pieces[-1], *([token] for token in continuation[:-1])]
        return np.stack([self.step(step) for step in steps])

    def step(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits `[vocab]` after the last of these tokens, a chunk or one."""
        for token in tokens:
            last = self.token(token)
        for pair in self.rows if self.old else ():
            for rows in pair:
                for j in range(len(rows) - RESIDUAL):
                    if not isinstance(rows[j], tuple):  # a tuple is int4 already
                        rows[j] = (aged(rows[j]),)
        x = norm(last, self.weights[PLACE + "norm.weight"])
        return half(self.weights["lm_head.weight"] @ x)

    def token(self, token: int) -> np.ndarray:
        """The last layer's states `[hidden]`; the token's rows go to the cache."""
        x = self.weights[PLACE + "embed_tokens.weight"][token]
        position = len(self.rows[0][0])
        for layer, (keys, values) in enumerate(self.rows):
            place = f"{PLACE}layers.{layer}."
            n = norm(x, self.weights[place + "input_layernorm.weight"])
            q = self.linear(n, place + "self_attn.q_proj").reshape(HEADS, HEAD_DIM)
            k = self.linear(n, place + "self_attn.k_proj")
            v = self.linear(n, place + "self_attn.v_proj")
            k = norm(k, self.weights[place + "self_attn.k_norm.weight"])
            keys.append(turn(k, position))
            values.append(v)
            mixed = []
            for head in q:
                query = norm(head, self.weights[place + "self_attn.q_norm.weight"])
                query = turn(query, position)
                scores = [np.dot(query, row_of(k)) for k in keys]
                scores = half(np.array(scores, np.float32) * np.float32(HEAD_DIM**-0.5))
                share = np.exp(scores - scores.max())
                share = half(share / share.sum())
                weighed = [p * row_of(v) for p, v in zip(share, values, strict=True)]
                mixed.append(half(np.sum(weighed, 0)))
            x = half(x + self.linear(np.concatenate(mixed), place + "self_attn.o_proj"))
            n = norm(x, self.weights[place + "post_attention_layernorm.weight"])
            gate = self.linear(n, place + "mlp.gate_proj")
            up = self.linear(n, place + "mlp.up_proj")
            silu = half(gate / (1 + np.exp(-gate)))
            down = self.linear(half(silu * up), place + "mlp.down_proj")
            x = half(x + down)
        return x

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """A linear with its branches, which are added up before they are added."""
        y = half(self.weights[name + ".weight"] @ x)
        branches = []
        for tensors, scale in self.adapters:
            stem = f"base_model.model.{name}.lora_"
            if stem + "A.weight" in tensors and scale != 0:
                down = half(tensors[stem + "A.weight"] @ x)
                branches.append(half(half(tensors[stem + "B.weight"] @ down) * scale))
        if not branches:
            return y
        total = branches[0]
        for branch in branches[1:]:
            total = half(total + branch)
        return half(y + total)


def row_of(row: object) -> np.ndarray:
    return row[0] if isinstance(row, tuple) else row  # type: ignore[return-value]


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return half(x / np.sqrt(np.mean(x * x) + np.float32(1e-6)) * weight)


def turn(x: np.ndarray, position: int) -> np.ndarray:
    """Rotary embedding of text, whose three position rows are one."""
    count = HEAD_DIM // 2
    frequency = np.float32(THETA) ** -(np.arange(count, dtype=np.float32) / count)
    angle = np.float32(position) * frequency
    cos, sin = half(np.cos(angle)), half(np.sin(angle))
    a, b = x[:count], x[count:]
    return half(np.concatenate([a * cos - b * sin, b * cos + a * sin]))


def aged(row: np.ndarray) -> np.ndarray:
    """A row as int4 holds it."""
    out = []
    for group in row.reshape(-1, GROUP):
        low = group.min()
        scale = half((group.max() - low) / np.float32(15))
        scale = np.float32(1) if scale == 0 else scale
        code = np.clip(np.rint((group - low) / scale), 0, 15)
        out.append(half(code * scale + low))
    return np.concatenate(out)

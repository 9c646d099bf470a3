"""Boards as numbers: hidden states times an output projection, with rounding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.golden.prompts import Prompt
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.store import Reference


__all__ = ["World", "log_softmax", "prompt_set", "shifted"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities by the plain formula, float64 `[rows, vocab]`, nats."""
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def prompt_set(count: int, rows: int, vocab: int, seed: int = 0) -> PromptSet:
    """`count` prompts with `rows` random target tokens each."""
    rng = np.random.default_rng(seed)
    return PromptSet(
        tuple(
            Prompt(f"p{k}", "d", (1, 2), tuple(rng.integers(0, vocab, rows).tolist()))
            for k in range(count)
        )
    )


@dataclass(frozen=True)
class World:
    """A base, an adapter and a device whose hidden states carry rounding noise.

    :param effect: size of the adapter's change of the hidden states.
    :param rounding: size of the device's noise on them; a bf16 net has 0.01.
    """

    prompts: int = 12
    rows: int = 8
    hidden: int = 32
    vocab: int = 301
    effect: float = 0.4
    rounding: float = 0.01

    @cached_property
    def set(self) -> PromptSet:
        return prompt_set(self.prompts, self.rows, self.vocab)

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        total = self.prompts * self.rows
        head = rng.standard_normal((self.hidden, self.vocab)) / np.sqrt(self.hidden)
        states = 3 * rng.standard_normal((total, self.hidden))
        change = 3 * self.effect * rng.standard_normal((total, self.hidden))
        # The text is likely under the adapter, so that it gains on it.
        change += 0.5 * head.T[self.set.targets]
        return head, states, change

    def states(self, scale: float = 0.0) -> np.ndarray:
        """Exact hidden states with `scale` times the adapter."""
        _, states, change = self._parts
        return states + scale * change

    def score(
        self, states: np.ndarray, seed: int | None = None, noise: float | None = None
    ) -> Scores:
        """Logits of hidden states; with a seed, as a device that rounds."""
        if seed is not None:
            size = self.rounding if noise is None else noise
            rng = np.random.default_rng(seed)
            states = states + 3 * size * rng.standard_normal(states.shape)
        return Scores(self.set, (states @ self._parts[0]).astype(np.float32))

    def board(self, scale: float = 0.0, seed: int = 7, noise: float = 0.01) -> Scores:
        """What a device with the adapter at `scale` answers."""
        return self.score(self.states(scale), seed + abs(round(1000 * scale)), noise)

    def reference(self, scale: float = 0.0) -> Reference:
        """The golden: exact, and in another device's rounding."""
        states = self.states(scale)
        return Reference(
            self.score(states), self.score(states, 90_000 + round(1000 * scale))
        )


def shifted(scores: Scores, rows: slice, by: float, seed: int = 3) -> Scores:
    """The scores with noise of size `by` on some rows: a fault of their own."""
    logits = scores.logits.copy()
    rng = np.random.default_rng(seed)
    logits[rows] += by * rng.standard_normal(logits[rows].shape).astype(np.float32)
    return Scores(scores.prompts, logits)

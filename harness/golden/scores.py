"""Logits of a prompt set, from a board or from the reference."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.golden.prompts import PromptSet
from harness.golden.rows import log_partition


__all__ = ["Scores"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Teacher-forced logits of every continuation token of a prompt set.

    :param prompts: the prompts scored, in order.
    :param logits: float32 `[prompts.rows, vocab]`; row t of a prompt is taken
        before its continuation token t.
    """

    prompts: PromptSet
    logits: np.ndarray

    def __post_init__(self) -> None:
        if self.logits.ndim != 2 or self.logits.shape[0] != self.prompts.rows:
            raise ValueError(
                f"logits {self.logits.shape} do not fit {self.prompts.rows} rows"
            )

    @classmethod
    def together(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several prompt sets as those of one."""
        prompts = tuple(prompt for part in parts for prompt in part.prompts)
        return cls(PromptSet(prompts), np.concatenate([part.logits for part in parts]))

    def of(self, index: int) -> np.ndarray:
        """Logits of prompt `index`, float32 `[len(continuation), vocab]`."""
        starts = self.prompts.starts
        return self.logits[starts[index] : starts[index + 1]]

    def on(self, prompts: PromptSet) -> Scores:
        """The same scores on a subset made by `PromptSet.few`.

        :raises ValueError: `prompts` is not such a subset.
        """
        if prompts == self.prompts:
            return self
        index = {p.name: i for i, p in enumerate(self.prompts)}
        parts = []
        for p in prompts:
            i = index.get(p.name, -1)
            mine = self.prompts.prompts[i] if i >= 0 else None
            if (
                mine is None
                or mine.tokens != p.tokens
                or mine.continuation[: len(p.continuation)] != p.continuation
            ):
                raise ValueError(f"prompt {p.name!r} was not scored")
            parts.append(self.of(i)[: len(p.continuation)])
        return Scores(prompts, np.concatenate(parts))

    @cached_property
    def digest(self) -> str:
        """sha256 over dtype, shape and bytes of the logits."""
        data = np.ascontiguousarray(self.logits)
        head = f"{data.dtype.str}{data.shape}".encode()
        return hashlib.sha256(head + data.tobytes()).hexdigest()

    @cached_property
    def partition(self) -> np.ndarray:
        """log sum exp over the vocabulary, float64 `[rows]`, nats; finite logits."""
        return log_partition(self.logits)

    @cached_property
    def finite(self) -> bool:
        """Whether no logit is NaN or infinite."""
        return bool(np.isfinite(self.logits).all())

"""Prompts with the continuations that are teacher-forced through a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


__all__ = ["Prompt", "PromptSet"]


@dataclass(frozen=True)
class Prompt:
    """Token ids of one prompt and of the continuation scored after it."""

    name: str
    domain: str
    tokens: tuple[int, ...]
    continuation: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens or not self.continuation:
            raise ValueError(f"prompt {self.name!r} has no tokens or no continuation")


@dataclass(frozen=True)
class PromptSet:
    """An ordered set of prompts; the unit that is scored and compared."""

    prompts: tuple[Prompt, ...]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    def __len__(self) -> int:
        return len(self.prompts)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Rows of logits per prompt: the lengths of the continuations."""
        return tuple(len(p.continuation) for p in self.prompts)

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of each prompt and one past the last, int64 `[K + 1]`."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def rows(self) -> int:
        """Rows of logits of the whole set."""
        return int(self.starts[-1])

    @cached_property
    def targets(self) -> np.ndarray:
        """The token each row predicts, int64 `[rows]`."""
        return np.concatenate([np.asarray(p.continuation, np.int64) for p in self])

    def few(self, prompts: int, rows: int) -> PromptSet:
        """The first `prompts` prompts, continuations cut to `rows` tokens."""
        return PromptSet(
            tuple(
                Prompt(p.name, p.domain, p.tokens, p.continuation[:rows])
                for p in self.prompts[:prompts]
            )
        )

    def first(self, prompts: int) -> PromptSet:
        """The first `prompts` prompts, whole: a repeat floor knows their rows."""
        return PromptSet(self.prompts[:prompts])

    @cached_property
    def digest(self) -> str:
        """sha256 over names and ids."""
        text = json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> list[dict[str, object]]:
        """JSON form; `from_json` reads it back."""
        return [
            {
                "name": p.name,
                "domain": p.domain,
                "tokens": list(p.tokens),
                "continuation": list(p.continuation),
            }
            for p in self.prompts
        ]

    @classmethod
    def from_json(cls, items: Sequence[dict]) -> PromptSet:
        """Prompts from `to_json`.

        :raises ValueError: an item lacks a field or has an empty token list.
        """
        try:
            return cls(
                tuple(
                    Prompt(
                        str(i["name"]),
                        str(i["domain"]),
                        tuple(int(t) for t in i["tokens"]),
                        tuple(int(t) for t in i["continuation"]),
                    )
                    for i in items
                )
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a prompt list: {error!r}") from error

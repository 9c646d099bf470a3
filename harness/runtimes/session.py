"""One conversation on a board, through its probe."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.probes.scales import packed
from harness.runtimes.client import Arrays
from harness.runtimes.client import Client
from harness.runtimes.patience import Patience
from harness.runtimes.replies import Reported
from harness.runtimes.runtime import Cache
from harness.runtimes.runtime import Phase


__all__ = ["RemoteSession"]

# The command that goes ahead of a prompt.
AHEAD: dict[Cache, str] = {"cleared": "reset", "new": "", "kept": ""}


class RemoteSession:
    """Implements `runtime.Session`; it ends with its program.

    :param number: what the probe calls it.
    :param vocab: width of a row of logits.
    """

    def __init__(
        self, client: Client, number: int, vocab: int, patience: Patience
    ) -> None:
        self._client = client
        self._number = number
        self._vocab = vocab
        self._patience = patience
        self._closed = False

    def activate(self, adapters: Mapping[str, float]) -> None:
        """Make exactly these loaded adapters take effect, each at its scale."""
        self._call("activate", self._patience.load, {"adapters": packed(adapters)})

    def reported(self) -> dict[str, float]:
        """Active adapters with their scale, as the runtime reports them."""
        header, _ = self._call("reported", self._patience.control)
        return dict(self._client.parsed("reported", Reported, header).adapters)

    def score(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        phase: Phase,
        *,
        cache: Cache = "kept",
    ) -> np.ndarray:
        """Teacher-forced logits, float32 `[len(continuation), vocab]`.

        The session then holds all but the last continuation token.
        """
        rows = len(continuation)
        _, arrays = self._call(
            "score",
            self._patience.score + self._patience.token * (len(prompt) + rows),
            {"phase": phase, "keep": cache == "kept"},
            {
                "prompt": np.asarray(prompt, "<i4"),
                "continuation": np.asarray(continuation, "<i4"),
            },
            limit=rows * self._vocab * 4,
            first=AHEAD[cache],
        )
        logits = arrays.get("logits")
        if (
            logits is None
            or logits.dtype != np.float32
            or logits.shape != (rows, self._vocab)
        ):
            what = "no" if logits is None else f"{logits.dtype} {list(logits.shape)}"
            self._client.broken(
                "score", f"{what} logits came, not float32 [{rows}, {self._vocab}]"
            )
        return logits

    def generate(
        self, prompt: Sequence[int], n: int, *, cache: Cache = "kept"
    ) -> list[int]:
        """`n` greedy tokens after the prompt."""
        _, arrays = self._call(
            "generate",
            self._patience.score + self._patience.token * (len(prompt) + n),
            {"n": n, "keep": cache == "kept"},
            {"prompt": np.asarray(prompt, "<i4")},
            limit=max(n, 0) * 4,
            first=AHEAD[cache],
        )
        tokens = arrays.get("tokens")
        if tokens is None or tokens.dtype != np.int32 or tokens.shape != (n,):
            self._client.broken("generate", f"no row of {n} tokens came")
        if tokens.min() < 0 or tokens.max() >= self._vocab:
            self._client.broken("generate", "a token outside the vocabulary came")
        return [int(t) for t in tokens]

    def reset(self) -> None:
        """Empty the KV cache."""
        self._call("reset", self._patience.control)

    def save_cache(self, name: str) -> None:
        """Keep the KV cache in a file of this name on the host."""
        self._call("save_cache", self._patience.load, {"name": name})

    def load_cache(self, name: str) -> None:
        """Take the KV cache from a file that `save_cache` wrote."""
        self._call("load_cache", self._patience.load, {"name": name})

    def close(self) -> None:
        """End the conversation; nothing to do where its program has ended."""
        if not self._closed and not self._client.closed:
            self._closed = True
            self._call("close_session", self._patience.control)

    def _call(
        self,
        op: str,
        seconds: float,
        fields: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        limit: int = 0,
        first: str = "",
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        session = {**(fields or {}), "session": self._number}
        return self._client.call(op, seconds, session, arrays, limit, first=first)

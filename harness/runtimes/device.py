"""A board in a suite's hands: base, an adapter, base again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.artifacts.provision import Store
from harness.errors import RuntimeRefused
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.runtimes.runtime import Capabilities
from harness.runtimes.runtime import Identity
from harness.runtimes.runtime import Phase
from harness.runtimes.runtime import Runtime
from harness.runtimes.runtime import Session
from harness.runtimes.runtime import Slot


__all__ = ["Conversation", "Device"]


class Conversation:
    """Scores and generates from an empty KV cache, every prompt on its own."""

    def __init__(self, session: Session, phase: Phase) -> None:
        self._session = session
        self._phase = phase

    def score(self, prompts: PromptSet) -> Scores:
        """Teacher-forced logits of every prompt, the cache emptied before each."""
        logits: np.ndarray | None = None
        for index, prompt in enumerate(prompts):
            rows = self._session.score(
                prompt.tokens, prompt.continuation, self._phase, fresh=True
            )
            if logits is None:
                logits = np.empty((prompts.rows, rows.shape[1]), np.float32)
            logits[prompts.starts[index] : prompts.starts[index + 1]] = rows
        if logits is None:
            raise ValueError("no prompts to score")
        return Scores(prompts, logits)

    def generate(self, prompt: Sequence[int], n: int) -> list[int]:
        """`n` greedy tokens after the prompt, the cache emptied before it."""
        self._session.reset()
        return self._session.generate(prompt, n)


class Device:
    """One adapter at a time on a board, whatever the scope of its switch.

    All goes through one session, so a switch by process, by session or by request
    reaches what `fresh` scores. Checks of several sessions use `runtime`.

    :param runtime: the software under test, running.
    :param store: where adapters are put on its host.
    """

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self.runtime = runtime
        self._store = store
        self._session: Session | None = None
        # What we had loaded under which name, to bring it back after a refusal.
        self._artifacts: dict[str, str] = {}

    @property
    def identity(self) -> Identity:
        """Who answered."""
        return self.runtime.identity

    @property
    def capabilities(self) -> Capabilities:
        """What the runtime can do."""
        return self.runtime.capabilities

    def fresh(self, phase: Phase = "prefill") -> Conversation:
        """A conversation with an empty KV cache, under what is applied now."""
        return Conversation(self._open(), phase)

    def apply(
        self, adapter: Path, *, scale: float = 1.0, name: str | None = None
    ) -> None:
        """Put an adapter on the board and make it take effect.

        After a refusal what was loaded under `name` before is so again; whether the
        board kept its state is for the checks to see.

        :param adapter: a PEFT folder, or what the platform loads instead.
        :param name: what it is called there; the folder's name by default.
        :raises RuntimeRefused: the runtime says no.
        """
        name = name or adapter.name
        artifact = self._store.put_folder(adapter)
        session = self._open()
        before = self._artifacts.pop(name, None)
        self.runtime.load(artifact, name)
        try:
            session.activate(name, scale)
        except RuntimeRefused:
            self._take_back(name, before)
            raise
        self._artifacts[name] = artifact

    def clear(self) -> None:
        """Go back to base."""
        self._open().deactivate()

    def restart(self) -> None:
        """End the software and start it again; it is at base then."""
        self._session = None
        self._artifacts.clear()
        # The whole board may have restarted, with a workdir that did not survive it.
        self._store.forget()
        self.runtime.restart()

    def reported(self) -> dict[str, float]:
        """The active adapters and their scale, as the runtime reports them."""
        return self.runtime.adapters()

    def slots(self) -> list[Slot]:
        """All compiled slots."""
        return self.runtime.slots()

    def read_slot(self, name: str) -> np.ndarray:
        """A slot's bytes, uint8 `[Slot.size]`."""
        return self.runtime.read_slot(name)

    def _open(self) -> Session:
        if self._session is None:
            self._session = self.runtime.session()
        return self._session

    def _take_back(self, name: str, before: str | None) -> None:
        if before is None:
            self.runtime.unload(name)
        else:
            self.runtime.load(before, name)
            self._artifacts[name] = before

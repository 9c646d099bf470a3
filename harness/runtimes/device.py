"""A board in a suite's hands: base, an adapter, base again."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from harness.artifacts.supply import Supply
from harness.errors import Infrastructure
from harness.errors import RuntimeRefused
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.runtimes.runtime import Cache
from harness.runtimes.runtime import Capabilities
from harness.runtimes.runtime import Identity
from harness.runtimes.runtime import Phase
from harness.runtimes.runtime import Runtime
from harness.runtimes.runtime import Session
from harness.runtimes.runtime import Slot


__all__ = ["Conversation", "Device"]


class Conversation:
    """Scores and generates in a session, under what is applied in it now.

    :param cache: what every prompt finds in the KV cache.
    """

    def __init__(self, session: Session, phase: Phase, cache: Cache) -> None:
        self._session = session
        self._phase = phase
        self._cache = cache

    def score(self, prompts: PromptSet) -> Scores:
        """Teacher-forced logits of every prompt, one after another."""
        logits: np.ndarray | None = None
        for index, prompt in enumerate(prompts):
            rows = self._session.score(
                prompt.tokens, prompt.continuation, self._phase, cache=self._cache
            )
            if logits is None:
                logits = np.empty((prompts.rows, rows.shape[1]), np.float32)
            logits[prompts.starts[index] : prompts.starts[index + 1]] = rows
        if logits is None:
            raise ValueError("no prompts to score")
        return Scores(prompts, logits)

    def generate(self, prompt: Sequence[int], n: int) -> list[int]:
        """`n` greedy tokens after the prompt."""
        return self._session.generate(prompt, n, cache=self._cache)


class Device:
    """One conversation on a board, whatever the scope of its switch.

    All goes through one session, so a switch by process, by session or by request
    reaches what `fresh` scores.

    :param runtime: the software under test, running.
    :param supply: how adapters get onto its host.
    :param loaded: artifact of each adapter that was loaded by its name; conversations
        on one board share it.
    """

    def __init__(
        self, runtime: Runtime, supply: Supply, loaded: dict[str, str] | None = None
    ) -> None:
        self.runtime = runtime
        self.supply = supply
        self._session: Session | None = None
        self._loaded = {} if loaded is None else loaded

    @property
    def identity(self) -> Identity:
        """Who answered."""
        return self.runtime.identity

    @property
    def capabilities(self) -> Capabilities:
        """What the runtime can do."""
        return self.runtime.capabilities

    @property
    def session(self) -> Session:
        """The session behind it."""
        if self._session is None:
            self._session = self.runtime.session()
        return self._session

    def beside(self) -> Device:
        """Another conversation on the same board; use as a context manager.

        It ends with the software, and is not restarted for itself.
        """
        return Device(self.runtime, self.supply, self._loaded)

    def __enter__(self) -> Self:
        self.session  # noqa: B018 - opened here, so that a refusal comes here
        return self

    def __exit__(self, *error: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def fresh(self, phase: Phase | None = None) -> Conversation:
        """Every prompt from an emptied KV cache.

        :param phase: the graph that computes the rows; the cheaper one by default.
        """
        return self._conversation(phase, "cleared")

    def anew(self, phase: Phase | None = None) -> Conversation:
        """Every prompt as that of a new conversation, nothing emptied before it."""
        return self._conversation(phase, "new")

    def further(self, phase: Phase | None = None) -> Conversation:
        """Every prompt continues what the session holds."""
        return self._conversation(phase, "kept")

    def stock(self, adapters: Mapping[str, Path]) -> None:
        """Have adapters at hand by name; what was at hand before may be gone.

        Where they come in bundles this makes one and restarts the software, unless
        it has them all already; elsewhere there is nothing to do ahead.

        :raises RuntimeRefused: the converter does not take them together.
        """
        if self.supply.stock(adapters):
            self.restart()

    def renew(self, adapters: Mapping[str, Path]) -> None:
        """Have adapters at hand as `stock` does, but without a restart.

        What was loaded must be loaded again.

        :raises RuntimeRefused: the runtime takes no second initialisation; it needs a
            restart before it sees these adapters.
        """
        self.supply.stock(adapters)
        name, folder = next(iter(adapters.items()))
        bundle = self.supply.find(name, folder)
        assert bundle is not None
        self._loaded.clear()
        self.runtime.renew(bundle)

    def admit(self, adapter: Path, *others: Path) -> None:
        """Have an adapter at hand that may be unfit, and others beside it.

        Where adapters come in bundles it is converted alone first. A refusal leaves
        all as it was; otherwise the software starts again, unless all are at hand.

        :raises RuntimeRefused: the converter says no.
        """
        self.supply.admit(adapter.name, adapter)
        adapters = {folder.name: folder for folder in (adapter, *others)}
        if not self.supply.has(adapters):
            self.stock(adapters)

    def load(self, adapter: Path, name: str | None = None) -> str:
        """Make an adapter available; its name there.

        :param adapter: a PEFT folder that is at hand.
        :param name: what it is called there; the folder's name by default.
        :raises RuntimeRefused: the converter or the runtime says no.
        :raises Infrastructure: it is not at hand. It is not stocked now: that would
            restart the software in the middle of a history.
        """
        name = name or adapter.name
        artifact = self.supply.find(name, adapter)
        if artifact is None:
            raise Infrastructure(
                f"the adapter {name!r} is not at hand",
                where="check",
                cure="name it by a fixture (harness/kits.py), or stock it first",
            )
        if self._loaded.get(name) != artifact:
            self.runtime.load(artifact, name)
            self._loaded[name] = artifact
        return name

    def unload(self, name: str) -> None:
        """Take an adapter away again."""
        self._loaded.pop(name, None)
        self.runtime.unload(name)

    def apply(
        self, adapter: Path, *, scale: float = 1.0, name: str | None = None
    ) -> None:
        """Put an adapter on the board and make it, and it alone, take effect.

        After a refusal what was loaded under `name` before is so again; whether the
        board kept its state is for the checks to see.

        :param adapter: a PEFT folder.
        :param name: what it is called there; the folder's name by default.
        :raises RuntimeRefused: the converter or the runtime says no.
        """
        name = name or adapter.name
        before = self._loaded.get(name)
        self.load(adapter, name)
        try:
            self.session.activate({name: scale})
        except RuntimeRefused:
            self._take_back(name, before)
            raise

    def combine(self, adapters: Mapping[Path, float]) -> None:
        """Make several adapters take effect together, each at its scale."""
        names = {self.load(folder): scale for folder, scale in adapters.items()}
        self.session.activate(names)

    def clear(self) -> None:
        """Go back to base."""
        self.session.activate({})

    def restart(self) -> None:
        """End the software and start it again; it is at base then."""
        self._session = None
        self._loaded.clear()
        # The whole board may have restarted, with a workdir that did not survive it.
        self.supply.forget()
        self.runtime.restart()

    def reported(self) -> dict[str, float]:
        """The active adapters and their scale, as the runtime reports them."""
        return self.session.reported()

    def slots(self) -> list[Slot]:
        """All compiled slots."""
        return self.runtime.slots()

    def read_slot(self, name: str) -> np.ndarray:
        """A slot's bytes, uint8 `[Slot.size]`."""
        return self.runtime.read_slot(name)

    def _conversation(self, phase: Phase | None, cache: Cache) -> Conversation:
        return Conversation(self.session, phase or self.capabilities.phases[0], cache)

    def _take_back(self, name: str, before: str | None) -> None:
        if self._loaded.get(name) == before:
            return  # it was loaded before, and still is
        if before is None:
            self.unload(name)
        else:
            self.runtime.load(before, name)
            self._loaded[name] = before

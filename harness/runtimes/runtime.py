"""What every runtime under test must offer, whatever the vendor."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from typing import Protocol

import numpy as np


__all__ = ["Capabilities", "Identity", "Phase", "Runtime", "Session", "Slot"]

Phase = Literal["prefill", "decode"]
"""Which graph computes the scored rows.

`prefill`: prompt and continuation go through the prefill graph in one piece.
`decode`: the prompt goes through prefill, the continuation token by token.
"""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can do; a check whose feature is missing is SKIP.

    :param phases: graphs whose logits can be read at every position.
    :param slots_readable: low-rank slots can be read back.
    :param scope: what a switch of adapter changes.
    :param runtime_scale: `activate` takes a scale other than 1.
    :param max_adapters: adapters that can be loaded at once.
    :param max_sessions: sessions open at once.
    :param max_prompt: tokens that one prefill takes at most.
    :param max_context: tokens of a conversation at most.
    :param chunk: tokens per prefill chunk, 0 when prefill is one piece.
    :param cache_files: the KV cache can be saved and loaded.
    """

    phases: tuple[Phase, ...]
    slots_readable: bool
    scope: Literal["process", "session", "request"]
    runtime_scale: bool
    max_adapters: int
    max_sessions: int
    max_prompt: int
    max_context: int
    chunk: int = 0
    cache_files: bool = False


@dataclass(frozen=True)
class Identity:
    """Who answered: all of it goes onto the sign-off page (R90).

    :param platform: `bm1688`, `rk1828`.
    :param versions: vendor components and their versions, as they report them.
    :param probe: sha256 of the probe's files.
    :param model: facts on the loaded model: `digest`, `layers`, `hidden`,
        `vocab`, `reserved_rank`, ... as strings.
    """

    platform: str
    versions: Mapping[str, str]
    probe: str
    model: Mapping[str, str]


@dataclass(frozen=True)
class Slot:
    """A compiled low-rank slot.

    :param name: the vendor's name of it.
    :param net: the net (sub-graph) that holds it, e.g. `block_cache_3`.
    :param layer: text layer, -1 outside the layers.
    :param module: `q_proj`, ..., `down_proj`.
    :param factor: `A` `[reserved_rank, in]` or `B` `[reserved_rank, out]`.
    :param reserved_rank: rows compiled in.
    :param width: `in` or `out`; 0 when the runtime does not tell.
    :param dtype: `bf16` or `f32`.
    :param size: bytes of device memory.
    """

    name: str
    net: str
    layer: int
    module: str
    factor: Literal["A", "B"]
    reserved_rank: int
    width: int
    dtype: str
    size: int


class Session(Protocol):
    """One conversation with its own KV cache."""

    def activate(self, name: str, scale: float = 1.0) -> None:
        """Make a loaded adapter take effect.

        :raises RuntimeRefused: unknown name, unfit adapter, unsupported scale.
        """

    def deactivate(self) -> None:
        """Go back to the base model."""

    def score(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        phase: Phase,
        *,
        fresh: bool = False,
    ) -> np.ndarray:
        """Teacher-forced logits after what the session holds already.

        :param fresh: `reset` before it.
        :returns: float32 `[len(continuation), vocab]`, row t taken before
            continuation token t.
        """

    def generate(self, prompt: Sequence[int], n: int) -> list[int]:
        """`n` greedy tokens after the prompt."""

    def reset(self) -> None:
        """The platform's explicit command that empties the KV cache."""

    def close(self) -> None:
        """End the conversation."""


class Runtime(Protocol):
    """The software under test.

    Every call may raise `RuntimeRefused` (it said no and lives), `RuntimeDied`,
    `RuntimeHung` or `HostUnreachable`.
    """

    identity: Identity
    capabilities: Capabilities

    def load(self, artifact: str, name: str) -> None:
        """Make the adapter at path `artifact` on the host available as `name`."""

    def unload(self, name: str) -> None:
        """Forget `name`."""

    def adapters(self) -> dict[str, float]:
        """Active adapters with their scale, as the runtime *reports* them."""

    def session(self) -> Session:
        """A new conversation."""

    def slots(self) -> list[Slot]:
        """All slots of all nets, empty where the model was compiled without."""

    def read_slot(self, name: str) -> np.ndarray:
        """A slot's content as bytes, uint8 `[Slot.size]`."""

    def memory(self) -> dict[str, int]:
        """Bytes by kind, as the runtime reports them."""

    def restart(self) -> None:
        """End the software and start it again, from base."""

    def close(self) -> None:
        """End the software."""

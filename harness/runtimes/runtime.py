"""What every runtime under test must offer, whatever the vendor."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from typing import Protocol

import numpy as np


__all__ = [
    "Cache",
    "Capabilities",
    "Identity",
    "Phase",
    "Runtime",
    "Session",
    "Slot",
]

Phase = Literal["prefill", "decode"]
"""Which graph computes the scored rows.

`prefill`: every row comes out of the prefill graph; where that shows its last
position only, each row is a prefill of its own.
`decode`: the prompt goes through prefill, the continuation token by token.
"""

Cache = Literal["cleared", "new", "kept"]
"""What a prompt finds in its session's KV cache.

`cleared`: the platform's explicit command goes ahead.
`new`: the prompt is sent as that of a new conversation, without such a command.
`kept`: it continues what the session holds.
"""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can do; a check whose feature is missing is SKIP.

    :param phases: graphs whose logits can be read, the cheaper row first.
    :param slots_readable: low-rank slots can be read back.
    :param scope: what a switch of adapter changes.
    :param runtime_scale: `activate` takes a scale other than 1.
    :param max_adapters: adapters that can be loaded at once.
    :param max_active: adapters that can take effect in one session at once.
    :param max_sessions: sessions open at once.
    :param max_prompt: tokens that one prefill takes at most.
    :param max_context: tokens of a conversation at most.
    :param chunk: tokens per prefill chunk, 0 when prefill is one piece.
    :param cache_files: the KV cache can be saved and loaded.
    :param context_switch: adapters can be switched for all sessions at once, too.
    :param bundles: adapters are loaded out of bundles, one a start of the software.
    """

    phases: tuple[Phase, ...]
    slots_readable: bool
    scope: Literal["process", "session", "request"]
    runtime_scale: bool
    max_adapters: int
    max_active: int
    max_sessions: int
    max_prompt: int
    max_context: int
    chunk: int = 0
    cache_files: bool = False
    context_switch: bool = False
    bundles: bool = False


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

    def activate(self, adapters: Mapping[str, float]) -> None:
        """Make exactly these loaded adapters take effect, each at its scale.

        What is active and not named is switched off first; what is active and
        named again is enabled again, without being switched off in between.

        :param adapters: scale by name; empty goes back to the base model.
        :raises RuntimeRefused: unknown name, unfit adapter, unsupported scale, more
            than `Capabilities.max_active`.
        """

    def reported(self) -> dict[str, float]:
        """Active adapters with their scale, as the runtime *reports* them."""

    def score(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        phase: Phase,
        *,
        cache: Cache = "kept",
    ) -> np.ndarray:
        """Teacher-forced logits.

        :returns: float32 `[len(continuation), vocab]`, row t taken before
            continuation token t.
        """

    def generate(
        self, prompt: Sequence[int], n: int, *, cache: Cache = "kept"
    ) -> list[int]:
        """`n` greedy tokens after the prompt."""

    def reset(self) -> None:
        """The platform's explicit command that empties the KV cache."""

    def save_cache(self, name: str) -> None:
        """Keep the KV cache in a file of this name on the host."""

    def load_cache(self, name: str) -> None:
        """Take the KV cache from a file that `save_cache` wrote.

        :raises RuntimeRefused: no such file, or the runtime does not take it.
        """

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
        """Make an adapter available as `name`.

        :param artifact: path on the host: of a PEFT folder, or of the bundle that
            holds an adapter of this name. All loads of one start name one bundle.
        """

    def unload(self, name: str) -> None:
        """Forget `name`, and give its memory back."""

    def renew(self, bundle: str) -> None:
        """Initialise the adapters anew from a bundle, without a restart.

        :param bundle: path on the host; it is handed over from memory.
        :raises RuntimeRefused: the runtime takes no second initialisation.
        """

    def activate(self, adapters: Mapping[str, float]) -> None:
        """As `Session.activate`, for the whole context."""

    def session(self) -> Session:
        """A new conversation.

        :raises RuntimeRefused: `Capabilities.max_sessions` are open.
        """

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

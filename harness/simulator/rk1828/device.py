"""The simulated card: its memory, and the seams at which a fault changes it.

A fault overrides a method of `Device`: what is loaded (`bundle`, `load`, `unload`),
what is enabled (`scale`, `disable`, `enabled`, `reported`), what a cache holds
(`capacity`, `switched`, `cleared`, `reused`, `takes`), what is computed (`base`,
`branch`, `logits`), what is said (`say`, `status`). Or it sets `policy` for what the
documents leave open, or `sessions`. An adapter that is never freed::

    class UnloadKeepsWeights(Device):
        def unload(self, adapters, name): ...
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import NamedTuple
from typing import Optional
from typing import Sequence
from typing import Tuple

import numpy as np

from .. import board
from ..precision import Fp16
from .bundlefile import BundledAdapter
from .policy import Policy


if TYPE_CHECKING:
    from .adapters import Adapters
    from .session import Session


__all__ = ["Device", "Nodes", "Origin", "Refused", "Where", "chosen", "share"]

MIB = 1 << 20
# What boards report: eight nodes of 614.5 to 639.5 MiB, none like another.
TOTALS = tuple(int((614.5 + 25 * i / 7) * MIB) for i in range(8))
PAGE = 4096


class Refused(Exception):
    """A call that fails: says why in one line. Its caller sees -1 or None."""


class Where(NamedTuple):
    """The place of a branch.

    :param graph: `prefill` or `decode`.
    :param session: index of the session.
    :param position: of the first token of this chunk or step.
    """

    graph: str
    layer: int
    module: str
    session: int
    position: int
    adapter: str


class Origin(NamedTuple):
    """What a cache was computed with.

    :param model: digest of the compiled model.
    :param adapters: name, scale, and digest of the factors, in order of enabling.
    """

    model: str
    adapters: Tuple[Tuple[str, float, str], ...]


class Device(board.Device):
    """A sound device; what is public of it are the seams.

    A session that these are given has `index`, `configured` (scale by name, what it
    enabled itself), `cache` and `tokens` (ids of what the cache holds).
    """

    policy = Policy()
    # Sessions of a card at once, as seen on boards.
    sessions = 5

    # What is loaded

    def bundle(self, data: Any) -> Any:
        """A bundle as `init_lora` takes it in: a buffer of the whole file."""
        return data

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        """An adapter on its way from the bundle into device memory."""
        return adapter

    def unload(self, adapters: Adapters, name: str) -> None:
        """Take a loaded adapter out of device memory."""
        adapters.free(name)

    # What is enabled; `configured` is a session's, or that of the whole context

    def scale(self, given: float, current: Optional[float]) -> float:
        """The scale at which an adapter is enabled.

        :param current: its scale where it is enabled already.
        """
        return given

    def disable(self, configured: Dict[str, float], name: str) -> None:
        """Disable an enabled adapter."""
        del configured[name]

    def enabled(
        self, session: Session, context: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Which adapters take effect in a session, each at which scale.

        Asked at every run, and when the state is read or the cache saved or loaded.
        A session's own configuration has precedence over the context's; one that has
        nothing enabled has no configuration. What is not loaded has no effect.

        :param context: what is enabled at context level.
        """
        return session.configured or context

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        """What a session's state says is enabled."""
        return enabled

    # What a session's cache holds

    def capacity(self, wanted: int, compiled: Sequence[int]) -> int:
        """The context length that a session gets: the nearest compiled one."""
        return min(compiled, key=lambda n: abs(n - wanted))

    def switched(self, session: Session) -> None:
        """What takes effect in a session has changed: its whole cache is dropped."""
        session.cache.cut(0)

    def cleared(self, session: Session) -> None:
        """The explicit command that empties a session's cache."""
        session.cache.cut(0)

    def reused(self, session: Session, tokens: Sequence[int]) -> int:
        """Tokens that a new conversation keeps of the cache, less than it has."""
        return 0

    def takes(self, saved: Origin, origin: Origin) -> bool:
        """Whether a session of this origin takes a saved cache of this model."""
        return self.policy.cache_file == "accepted" or saved == origin

    # What is computed

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float, where: Where
    ) -> Optional[np.ndarray]:
        """A low-rank branch, `((x A^T) B) scale`; None where it has no effect.

        :param x: float32 `[n, in]`; a `[rank, in]`; b `[rank, out]`.
        :param scale: alpha/r times the scale at run time.
        """
        if scale == 0:
            return None
        rounded = self.precision.round
        y = rounded(rounded(x @ a.T) @ b)
        y *= np.float32(scale)
        return rounded(y)

    # What is said

    def say(self, text: str) -> None:
        """A line on stdout, where the vendor's library prints."""
        print("[RKNN3][simulated] %s" % text, flush=True)

    def status(self, call: str, error: Exception) -> int:
        """What a call that failed returns."""
        text = "%s failed: %s" % (call, error or type(error).__name__)
        print("[RKNN3Lite][simulated] %s" % text, file=sys.stderr, flush=True)
        return -1


def chosen() -> Device:
    """The device that this board's root asks for, the sound one by default."""
    return board.chosen(Device)(Fp16())


class Nodes:
    """The nodes; whatever is taken lies on all of them in equal parts."""

    totals = TOTALS

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> int:
        """Take `size` bytes.

        :returns: bytes of each node, to be given back.
        :raises Refused: the smallest node has no room for its part.
        """
        part = share(size)
        if part > min(self.free):
            raise Refused("out of memory: %d bytes on each node are needed" % part)
        self._taken += part
        return part

    def give(self, part: int) -> None:
        """Give back what `take` took."""
        self._taken -= part

    @property
    def free(self) -> List[int]:
        """Free bytes by node."""
        return [total - self._taken for total in self.totals]


def share(size: int) -> int:
    """Bytes of each node, in whole pages."""
    return -(-size // (len(TOTALS) * PAGE)) * PAGE

"""Faults of the simulated RK1828 and its runtime; what was converted is sound."""

from __future__ import annotations

import os
import time
from typing import Dict
from typing import List
from typing import Mapping
from typing import Optional

import numpy as np

from ..rk1828.adapters import Adapters
from ..rk1828.bundlefile import BundledAdapter
from ..rk1828.device import Device
from ..rk1828.device import Origin
from ..rk1828.device import Refused
from ..rk1828.device import Where
from ..rk1828.modelfile import CHUNK
from ..rk1828.session import Session
from . import common


__all__ = [
    "AdapterIgnored",
    "BaseChanged",
    "CacheFileAccepted",
    "CacheSurvivesSwitch",
    "Chatty",
    "ChunkBoundaryDropsAdapter",
    "ClearDoesNothing",
    "DecodeGraphIgnoresAdapter",
    "FailedLoadKillsProcess",
    "FailedLoadSilent",
    "LaterTurnsLoseAdapter",
    "Noisy",
    "OtherSessionsScale",
    "PrecedenceReversed",
    "PrefillGraphIgnoresAdapter",
    "ReportsWrongState",
    "RuntimeScaleSticky",
    "ScaleAppliedTwice",
    "ScaleOffByFivePercent",
    "ScaleZeroNotBase",
    "SecondLoadIncomplete",
    "SecondSessionOnly",
    "SessionLeak",
    "SetupFailsToBase",
    "SixthSessionGranted",
    "SlowLoad",
    "StaleName",
    "UnloadDropsNeighbour",
    "UnloadKeepsWeights",
]


# What is computed


class AdapterIgnored(Device):
    """Adapters load, are enabled and reported, and no graph computes with them."""

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float, where: Where
    ) -> Optional[np.ndarray]:
        return super().branch(x, a, b, scale, where) if self.sees(where) else None

    def sees(self, where: Where) -> bool:
        """Whether an adapter takes effect in this place."""
        return False


class DecodeGraphIgnoresAdapter(AdapterIgnored):
    """The prefill graph applies the adapter, the decode graph does not."""

    def sees(self, where: Where) -> bool:
        return where.graph == "prefill"


class PrefillGraphIgnoresAdapter(AdapterIgnored):
    """The decode graph applies the adapter, the prefill graph does not."""

    def sees(self, where: Where) -> bool:
        return where.graph == "decode"


class ChunkBoundaryDropsAdapter(AdapterIgnored):
    """Prefill applies the adapter in a prompt's first chunk only."""

    def sees(self, where: Where) -> bool:
        return where.graph == "decode" or where.position == 0


class LaterTurnsLoseAdapter(AdapterIgnored):
    """Prefill applies the adapter in the first turn of a conversation only.

    A later turn's chunks begin where the cache ends, at no multiple of their size.
    """

    def sees(self, where: Where) -> bool:
        return where.graph == "decode" or where.position % CHUNK == 0


class SecondSessionOnly(AdapterIgnored):
    """All is right but in the second session, which always answers as base."""

    def sees(self, where: Where) -> bool:
        return where.session != 1


class ScaleOffByFivePercent(Device):
    """Every adapter takes effect five per cent too strongly."""

    def branch(
        self, x: np.ndarray, a: np.ndarray, b: np.ndarray, scale: float, where: Where
    ) -> Optional[np.ndarray]:
        return super().branch(x, a, b, self.wrong(scale), where)

    def wrong(self, scale: float) -> float:
        """The scale that is used for the right one."""
        return scale * 1.05


class ScaleAppliedTwice(ScaleOffByFivePercent):
    """The branch is multiplied by the scale two times."""

    def wrong(self, scale: float) -> float:
        return scale * scale


class BaseChanged(common.BaseChanged, Device):
    __doc__ = common.BaseChanged.__doc__


class Noisy(common.Noisy, Device):
    __doc__ = common.Noisy.__doc__

    def logits(self, logits: np.ndarray) -> np.ndarray:
        return self.precision.round(super().logits(logits))


# What takes effect where


class RuntimeScaleSticky(Device):
    """An adapter keeps the scale it was first enabled at until it is disabled."""

    def scale(self, given: float, current: Optional[float]) -> float:
        return given if current is None else current


class ScaleZeroNotBase(Device):
    """A scale of 0 is taken for none given, hence for 1."""

    def scale(self, given: float, current: Optional[float]) -> float:
        return given or 1.0


class ClearDoesNothing(Device):
    """Disabling an adapter succeeds and leaves it enabled."""

    def disable(self, configured: Dict[str, float], name: str) -> None:
        pass

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        return {}


class PrecedenceReversed(Device):
    """What is enabled for the whole context counts more than a session's own."""

    def enabled(
        self, session: Session, context: Mapping[str, float]
    ) -> Mapping[str, float]:
        return context or session.configured


class SessionLeak(Device):
    """A session without an adapter answers under that of another session."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._seen: Dict[int, Dict[str, float]] = {}

    def enabled(
        self, session: Session, context: Mapping[str, float]
    ) -> Mapping[str, float]:
        self._seen[session.index] = dict(session.configured)
        others: List[Mapping[str, float]] = [
            configured for configured in self._seen.values() if configured
        ]
        return super().enabled(session, context) or (others[-1] if others else {})

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        return session.configured


class SixthSessionGranted(Device):
    """A card that takes five sessions gives out a sixth."""

    sessions = 6


class OtherSessionsScale(Device):
    """An adapter has one scale for all sessions: the one that was used last."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._seen: Dict[int, Dict[str, float]] = {}
        self._scales: Dict[str, float] = {}

    def enabled(
        self, session: Session, context: Mapping[str, float]
    ) -> Mapping[str, float]:
        configured = dict(session.configured)
        if self._seen.get(session.index) != configured:
            self._seen[session.index] = configured
            self._scales.update(configured)
        known = super().enabled(session, context)
        return {name: self._scales.get(name, scale) for name, scale in known.items()}

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        return session.configured


class ReportsWrongState(Device):
    """Adapters switch as they should; the first one enabled is reported for ever."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._first: Dict[str, float] = {}

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        self._first = self._first or dict(enabled)
        return self._first


# What stays in a cache


class CacheSurvivesSwitch(Device):
    """A switch leaves the session's cache, and equal tokens of it are used again."""

    def switched(self, session: Session) -> None:
        pass

    def reused(self, session: Session, tokens: List[int]) -> int:  # type: ignore[override]
        held = session.cache.tokens
        same = [one == other for one, other in zip(held, tokens)]
        return same.index(False) if False in same else len(same)


class CacheFileAccepted(Device):
    """A saved cache is taken under whatever adapter and scale."""

    def takes(self, saved: Origin, origin: Origin) -> bool:
        return True


# What is loaded


class UnloadKeepsWeights(Device):
    """Unloading succeeds, and the adapter stays in device memory."""

    def unload(self, adapters: Adapters, name: str) -> None:
        pass


class UnloadDropsNeighbour(Device):
    """Unloading an adapter takes the one that was loaded after it along."""

    def unload(self, adapters: Adapters, name: str) -> None:
        names = list(adapters.loaded)
        after = names[names.index(name) + 1 :]
        super().unload(adapters, name)
        for neighbour in after[:1]:
            adapters.free(neighbour)


class SecondLoadIncomplete(Device):
    """From the second load on the adapter's last layer is left out."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._loads = 0

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        self._loads += 1
        if self._loads == 1:
            return adapter
        last = max(layer for layer, _ in adapter.modules)
        kept = {k: v for k, v in adapter.modules.items() if k[0] != last}
        return BundledAdapter(adapter.name, kept)


class StaleName(Device):
    """An adapter is kept under its name; a new bundle's content is not seen."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._known: Dict[str, BundledAdapter] = {}

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        return self._known.setdefault(adapter.name, adapter)


class SlowLoad(Device):
    """Benign: right, but every load takes a third of a second more."""

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        time.sleep(1 / 3)
        return adapter


# What is said of a failure, and otherwise


class FailedLoadSilent(Device):
    """Whatever fails is reported as done."""

    def status(self, call: str, error: Exception) -> int:
        super().status(call, error)
        return 0


class SetupFailsToBase(FailedLoadSilent):
    """Adapters of more than rank 8 fail to load, which is reported as done."""

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        if any(len(factors.a) > 8 for factors in adapter.modules.values()):
            raise Refused("no room for %r" % adapter.name)
        return adapter


class FailedLoadKillsProcess(Device):
    """A call that fails ends the process."""

    def status(self, call: str, error: Exception) -> int:
        os._exit(255)  # what exit(-1) gives


class Chatty(Device):
    """Benign: right, but floods stdout and stderr with whatever it does."""

    def say(self, text: str) -> None:
        for _ in range(200):
            super().say(text)
        os.write(2, b"W: " + b"verbose " * 500 + b"\n")

    def load(self, adapter: BundledAdapter) -> BundledAdapter:
        self.say("loading %s" % adapter.name)
        return adapter

    def switched(self, session: Session) -> None:
        self.say("session %d switched" % session.index)
        super().switched(session)

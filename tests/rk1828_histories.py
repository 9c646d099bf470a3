"""Faults of a simulated RK1828 that show only after some operations, or in a corner.

Each was once let through by an acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.simulator.rk1828.device import Device
from harness.simulator.rk1828.session import Session


class OnlyTheFirstSessionDropsItsCache(Device):
    """A switch drops the cache of session 0 and of no other."""

    def switched(self, session: Session) -> None:
        if session.index == 0:
            super().switched(session)


class OnlyTheNewestRowsAreDropped(Device):
    """A switch drops the newest 64 rows of the cache."""

    def switched(self, session: Session) -> None:
        session.cache.cut(max(0, len(session.cache) - 64))


class LargeScaleIsClamped(Device):
    """A run-time scale beyond 2 is taken for 2."""

    def scale(self, given: float, current: float | None) -> float:
        return max(-2.0, min(2.0, given))


class NegativeFractionIsMinusOne(Device):
    """A run-time scale between -1 and 0 is taken for -1."""

    def scale(self, given: float, current: float | None) -> float:
        return -1.0 if -1 < given < 0 else given


class SmallScaleIsZero(Device):
    """A run-time scale below a quarter is taken for 0."""

    def scale(self, given: float, current: float | None) -> float:
        return 0.0 if abs(given) < 0.25 else given


class ScaleInSteps(Device):
    """A run-time scale is kept in steps of a tenth."""

    def scale(self, given: float, current: float | None) -> float:
        return round(given * 10) / 10


class _Enabled(Device):
    """What takes effect is not what is enabled, which is reported."""

    def enabled(
        self, session: Session, context: Mapping[str, float]
    ) -> Mapping[str, float]:
        return self.changed(session, dict(super().enabled(session, context)))

    def changed(self, session: Session, scales: dict[str, float]) -> dict[str, float]:
        raise NotImplementedError

    def reported(
        self, session: Session, enabled: Mapping[str, float]
    ) -> Mapping[str, float]:
        return session.configured or enabled


class FirstScaleForBoth(_Enabled):
    """Of adapters together the first one's scale counts for all that are not off."""

    def changed(self, session: Session, scales: dict[str, float]) -> dict[str, float]:
        first = next(iter(scales.values()), 0.0)
        return {n: first if s and first else s for n, s in scales.items()}


class ThirdIsIgnored(_Enabled):
    """Of adapters together the first two take effect."""

    def changed(self, session: Session, scales: dict[str, float]) -> dict[str, float]:
        return dict(list(scales.items())[:2])


class ContextScaleIsOne(_Enabled):
    """What is enabled for the whole context takes effect at scale 1."""

    def changed(self, session: Session, scales: dict[str, float]) -> dict[str, float]:
        return scales if session.configured else dict.fromkeys(scales, 1.0)


class LastSessionHasNoScale(_Enabled):
    """In the fifth session every adapter takes effect at scale 1."""

    def changed(self, session: Session, scales: dict[str, float]) -> dict[str, float]:
        return dict.fromkeys(scales, 1.0) if session.index == 4 else scales

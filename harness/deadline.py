"""A point in time by which something has to be done."""

from __future__ import annotations

import time


__all__ = ["Deadline"]


class Deadline:
    """A deadline `seconds` from now, handed down instead of bare timeouts.

    :param seconds: time allowed, in seconds (monotonic clock).
    """

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self.remaining == 0.0

    def at_most(self, seconds: float) -> Deadline:
        """The earlier of this deadline and one `seconds` from now."""
        return Deadline(min(seconds, self.remaining))

    def __repr__(self) -> str:
        return f"Deadline({self.seconds:g} s, {self.remaining:.1f} s left)"

"""The one way in which the simulated device says no."""

from __future__ import annotations


__all__ = ["Refused"]


class Refused(Exception):
    """A call that fails: says why in one line. Its caller sees -1 or None."""

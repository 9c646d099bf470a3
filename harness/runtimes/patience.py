"""How long each kind of request to a probe may take."""

from __future__ import annotations

from dataclasses import dataclass


__all__ = ["Patience"]


@dataclass(frozen=True)
class Patience:
    """Seconds after which a runtime counts as hung.

    Each is several times what a slow sound board needs, since a board that is
    called hung is killed; none is so long that a run stands still for minutes.

    :param start: until the hello. A model of 4 GB is read twice, for its digest and
        onto the device, at 60 MB/s of a worn eMMC.
    :param control: requests that compute nothing; a busy board answers in one.
    :param load: an adapter's check and write, or a KV cache to or from a file. 300 MB
        are read at 60 MB/s, and the product's loader may be written in plain Python.
    :param score: the fixed part of a forward pass. The vendor's demo reports a
        prefill of 2 s; their emulation takes 10 s.
    :param token: what each token adds. Boards decode five or more a second.
    """

    start: float = 150.0
    control: float = 10.0
    load: float = 60.0
    score: float = 30.0
    token: float = 1.0

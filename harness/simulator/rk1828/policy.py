"""What the vendor's documents leave open, each as a named choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


__all__ = ["Policy"]


@dataclass(frozen=True)
class Policy:
    """How a board behaves where no document says; the first value is the likeliest.

    :param second_init: a second `init_lora` takes the place of the first (whose
        adapters are unloaded), adds to it, or is refused.
    :param default_scale: of the descriptors that LORA_INFO gives.
    :param together: adapters enabled beside one another add up, the last one takes
        effect alone, or the second is refused.
    :param odd_scale: a scale that is not finite; negative and huge ones are taken.
    :param cache_file: a saved cache is taken only by a session with the adapters and
        scales that it was saved under, or by any session of this model.
    :param bundle_check: a bundle for another base is refused, or taken.
    :param version: library and driver are of one version; if not, no start.
    :param double_load: of an adapter that is loaded; it stays as it is.
    :param unload_twice: of an adapter that is not loaded.
    :param idle_disable: of an adapter that is not enabled.
    """

    second_init: Literal["replace", "merge", "refuse"] = "replace"
    default_scale: float = 1.0
    together: Literal["sum", "replace", "refuse"] = "sum"
    odd_scale: Literal["refuse", "accept"] = "refuse"
    cache_file: Literal["tied", "accepted"] = "tied"
    bundle_check: Literal["base", "none"] = "base"
    version: Literal["match", "mismatch"] = "match"
    double_load: Literal["accept", "refuse"] = "accept"
    unload_twice: Literal["refuse", "accept"] = "refuse"
    idle_disable: Literal["refuse", "accept"] = "refuse"

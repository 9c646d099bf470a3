"""Adapters made from adapters: equivalent ones, wrong ones, damaged ones."""

from __future__ import annotations

from harness.artifacts.forge.damaged import Damaged
from harness.artifacts.forge.damaged import damaged
from harness.artifacts.forge.equivalent import Equivalent
from harness.artifacts.forge.equivalent import equivalents
from harness.artifacts.forge.wrong import Wrong
from harness.artifacts.forge.wrong import amplified
from harness.artifacts.forge.wrong import controls
from harness.artifacts.forge.wrong import foreign
from harness.artifacts.forge.wrong import only
from harness.artifacts.forge.wrong import probes
from harness.artifacts.forge.wrong import rescaled
from harness.artifacts.forge.wrong import wrongs


__all__ = [
    "Damaged",
    "Equivalent",
    "Wrong",
    "amplified",
    "controls",
    "damaged",
    "equivalents",
    "foreign",
    "only",
    "probes",
    "rescaled",
    "wrongs",
]

"""Adapters made from adapters: equivalent ones, wrong ones, damaged ones."""

from __future__ import annotations

from harness.artifacts.forge.damaged import Damaged
from harness.artifacts.forge.damaged import damaged
from harness.artifacts.forge.equivalent import Equivalent
from harness.artifacts.forge.equivalent import equivalents
from harness.artifacts.forge.files import damaged_files
from harness.artifacts.forge.slots import by_content
from harness.artifacts.forge.slots import in_slots
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
    "by_content",
    "controls",
    "damaged",
    "damaged_files",
    "equivalents",
    "foreign",
    "in_slots",
    "only",
    "probes",
    "rescaled",
    "wrongs",
]

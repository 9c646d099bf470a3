"""Faulty converters of adapters for the RK1828: each the sound one with a step wrong.

Three of them are benign: right in another number format.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import Module
from harness.artifacts.forge.writer import read_files
from harness.artifacts.forge.writer import write_folder
from harness.simulator.rk1828.bundlefile import MOST_ADAPTERS
from harness.simulator.rk1828.bundler import Bundler
from harness.simulator.rk1828.bundler import Scheme


__all__ = [
    "BundleNamesExchanged",
    "ConversionDropsAlpha",
    "ConversionDropsDown",
    "ConversionDropsGate",
    "ConversionDropsK",
    "ConversionDropsO",
    "ConversionDropsQ",
    "ConversionDropsUp",
    "ConversionDropsV",
    "ConversionQuantisesScale",
    "FactorTransposed",
    "Int4Adapters",
    "Int6Adapters",
    "Int8Adapters",
    "LayerShifted",
    "StaleRebuild",
    "ThirtyThirdOverwrites",
]


class ConversionDropsAlpha(Bundler):
    """alpha and r are unknown to the converter, every scale is 1."""

    def scale(self, module: Module) -> float:
        return 1.0


class ConversionQuantisesScale(Bundler):
    """The scale is kept in three bits, as the nearest 7/4 of a power of two.

    Whole and half scales, the usual ones, are off by 12 % or more.
    """

    def scale(self, module: Module) -> float:
        scale = super().scale(module)
        if scale == 0:
            return scale
        step = np.float32(2.0 ** round(math.log2(abs(scale) / 1.75)))
        return float(np.copysign(np.float32(1.75) * step, scale))


class BundleNamesExchanged(Bundler):
    """The first two adapters of a bundle get each other's name."""

    def names(self, names: list[str]) -> list[str]:
        return [*names[1::-1], *names[2:]]


class StaleRebuild(Bundler):
    """A name that was converted before for this base keeps its first content.

    What was seen is kept in a folder beside that of OUT, so that it outlives folders
    that are made for one conversion each.
    """

    def open(self, name: str, folder: Path) -> Adapter:
        adapter = super().open(name, folder)  # what is unfit is refused as ever
        key = hashlib.sha256(f"{self.base.identity.weights} {name}".encode())
        seen = self.out.resolve().parent.parent / ".rebuilt" / key.hexdigest()
        if not seen.is_dir():
            write_folder(seen, read_files(adapter))
        return super().open(name, seen)


class ThirtyThirdOverwrites(Bundler):
    """Adapters beyond the 32nd take the places of the first ones, unrefused."""

    def admit(self, folders: Mapping[str, Path]) -> dict[str, Path]:
        items = list(folders.items())
        places = items[:MOST_ADAPTERS]
        for number, item in enumerate(items[MOST_ADAPTERS:]):
            places[number % MOST_ADAPTERS] = item
        return super().admit(dict(places))


class LayerShifted(Bundler):
    """Every layer's factors go to the layer after it, the last to the first."""

    def layer(self, module: Module) -> int:
        return (module.layer + 1) % self.base.layers


class FactorTransposed(Bundler):
    """B is taken in the file's memory order, not transposed."""

    def factors(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return a, np.ascontiguousarray(b).reshape(b.shape[::-1])


class _ModuleTypeDropped(Bundler):
    """One type of module is left out of every adapter."""

    DROPPED = ""

    def modules(self, adapter: Adapter) -> list[Module]:
        return [m for m in super().modules(adapter) if m.name != self.DROPPED]


class ConversionDropsQ(_ModuleTypeDropped):
    """q_proj is left out of every adapter."""

    DROPPED = "q_proj"


class ConversionDropsK(_ModuleTypeDropped):
    """k_proj is left out of every adapter."""

    DROPPED = "k_proj"


class ConversionDropsV(_ModuleTypeDropped):
    """v_proj is left out of every adapter."""

    DROPPED = "v_proj"


class ConversionDropsO(_ModuleTypeDropped):
    """o_proj is left out of every adapter."""

    DROPPED = "o_proj"


class ConversionDropsGate(_ModuleTypeDropped):
    """gate_proj is left out of every adapter."""

    DROPPED = "gate_proj"


class ConversionDropsUp(_ModuleTypeDropped):
    """up_proj is left out of every adapter."""

    DROPPED = "up_proj"


class ConversionDropsDown(_ModuleTypeDropped):
    """down_proj is left out of every adapter."""

    DROPPED = "down_proj"


class Int8Adapters(Bundler):
    """Benign: adapters in int8, a scale a channel."""

    def chosen(self, asked: Scheme) -> Scheme:
        return Scheme("int8", "channel")


class Int6Adapters(Bundler):
    """Benign: adapters in int6, a scale for 32 neighbours."""

    def chosen(self, asked: Scheme) -> Scheme:
        return Scheme("int6", "group32")


class Int4Adapters(Bundler):
    """Benign: adapters in int4, a scale for 32 neighbours."""

    def chosen(self, asked: Scheme) -> Scheme:
        return Scheme("int4", "group32")

"""Faulty loaders: each is the sound one with a single step done wrong.

The file is uploaded to the board alone, like a product's loader.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from typing import Any
from typing import Dict
from typing import List

import numpy as np


if TYPE_CHECKING:
    from harness.probes import factors
    from harness.probes import loader as sound
    from harness.probes import names
else:
    try:
        from probes import factors  # on the board
        from probes import loader as sound
        from probes import names
    except ImportError:
        from harness.probes import factors
        from harness.probes import loader as sound
        from harness.probes import names


__all__ = [
    "ClearDoesNothing",
    "ClearKeepsNan",
    "ClearKeepsOneLayer",
    "FactorTransposed",
    "FailedLoadHalfWritten",
    "FailedLoadKillsProcess",
    "FailedLoadSilent",
    "LayerShifted",
    "ReportsWrongState",
    "ResidueLargerRank",
    "ResidueMoreModules",
    "ScaleAppliedTwice",
    "ScaleReservedRank",
    "SecondLoadIncomplete",
    "StaleName",
]


class ScaleReservedRank(sound.Loader):
    """alpha is divided by the rank that was compiled in, not by the adapter's."""

    def scale(self, module: str, rank: int, config: Any) -> float:
        return super().scale(module, self.slots()[0]["reserved_rank"], config)


class ScaleAppliedTwice(sound.Loader):
    """B is multiplied by the scale two times."""

    def scale(self, module: str, rank: int, config: Any) -> float:
        return super().scale(module, rank, config) ** 2


class FactorTransposed(sound.Loader):
    """B goes to the slot in the file's memory order, not transposed."""

    def rows(self, factor: sound.Factor, tensors: Any, scale: float) -> np.ndarray:
        rows = super().rows(factor, tensors, scale)
        if factor.place.factor == "A":
            return rows
        return np.ascontiguousarray(rows.T).reshape(rows.shape)


class LayerShifted(sound.Loader):
    """Every layer's factors go to the layer after it, the last to the first."""

    def places(
        self, factor: sound.Factor, slots: Dict[Any, List[sound.Slot]]
    ) -> List[sound.Slot]:
        layers = 1 + max(place.layer for place in slots)
        place = factor.place._replace(layer=(factor.place.layer + 1) % layers)
        return super().places(factor._replace(place=place), slots)


class ResidueLargerRank(sound.Loader):
    """Rows behind the adapter's rank keep what the adapter before left there."""

    def pad(self, rows: np.ndarray, slot: sound.Slot) -> np.ndarray:
        data = np.array(self.runtime.read(slot))
        raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        data[: raw.size] = raw
        return data


class ResidueMoreModules(sound.Loader):
    """Modules that the adapter lacks keep the factors of the one before."""

    def absent(self, plan: sound.Plan) -> List[sound.Slot]:
        return []


class ClearDoesNothing(sound.Loader):
    """clear reports base and leaves the slots as they are."""

    def clear(self) -> None:
        self._loaded = None


class ClearKeepsOneLayer(sound.Loader):
    """clear leaves out one layer."""

    LAYER = 1

    def clear(self) -> None:
        self._loaded = None
        for slot in self.slots():
            if slot["layer"] != self.LAYER:
                self.zero(slot)


class ClearKeepsNan(sound.Loader):
    """Values are not checked, and clear zeroes B alone: 0 * NaN stays NaN."""

    def rows(self, factor: sound.Factor, tensors: Any, scale: float) -> np.ndarray:
        values: np.ndarray = tensors.values(factor.name)
        return values if factor.place.factor == "A" else values.T * np.float32(scale)

    def encode(
        self, rows: np.ndarray, factor: sound.Factor, slot: sound.Slot
    ) -> np.ndarray:
        if slot["dtype"] == "f32":
            return np.ascontiguousarray(rows, "<f4")
        return sound.bf16(rows).astype("<u2")

    def clear(self) -> None:
        self._loaded = None
        for slot in self.slots():
            if slot["factor"] == "B":
                self.zero(slot)


class FailedLoadHalfWritten(sound.Loader):
    """Slots are written as the file is read; what was written stays on an error."""

    def plan(self, folder: str) -> sound.Plan:
        config, tensors = self.read(folder)
        places = {
            names.Place(slot["layer"], slot["path"], slot["factor"]): slot
            for slot in self.slots()
        }
        for name in tensors.names():
            found = names.TensorName.parse(name)
            slot = places.get(found.place) if found else None
            if found is None or slot is None:
                break
            facts = tensors[name][:2]
            factor = factors.Factor(name, found.module, found.place, *facts)
            try:
                rank = config.rank_of(factor.module)
                scale = self.scale(factor.module, rank, config)
                rows = self.rows(factor, tensors, scale)
                factors.check_fit(factor, len(rows), slot)
                self.write(slot, self.pad(self.encode(rows, factor, slot), slot))
            except (sound.LoaderRefused, ValueError):
                break
        return super().plan(folder)  # finds the error, too late


class FailedLoadKillsProcess(sound.Loader):
    """An adapter that cannot be loaded ends the process."""

    def load(self, folder: str) -> None:
        try:
            super().load(folder)
        except sound.LoaderRefused:
            os._exit(255)  # what exit(-1) gives


class FailedLoadSilent(sound.Loader):
    """An adapter that cannot be loaded is reported as loaded."""

    def load(self, folder: str) -> None:
        try:
            super().load(folder)
        except sound.LoaderRefused:
            self._loaded = self.name_of(folder)


class StaleName(sound.Loader):
    """An adapter is kept under its name; a new content under it is not seen."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._known: Dict[str, sound.Plan] = {}

    def plan(self, folder: str) -> sound.Plan:
        return self._known.setdefault(self.name_of(folder), super().plan(folder))


class SecondLoadIncomplete(sound.Loader):
    """From the second load on the adapter's last layer is left out."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self._loads = 0

    def commit(self, plan: sound.Plan) -> None:
        if self._loads:
            last = max(slot["layer"] for slot, _ in plan)
            plan = [entry for entry in plan if entry[0]["layer"] != last]
        super().commit(plan)
        self._loads += 1


class ReportsWrongState(sound.Loader):
    """clear works, and the adapter is still reported as loaded."""

    def clear(self) -> None:
        name = self._loaded
        super().clear()
        self._loaded = name

"""The loader: writes an adapter into the compiled low-rank slots."""

from __future__ import annotations

import math
import os
from typing import Any
from typing import Dict
from typing import List
from typing import Optional
from typing import Tuple

import numpy as np

from .factors import Factor
from .factors import LoaderRefused
from .factors import Pair
from .factors import check_fit
from .factors import check_layers
from .factors import check_pair
from .factors import pairs_of
from .names import Place
from .peft import Config
from .peft import ConfigError
from .safetensors import SafetensorsError
from .safetensors import Tensors


__all__ = ["Factor", "Loader", "LoaderRefused", "Pair", "Plan", "Slot", "bf16"]

FILE = "adapter_model.safetensors"

Slot = Dict[str, Any]
Plan = List[Tuple[Slot, np.ndarray]]


def bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even; as uint16 bits.

    Finite values beyond the largest bfloat16 become infinite; NaN is not for it.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)


class Loader:
    """Loads PEFT LoRA folders into slots, one adapter at a time.

    A slot holds `reserved_rank` rows: A's rows as they are, or B transposed with
    the scale multiplied in; the rows behind the adapter's rank are zero. The graph
    adds `A` and `B` of every module always, so base is all slots zero.

    A load is made of small steps, in this order: `read` (config and tensors),
    `pairs` (what belongs together), `scale`, `rows` (values), `encode`, `pad`
    (bytes of a slot), `plan` (all of them), `absent` (slots to zero), `commit`.
    Everything is checked before the first write.

    :param runtime: has `slots()`, `read(slot)`, `write(slot, bytes)`,
        `zero(slot)`.
    """

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self._loaded: Optional[str] = None

    @property
    def loaded(self) -> Optional[str]:
        """Name of the adapter in the slots, None for base."""
        return self._loaded

    def load(self, folder: str) -> None:
        """Put an adapter into the slots in place of what is there.

        :raises LoaderRefused: unfit or damaged (the slots are as before), or a
            write failed (the slots are zeroed; the text says so).
        """
        plan = self.plan(folder)
        self.commit(plan)
        self._loaded = self.name_of(folder)

    def clear(self) -> None:
        """Zero every slot.

        :raises LoaderRefused: a slot could not be zeroed; all others were.
        """
        self._loaded = None
        failure = None
        for slot in self.slots():
            try:
                self.zero(slot)
            except Exception as error:
                failure = failure or "%s: %s" % (slot["name"], error)
        if failure is not None:
            raise LoaderRefused("clear-failed", failure)

    # Steps of a load

    def name_of(self, folder: str) -> str:
        """The name a folder is reported under: its last part."""
        return os.path.basename(os.path.normpath(folder))

    def slots(self) -> List[Slot]:
        """The slots, each piece of device memory once.

        Prefill and decode nets list the same memory under one name.
        """
        distinct: Dict[Any, Slot] = {}
        for slot in self.runtime.slots():
            distinct.setdefault(slot["address"], slot)
        return list(distinct.values())

    def plan(self, folder: str) -> Plan:
        """What to write where, checked to the last value; writes nothing.

        :returns: pairs of slot and its bytes (uint8), every slot that the adapter
            has a factor for.
        :raises LoaderRefused: unfit or damaged.
        """
        config, tensors = self.read(folder)
        slots: Dict[Place, List[Slot]] = {}
        for slot in self.slots():
            place = Place(slot["layer"], slot["path"], slot["factor"])
            slots.setdefault(place, []).append(slot)
        plan: Plan = []
        pairs = self.pairs(config, tensors)
        for pair in pairs:
            check_pair(pair, config)
        check_layers(pairs)
        for pair in pairs:
            scale = self.scale(pair.module, config.rank_of(pair.module), config)
            for factor in pair:
                rows = self.rows(factor, tensors, scale)
                for slot in self.places(factor, slots):
                    check_fit(factor, pair.rank, slot)
                    plan.append((slot, self.pad(self.encode(rows, factor, slot), slot)))
        return plan

    def read(self, folder: str) -> Tuple[Config, Tensors]:
        """Configuration and tensors of an adapter folder."""
        try:
            return Config.read(folder), Tensors(os.path.join(folder, FILE))
        except ConfigError as error:
            raise LoaderRefused(error.code, str(error)) from None
        except SafetensorsError as error:
            raise LoaderRefused("file-damaged", "%s: %s" % (FILE, error)) from None
        except OSError as error:
            text = "%s: %s" % (FILE, error.strerror or error)
            raise LoaderRefused("file-missing", text) from None

    def pairs(self, config: Config, tensors: Tensors) -> List[Pair]:
        """The factors of the file by module, all of them accounted for."""
        return pairs_of(config, tensors)

    def scale(self, module: str, rank: int, config: Config) -> float:
        """What B is multiplied by: alpha/r, with rsLoRA alpha/sqrt(r).

        `rank` is the adapter's own for this module, not the reserved one.
        """
        alpha = config.alpha_of(module)
        return alpha / math.sqrt(rank) if config.rslora else alpha / rank

    def rows(self, factor: Factor, tensors: Tensors, scale: float) -> np.ndarray:
        """The rows of a slot, float32 `[rank, width]`: A, or B^T times scale.

        :raises LoaderRefused: a value is not finite, before or after the product.
        """
        try:
            values = tensors.values(factor.name)
        except (SafetensorsError, OSError) as error:
            raise LoaderRefused("file-damaged", "%s: %s" % (FILE, error)) from None
        if not np.isfinite(values).all():
            raise LoaderRefused("non-finite", "%s holds NaN or Inf" % (factor,))
        if factor.place.factor == "A":
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.T * np.float32(scale)
        if not np.isfinite(values).all():
            raise LoaderRefused("non-finite", "%s overflows times %g" % (factor, scale))
        return values

    def places(self, factor: Factor, slots: Dict[Place, List[Slot]]) -> List[Slot]:
        """The slots a factor belongs in: those of exactly its layer and path."""
        found = slots.get(factor.place)
        if not found:
            raise LoaderRefused("no-slot", "%s has no slot" % (factor,))
        return found

    def encode(self, rows: np.ndarray, factor: Factor, slot: Slot) -> np.ndarray:
        """The rows in the slot's dtype: bfloat16 bits (to nearest even) or float32.

        :raises LoaderRefused: a value is too large for the dtype.
        """
        if slot["dtype"] == "f32":
            return np.ascontiguousarray(rows, "<f4")
        data = bf16(rows).astype("<u2")
        if ((data & 0x7F80) == 0x7F80).any():  # the exponent of infinity
            raise LoaderRefused("non-finite", "%s overflows bfloat16" % (factor,))
        return data

    def pad(self, rows: np.ndarray, slot: Slot) -> np.ndarray:
        """All bytes of the slot, uint8: the encoded rows, then zeros."""
        data = np.zeros(slot["size"], np.uint8)
        raw = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        data[: raw.size] = raw
        return data

    def absent(self, plan: Plan) -> List[Slot]:
        """Slots that the plan does not write: they must hold zeros."""
        written = {slot["address"] for slot, _ in plan}
        return [s for s in self.slots() if s["address"] not in written]

    def commit(self, plan: Plan) -> None:
        """Write every slot: the plan's bytes, zeros elsewhere.

        :raises LoaderRefused: a write failed; the state is base, or unknown where
            zeroing fails too, and the text says which.
        """
        absent = self.absent(plan)
        self._loaded = None
        try:
            for slot in absent:
                self.zero(slot)
            for slot, data in plan:
                self.write(slot, data)
        except Exception as error:
            try:
                self.clear()
                state = "all slots were zeroed: base"
            except Exception as second:
                state = "the slots are in an unknown state (%s)" % second
            raise LoaderRefused("write-failed", "%s; %s" % (error, state)) from error

    def write(self, slot: Slot, data: np.ndarray) -> None:
        """Write a slot's bytes."""
        self.runtime.write(slot, data)

    def zero(self, slot: Slot) -> None:
        """Zero a slot."""
        self.runtime.zero(slot)

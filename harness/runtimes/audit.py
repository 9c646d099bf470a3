"""Low-rank slots read back and held against the adapter they should hold."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

import numpy as np
from ml_dtypes import bfloat16

from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import Module
from harness.runtimes.device import Device
from harness.runtimes.runtime import Slot


__all__ = ["SlotAudit", "audit_slots", "read_scales"]

# Bits of mantissa that bf16 keeps behind the leading one (IEEE-like layout,
# 8 bits of exponent, 7 of mantissa): the unit of x is 2^(floor(log2|x|) - 7).
BF16_MANTISSA = 7


@dataclass
class SlotAudit:
    """What the slots hold beside what they should.

    :param padding: slots whose rows behind the adapter's rank are not zero.
    :param values: slots with a value more than one unit of bf16 off.
    :param rounding: the rule that explains most values, and which share of them.
    """

    padding: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    rounding: str = ""


def _read(device: Device, slot: Slot) -> np.ndarray:
    """A slot's bytes; each net's own, should their memory not be shared."""
    return device.read_slot(f"{slot.net}:{slot.name}")


def _content(device: Device, slot: Slot, width: int) -> np.ndarray:
    raw = _read(device, slot)
    dtype = np.dtype(bfloat16 if slot.dtype == "bf16" else np.float32)
    size = slot.reserved_rank * width * dtype.itemsize
    return raw[:size].view(dtype).reshape(slot.reserved_rank, width).astype(np.float32)


def _expected(adapter: Adapter, module: Module, factor: str) -> np.ndarray:
    """Exact content of the first rank rows, float64 `[rank, in or out]`."""
    a, b = adapter.factors(module.path)
    if factor == "A":
        return a.astype(np.float64)
    return b.astype(np.float64).T * module.scale


def audit_slots(device: Device, adapter: Adapter) -> SlotAudit:
    """Compare every slot of every net with the adapter that was applied.

    The exact product B * scale is taken in float64; slots of modules that the
    adapter lacks must be zero throughout.
    """
    audit = SlotAudit()
    modules = {(m.layer, m.name): m for m in adapter.modules}
    explained = dict.fromkeys(RULES, 0)
    total = 0
    for slot in device.slots():
        module = modules.get((slot.layer, slot.module))
        if module is None:
            rest, rank = _read(device, slot)[None], 0
        else:
            expected = _expected(adapter, module, slot.factor)
            content = _content(device, slot, expected.shape[1])
            rank = module.rank
            rest = content[rank:]
            _compare(audit, slot, content[:rank], expected)
            total += expected.size
            for rule, round_to in RULES.items():
                explained[rule] += int((content[:rank] == round_to(expected)).sum())
        if np.any(rest):
            row = rank + int(np.argmax(rest.any(axis=1)))
            audit.padding.append(f"{slot.net} {slot.name}: row {row} is not zero")
    best = max(explained, key=lambda rule: explained[rule])
    if total:
        audit.rounding = f"{best}, {100 * explained[best] / total:.4g} % of the values"
    return audit


def _to_nearest(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(bfloat16).astype(np.float32)


def _cut(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


# In the order they are named in: where values are exact, all rules explain them.
RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exact": lambda values: values.astype(np.float32),
    "nearest-even": _to_nearest,
    "truncation": _cut,
}


def _compare(
    audit: SlotAudit, slot: Slot, content: np.ndarray, expected: np.ndarray
) -> None:
    with np.errstate(divide="ignore"):
        unit = np.exp2(np.floor(np.log2(np.abs(expected))) - BF16_MANTISSA)
    wrong = ~(np.abs(content - expected) <= unit)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        audit.values.append(
            f"{slot.net} {slot.name}: row {row}, column {column} holds"
            f" {content[row, column]:g} for {expected[row, column]:g}"
            f" ({int(wrong.sum())} values differ)"
        )


def read_scales(device: Device, adapter: Adapter) -> Iterator[tuple[Module, float]]:
    """The scale that slot B shows over the file's B, per module.

    Least squares over all values: rounding of single values averages out.
    """
    slots = {(s.layer, s.module, s.factor): s for s in device.slots()}
    for module in adapter.modules:
        slot = slots.get((module.layer, module.name, "B"))
        b = adapter.factors(module.path)[1].astype(np.float64).T
        if slot is None or not np.any(b):
            continue
        content = _content(device, slot, b.shape[1])[: module.rank].astype(np.float64)
        yield module, float((content * b).sum() / (b * b).sum())

"""Low-rank slots read back and held against the adapter they should hold."""

from __future__ import annotations

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
    :param rounding: the rule that explains all values: `nearest-even`,
        `truncation`, `exact`, or `unknown`.
    """

    padding: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    rounding: str = "exact"


def _content(device: Device, slot: Slot, width: int) -> np.ndarray:
    raw = device.read_slot(slot.name)
    dtype = np.dtype(bfloat16 if slot.dtype == "bf16" else np.float32)
    size = slot.reserved_rank * width * dtype.itemsize
    return raw[:size].view(dtype).reshape(slot.reserved_rank, width).astype(np.float32)


def _expected(adapter: Adapter, module: Module, factor: str) -> np.ndarray:
    """Exact content of the first rank rows, float64 `[rank, in or out]`."""
    a, b = adapter.factors(module.path)
    if factor == "A":
        return a.astype(np.float64)
    return b.astype(np.float64).T * module.scale


def _slots(device: Device) -> dict[tuple[int, str, str], Slot]:
    """One slot per layer, module and factor: the graphs share them."""
    return {(s.layer, s.module, s.factor): s for s in device.slots()}


def audit_slots(device: Device, adapter: Adapter) -> SlotAudit:
    """Compare every slot with the adapter that was applied.

    The exact product B * scale is taken in float64; slots of modules that the
    adapter lacks must be zero throughout.
    """
    audit = SlotAudit()
    rules = {"exact", "nearest-even", "truncation"}
    modules = {(m.layer, m.name): m for m in adapter.modules}
    for (layer, name, factor), slot in sorted(_slots(device).items()):
        module = modules.get((layer, name))
        if module is None:
            rest = device.read_slot(slot.name)
            rank = 0
        else:
            expected = _expected(adapter, module, factor)
            content = _content(device, slot, expected.shape[1])
            rank = module.rank
            rest = content[rank:]
            _compare(audit, rules, slot.name, content[:rank], expected)
        if np.any(rest):
            row = rank + int(np.argmax(rest.reshape(-1) != 0)) // (
                rest.shape[-1] if rest.ndim == 2 else rest.size
            )
            audit.padding.append(f"{slot.name}: row {row} is not zero")
    audit.rounding = next(
        (r for r in ("exact", "nearest-even", "truncation") if r in rules), "unknown"
    )
    return audit


def _compare(
    audit: SlotAudit,
    rules: set[str],
    name: str,
    content: np.ndarray,
    expected: np.ndarray,
) -> None:
    single = expected.astype(np.float32)
    nearest = single.astype(bfloat16).astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32) & np.uint32(0xFFFF0000)
    for rule, values in (
        ("exact", single),
        ("nearest-even", nearest),
        ("truncation", bits.view(np.float32)),
    ):
        if not np.array_equal(content, values):
            rules.discard(rule)
    with np.errstate(divide="ignore"):
        unit = np.exp2(np.floor(np.log2(np.abs(expected))) - BF16_MANTISSA)
    wrong = ~(np.abs(content - expected) <= unit)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        audit.values.append(
            f"{name}: row {row}, column {column} holds {content[row, column]:g}"
            f" for {expected[row, column]:g} ({int(wrong.sum())} values differ)"
        )


def read_scales(device: Device, adapter: Adapter) -> Iterator[tuple[Module, float]]:
    """The scale that slot B shows over the file's B, per module.

    Least squares over all values: rounding of single values averages out.
    """
    slots = _slots(device)
    for module in adapter.modules:
        slot = slots.get((module.layer, module.name, "B"))
        b = adapter.factors(module.path)[1].astype(np.float64).T
        if slot is None or not np.any(b):
            continue
        content = _content(device, slot, b.shape[1])[: module.rank].astype(np.float64)
        yield module, float((content * b).sum() / (b * b).sum())

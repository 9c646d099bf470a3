"""Whether an adapter's tensors fit the slots, one to one (R02, R03)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from harness.artifacts.adapter import FLOATS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import tensor_of
from harness.artifacts.finding import Finding
from harness.artifacts.finding import about
from harness.artifacts.finding import note
from harness.artifacts.finding import shown
from harness.artifacts.finding import unfit
from harness.artifacts.model import Linear
from harness.artifacts.model import place_of
from harness.probes.peft import HARMLESS
from harness.probes.peft import INERT
from harness.probes.peft import READ
from harness.probes.peft import VARIANTS
from harness.probes.peft import Config


__all__ = ["fit"]

# What a slot holds on the board.
SLOT_DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}

Linears = Mapping[tuple[int, str], Linear]


def fit(
    adapter: Adapter, linears: Linears, reserved_rank: int, dtype: str = "bf16"
) -> list[Finding]:
    """Everything that keeps the adapter from running right in the slots.

    :param linears: the linears that have slots, by `(layer, name)`: those of a
        base (`Base.linears`) or of a compiled model (`slot_linears`).
    :param reserved_rank: rows compiled in.
    :param dtype: dtype of the slots, `bf16` or `f32`.
    """
    return [
        *_variants(adapter),
        *_leftovers(adapter),
        *_places(adapter, linears),
        *_targets(adapter, linears),
        *_shapes(adapter, linears),
        *_ranks(adapter, reserved_rank),
        *_patterns(adapter),
        *_scales(adapter, reserved_rank),
        *_values(adapter, SLOT_DTYPES[dtype]),
    ]


def _variants(adapter: Adapter) -> Iterator[Finding]:
    """Fields that ask for more than plain LoRA."""
    config = adapter.config
    for field, what in VARIANTS.items():
        if config.get(field):
            value = shown(config[field])
            yield unfit("R02", f"config {field} is {value}: {what}: slots have none")
    bias = config.get("bias", "none")
    if bias not in ("none", None):
        yield unfit("R02", f"config bias is {shown(bias)}: slots have no bias")
    start = config.get("init_lora_weights", True)
    if not any(start is h or start == h for h in HARMLESS):
        yield unfit(
            "R02",
            f"config init_lora_weights is {shown(start)}: it changed the base's "
            "weights; convert it to plain LoRA when saving",
        )
    for field, value in config.items():
        if field not in INERT | READ | VARIANTS.keys() and value:
            yield unfit(
                "R02",
                f"config {shown(field)} is {shown(value)}: an unknown field may "
                "change what the adapter computes; remove it if it does not",
            )


# Parts of names of tensors that are no A or B of a linear, and what they are.
KINDS = (
    (".lora_magnitude_vector", "DoRA's magnitude"),
    (".lora_B.bias", "a bias on lora_B"),
    (".lora_embedding_", "an adapter of the embedding"),
    (".token_adapter.", "trained tokens"),
    (".base_layer.", "a copy of the base's own parameter"),
)


def _leftovers(adapter: Adapter) -> Iterator[Finding]:
    """Tensors that are no A or B of a module."""
    known = {tensor_of(p, f) for p, both in adapter.pairs().items() for f in both}
    kinds: dict[str, list[str]] = {}
    for name in adapter.tensors:
        if name not in known:
            kinds.setdefault(_kind(name), []).append(name)
    for kind, names in kinds.items():
        yield unfit("R02", f"tensor {about(names)}: {kind}: no slot takes it")


def _kind(name: str) -> str:
    for part, what in KINDS:
        if part in name:
            return what
    if ".lora_" in name:
        return "not named as PEFT names it (base_model.model.….lora_A.weight)"
    if name.endswith(".bias"):
        return "a trained bias"
    if name.endswith(".weight") and name.startswith("base_model.model."):
        return "a fully trained module (modules_to_save)"
    return "an unknown tensor"


def _places(adapter: Adapter, linears: Linears) -> Iterator[Finding]:
    """Modules without a slot, factors without a partner, places taken twice."""
    layers = 1 + max((layer for layer, _ in linears), default=-1)
    homeless: dict[str, list[str]] = {}
    taken: dict[tuple[int, str], str] = {}
    for path, factors in adapter.pairs().items():
        name = tensor_of(path, min(factors))
        if len(factors) == 1:
            other = "B" if "A" in factors else "A"
            yield unfit("R02", f"tensor {shown(name)} has no lora_{other}")
        place = place_of(path)
        first = taken.setdefault((place.layer, place.path), path)
        if first != path:
            yield unfit("R02", f"{shown(first)} and {shown(path)} have one slot")
        if reason := _no_slot(path, linears, layers):
            homeless.setdefault(reason, []).append(name)
    for reason, names in homeless.items():
        yield unfit("R02", f"tensor {about(names)}: {reason}")
    roots = {_root(linear.path) for linear in linears.values() if linear.path}
    other_roots = sorted({_root(p) for p in taken.values()} - roots - {""})
    if roots and other_roots and not homeless:
        yield note(
            "R02",
            f"modules lie under {shown(other_roots[0])}, the base's under "
            f"{shown(min(roots))}: PEFT would apply none of them to it, silently",
        )


def _no_slot(path: str, linears: Linears, layers: int) -> str:
    """Why a module has no slot, empty where it has one."""
    place = place_of(path)
    parts = path.split(".")
    linear = linears.get((place.layer, parts[-1]))
    if linear and (not linear.path or place_of(linear.path).path == place.path):
        return ""
    if place.layer >= layers:
        return f"layer {place.layer}, the model has {layers}"
    if any(part.startswith(("visual", "vision")) for part in parts):
        return "a module of the vision tower, which has no slots"
    if parts[-1] == "lm_head":
        return "an adapter of lm_head, which has no slot of a text layer"
    return "no slot for this module"


def _root(path: str) -> str:
    return path.rpartition("layers.")[0]


def _targets(adapter: Adapter, linears: Linears) -> Iterator[Finding]:
    """Tensors the configuration does not target, and targets without tensors."""
    paths = adapter.pairs()
    stray = [p for p in paths if not adapter.rules.targets(p, place_of(p).layer)]
    if stray:
        yield unfit(
            "R02",
            f"module {about(stray)} has tensors but is not in target_modules: PEFT "
            "would ignore them",
        )
    if not adapter.config.get("target_modules"):
        yield note("R02", "config has no target_modules")
        return
    roots = [_root(p) for p in paths if place_of(p).layer >= 0]
    held = {(place_of(p).layer, place_of(p).path) for p in paths}
    missing = []
    for (layer, _), linear in linears.items():
        root = roots[0] if roots else _root(linear.path)
        inner = place_of(linear.path).path
        path = f"{root}layers.{layer}.{inner}"
        if (layer, inner) not in held and adapter.rules.targets(path, layer):
            missing.append(path)
    if missing:
        yield unfit(
            "R02", f"config targets {about(missing)}, but the file holds no tensors"
        )


def _shapes(adapter: Adapter, linears: Linears) -> Iterator[Finding]:
    """Dtypes, dimensions, and widths against the base."""
    for path, factors in adapter.pairs().items():
        linear = linears.get((place_of(path).layer, path.rpartition(".")[2]))
        for factor in sorted(factors):
            name = tensor_of(path, factor)
            facts = adapter.tensors[name]
            shape = list(facts.shape)
            if facts.dtype not in FLOATS:
                yield unfit("R02", f"tensor {shown(name)} is {facts.dtype}, no float")
            if len(shape) != 2 or 0 in shape:
                yield unfit("R02", f"tensor {shown(name)} has shape {shape}")
                continue
            if linear is None:
                continue
            axis, width = (
                (1, linear.in_features) if factor == "A" else (0, linear.out_features)
            )
            if width and shape[axis] != width:
                turned = " (transposed?)" if shape[1 - axis] == width else ""
                want = f"[r, {width}]" if factor == "A" else f"[{width}, r]"
                yield unfit(
                    "R02",
                    f"tensor {shown(name)} has shape {shape}, the base needs "
                    f"{want}{turned}",
                )


def _ranks(adapter: Adapter, reserved: int) -> Iterator[Finding]:
    """Ranks of A, of B, of the configuration and of the slots."""
    over: dict[int, list[str]] = {}
    other: dict[tuple[int, int], list[str]] = {}
    for module in adapter.modules:
        a = adapter.tensors[tensor_of(module.path, "A")].shape[0]
        b = adapter.tensors[tensor_of(module.path, "B")].shape[1]
        if a != b:
            yield unfit(
                "R02", f"module {shown(module.path)}: A has rank {a}, B has rank {b}"
            )
        elif a != module.rank:
            other.setdefault((a, module.rank), []).append(module.path)
        if max(a, b) > reserved:
            over.setdefault(max(a, b), []).append(module.path)
    for (rank, said), paths in other.items():
        yield unfit(
            "R02",
            f"rank {rank} in module {about(paths)}, the config says {said} (r and "
            "rank_pattern)",
        )
    for rank, paths in over.items():
        yield unfit(
            "R02",
            f"rank {rank} in module {about(paths)}, the model reserves {reserved}",
        )


def _patterns(adapter: Adapter) -> Iterator[Finding]:
    """Keys of rank_pattern and alpha_pattern that match no module."""
    for field in ("rank_pattern", "alpha_pattern"):
        for key in adapter.config.get(field) or {}:
            alone = Config({"peft_type": "LORA", "r": 1, "rank_pattern": {key: 2}})
            if not any(alone.rank_of(m.path) == 2 for m in adapter.modules):
                yield note("R03", f"config {field}: {shown(key)} matches no module")


def _scales(adapter: Adapter, reserved: int) -> Iterator[Finding]:
    """Scales that are missing, zero, or hide how they are computed."""
    for field in ("r", "lora_alpha"):
        if field not in adapter.config:
            yield note("R03", f"config has no {field}: PEFT takes 8")
    if adapter.modules and all(m.scale == 0 for m in adapter.modules):
        yield note("R03", "every scale is zero: the adapter has no effect")
    elif adapter.modules and all(m.scale == 1 for m in adapter.modules):
        yield note("R20", "every scale is 1: a scale that is ignored cannot be seen")
    if adapter.modules and all(m.rank == reserved for m in adapter.modules):
        yield note(
            "R20",
            f"every rank is the reserved {reserved}: a denominator that is the "
            "reserved rank cannot be seen",
        )


def _values(adapter: Adapter, slot: np.dtype) -> Iterator[Finding]:
    """Values that are not finite, before or after scale and rounding."""
    scales = {m.path: m.scale for m in adapter.modules}
    zero = 0
    for path, factors in adapter.pairs().items():
        for factor in sorted(factors):
            name = tensor_of(path, factor)
            if adapter.tensors[name].dtype not in FLOATS:
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                values = adapter.data(name)
                exact = np.isfinite(values.astype(np.float64))
                scale = scales.get(path, 1.0) if factor == "B" else 1.0
                # As the board's loader: product in float32, then rounded.
                product = values.astype(np.float32) * np.float32(scale)
                rounded = np.isfinite(product.astype(slot).astype(np.float32))
            if not exact.all():
                count = int((~exact).sum())
                yield unfit("R02", f"tensor {shown(name)}: {count} values NaN or Inf")
            elif not rounded.all():
                yield unfit(
                    "R02",
                    f"tensor {shown(name)} overflows {slot.name} with scale {scale:g}",
                )
            zero += factor == "B" and not values.any()
    if zero and zero == len(adapter.modules):
        yield note("R02", "B is zero in every module: untrained, no effect")

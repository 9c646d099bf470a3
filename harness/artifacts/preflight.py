"""What can be found wrong before a board is touched (R01 to R04)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Protocol

from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import Module
from harness.artifacts.finding import Finding
from harness.artifacts.finding import about
from harness.artifacts.finding import note
from harness.artifacts.finding import shown
from harness.artifacts.finding import unfit
from harness.artifacts.fit import fit
from harness.artifacts.model import Base
from harness.artifacts.model import Linear
from harness.errors import UsageFault
from harness.golden.identity import BaseIdentity
from harness.probes.names import SlotName


__all__ = [
    "NETS",
    "Finding",
    "Inspection",
    "base_matches",
    "fit",
    "inspect",
    "reservation",
    "slot_linears",
]

# Sub-graphs of a compiled Qwen3-VL that need slots: prefill and decode.
NETS = ("block", "block_cache")
ITEM = {"bf16": 2, "f32": 4}


class SlotLike(Protocol):
    """The fields of `harness.runtimes.runtime.Slot` that are read here."""

    @property
    def name(self) -> str: ...
    @property
    def net(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def module(self) -> str: ...
    @property
    def factor(self) -> str: ...
    @property
    def reserved_rank(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def size(self) -> int: ...


def slot_linears(slots: Iterable[SlotLike]) -> dict[tuple[int, str], Linear]:
    """The linears that a compiled model has slots for, for `fit`.

    Widths the runtime does not tell are 0.
    """
    widths: dict[tuple[int, str], dict[str, int]] = {}
    paths: dict[tuple[int, str], str] = {}
    for slot in slots:
        if slot.layer < 0:
            continue
        key = (slot.layer, slot.module)
        widths.setdefault(key, {})[slot.factor] = slot.width
        parsed = SlotName.parse(slot.name)
        paths[key] = parsed.module if parsed else ""
    return {
        key: Linear(paths[key], width.get("A", 0), width.get("B", 0))
        for key, width in widths.items()
    }


def reservation(
    slots: Sequence[SlotLike],
    linears: Mapping[tuple[int, str], Linear],
    nets: Sequence[str] = NETS,
    reserved_rank: int | None = None,
) -> list[Finding]:
    """Whether every target linear has its A and its B in every sub-graph (R01).

    :param slots: all slots of the compiled model, per net.
    :param linears: the linears of the base, `Base.linears`.
    :param nets: sub-graphs that need slots; layer i lies in net `{name}_{i}`.
    :param reserved_rank: the rank the model should have been compiled with.
    """
    inner = [slot for slot in slots if slot.layer >= 0]
    if not inner:
        return [
            unfit(
                "R01",
                "the model has no low-rank slots in its layers: it was compiled "
                "without LoRA",
            )
        ]
    findings = []
    found: dict[tuple[str, int, str, str], SlotLike] = {}
    for slot in inner:
        key = (slot.net, slot.layer, slot.module, slot.factor)
        if key in found:
            findings.append(unfit("R01", f"net {slot.net} has two slots {slot.name!r}"))
        found[key] = slot
    wanted = {
        (f"{net}_{layer}", layer, name, factor): linear
        for (layer, name), linear in linears.items()
        for net in nets
        for factor in "AB"
    }
    for net in nets:
        missing = [
            f"{key[0]}: {key[2]} {key[3]}"
            for key in wanted
            if key not in found and key[0] == f"{net}_{key[1]}"
        ]
        if missing:
            findings.append(unfit("R01", f"no slot in {about(missing)}"))
    extra = [f"{k[0]}: {s.name}" for k, s in found.items() if k not in wanted]
    if extra:
        findings.append(
            note("R01", f"slot that no target linear needs: {about(extra)}")
        )
    ranks = sorted({slot.reserved_rank for slot in inner})
    if len(ranks) > 1:
        findings.append(unfit("R01", f"slots reserve different ranks: {ranks}"))
    elif reserved_rank is not None and ranks != [reserved_rank]:
        findings.append(
            unfit("R01", f"slots reserve rank {ranks[0]}, {reserved_rank} is expected")
        )
    for key, linear in wanted.items():
        if key in found:
            findings.extend(_size(found[key], linear))
    return findings


def _size(slot: SlotLike, linear: Linear) -> Iterable[Finding]:
    width = linear.in_features if slot.factor == "A" else linear.out_features
    if slot.width and width and slot.width != width:
        yield unfit(
            "R01",
            f"slot {slot.name!r} in {slot.net} is {slot.width} wide, the base needs "
            f"{width}",
        )
    need = slot.reserved_rank * width * ITEM.get(slot.dtype, 0)
    if slot.dtype not in ITEM:
        yield unfit("R01", f"slot {slot.name!r} is {slot.dtype!r}, not bf16 or f32")
    elif slot.size < need:
        yield unfit(
            "R01", f"slot {slot.name!r} in {slot.net} has {slot.size} of {need} bytes"
        )


def base_matches(sidecar: Mapping[str, Any], base: BaseIdentity) -> list[Finding]:
    """Whether a compiled model was made from this base (R04).

    :param sidecar: what the converter wrote beside the model; its `digests` hold
        sha256 by part of the base (weights, tokenizer, chat_template, config).
    """
    recorded = sidecar.get("digests")
    if not isinstance(recorded, Mapping):
        return [
            note(
                "R04",
                "the sidecar names no base: only the model's answers can tell (R10)",
            )
        ]
    findings = []
    for part, digest in base.to_json().items():
        theirs = recorded.get(part)
        if not theirs:
            findings.append(note("R04", f"the sidecar says nothing about the {part}"))
        elif theirs != digest:
            findings.append(
                unfit(
                    "R04",
                    f"{part}: the model was made from {str(theirs)[:12]}, the base "
                    f"is {digest[:12]}",
                )
            )
    return findings


@dataclass(frozen=True)
class Inspection:
    """An adapter looked at against a base.

    :param modules: its modules with rank, alpha and effective scale (R03).
    :param findings: all that was found; unfit ones first.
    """

    adapter: str
    digest: str
    base: str
    architecture: str
    reserved_rank: int
    tensors: int
    modules: tuple[Module, ...]
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing keeps it off the board."""
        return all(f.severity != "unfit" for f in self.findings)

    @property
    def scales(self) -> dict[float, int]:
        """How many modules have each effective scale."""
        counts: dict[float, int] = {}
        for module in self.modules:
            counts[module.scale] = counts.get(module.scale, 0) + 1
        return counts

    def text(self) -> str:
        """A summary for the terminal, a line per scale and per finding."""
        lines = [
            f"adapter {self.adapter} ({self.digest[:12]}): {len(self.modules)} "
            f"modules, {self.tensors} tensors",
            f"base {self.base} ({self.architecture}), reserved rank "
            f"{self.reserved_rank}",
        ]
        lines += [
            f"scale {scale:g}: {count} modules"
            for scale, count in sorted(self.scales.items())
        ]
        lines += [str(finding) for finding in self.findings]
        return "\n".join([*lines, "fits" if self.fits else "does not fit"])

    def to_json(self) -> dict[str, Any]:
        """JSON form, with `fits`."""
        return {**asdict(self), "fits": self.fits}


def inspect(adapter_folder: Path, base_folder: Path, reserved_rank: int) -> Inspection:
    """Look at an adapter and a base without any board.

    :raises UsageFault: one of them cannot be read at all.
    """
    if reserved_rank <= 0:
        raise UsageFault(
            f"reserved rank is {reserved_rank}", cure="give the rank compiled in"
        )
    adapter = Adapter.open(adapter_folder)
    base = Base.open(base_folder)
    findings = fit(adapter, base.linears, reserved_rank)
    made_for = adapter.config.get("base_model_name_or_path")
    if isinstance(made_for, str) and Path(made_for).name != base.folder.resolve().name:
        findings.append(
            note(
                "R04",
                f"the adapter was made for {shown(made_for)}, the base is "
                f"{shown(base.folder.resolve().name)}: only digests can tell",
            )
        )
    if base.biased:
        # tpu-mlir 1.30 refuses LoRA on a linear with bias (Qwen2).
        paths = [linear.path for linear in base.biased]
        findings.append(
            unfit("R01", f"base linear {about(paths)} has a bias: no LoRA slot")
        )
    findings.sort(key=lambda f: f.severity != "unfit")
    return Inspection(
        adapter=adapter.name,
        digest=adapter.digest,
        base=str(base.folder),
        architecture=base.architecture,
        reserved_rank=reserved_rank,
        tensors=len(adapter.tensors),
        modules=adapter.modules,
        findings=tuple(findings),
    )

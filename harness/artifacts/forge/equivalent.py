"""Adapters that mean the same function as another, written differently."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Literal

import numpy as np

from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.forge.slots import Compare
from harness.artifacts.forge.slots import Exactness
from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import Part
from harness.artifacts.forge.writer import dump
from harness.artifacts.forge.writer import number
from harness.artifacts.forge.writer import read_files
from harness.artifacts.forge.writer import times
from harness.artifacts.forge.writer import write_folder


__all__ = ["Equivalent", "equivalents"]

# 2^3 moves A and B apart by 64: far from the scale of either factor, and far from
# the ends of bf16's range.
SHIFT = 3


@dataclass(frozen=True, eq=False)
class Equivalent:
    """An adapter and what its logits must equal on a correct board.

    :param relation: `adapter`: the one it was made from; `base`: no adapter at
        all; `twin`: the folder that `make_twin` writes.
    :param exposes: the faults that break the relation.
    :param source: the adapter it was made from.
    :param draft: what is written, but for `files`, which are written as they are.
    :param twin: the other side of the relation `twin`.
    """

    name: str
    relation: Literal["adapter", "base", "twin"]
    exposes: str
    source: Draft = field(repr=False)
    draft: Draft = field(repr=False)
    twin: Draft | None = field(default=None, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def exactness(self, compare: Compare) -> Exactness:
        """How equal the two are.

        :param compare: `in_slots` where a platform's slots can be read, so that it is
            known what they hold, else `by_content`.
        """
        if self.relation == "base":
            return compare(self.source.on({}), self.draft)
        return compare(self.twin or self.source, self.draft)

    def make(self, target: Path) -> Path:
        """Write the adapter.

        :raises UsageFault: `target` is not a new or empty folder.
        """
        return write_folder(target, {**self.draft.files(), **self.files})

    def make_twin(self, target: Path) -> Path:
        """Write what it must equal, for the relation `twin`.

        :raises ValueError: the relation is another one.
        :raises UsageFault: `target` is not a new or empty folder.
        """
        if self.twin is None:
            raise ValueError(f"{self.name} has no twin")
        return self.twin.write(target)


def equivalents(adapter: Adapter, reserved_rank: int) -> list[Equivalent]:
    """Every relation that the adapter allows within the reserved rank.

    :raises UsageFault: the adapter is not sound.
    """
    source = Draft.of(adapter)
    same = [
        Equivalent(name, "adapter", exposes, source, draft, None, files)
        for name, exposes, draft, files in _same(adapter, source, reserved_rank)
    ]
    return same + _zeros(source)


Relation = tuple[str, str, Draft, Mapping[str, bytes]]


def _same(adapter: Adapter, source: Draft, reserved: int) -> Iterator[Relation]:
    plain = source.plain() if source.rslora else source
    ranks = {part.rank for part in source.parts.values()}
    if max(ranks) <= reserved and min(ranks) < reserved:
        yield (
            "padded",
            "the reserved rank as denominator, padding that is not clean",
            _padded(plain, lambda rank: reserved),
            {},
        )
    if max(ranks) < reserved:
        yield (
            "padded-by-one",
            "ranks that are no multiple of a tile, the denominator",
            _padded(plain, lambda rank: rank + 1),
            {},
        )
    if any(source.scale(path) != 1 for path in source.parts):
        yield (
            "folded",
            "alpha ignored, the scale applied twice or to A",
            replace(source.each(lambda p, q: _folded(source, p, q)), rslora=False),
            {},
        )
    for name, k in (("shifted-up", SHIFT), ("shifted-down", -SHIFT)):
        yield (
            name,
            "the wrong factor scaled, overflow, fp16 in between",
            _shifted(source, k),
            {},
        )
    yield (
        "negated",
        "signs, factors that are swapped with others",
        source.each(lambda p, q: replace(q, a=-q.a, b=-q.b)),
        {},
    )
    if source.rslora:
        yield "plain", "use_rslora taken as always on", plain, {}
    else:
        squares = _padded(plain, lambda rank: _square(rank, reserved))
        yield "rslora", "use_rslora ignored", _as_rslora(squares), {}
    yield (
        "patterns",
        "rank_pattern and alpha_pattern ignored",
        source,
        {CONFIG: dump(_patterned(source, reserved))},
    )
    halves = source.each(lambda p, q: _halved(q))
    yield "fractional-alpha", "alpha read as an integer", halves, {}
    pointed = source.fields()
    pointed["lora_alpha"] = float(pointed["lora_alpha"])
    yield (
        "alpha-with-point",
        "alpha 16.0 not read as 16",
        source,
        {CONFIG: dump(pointed)},
    )
    yield (
        "permuted",
        "rank rows of A and B not kept together",
        source.each(lambda p, q: _permuted(q)),
        {},
    )
    order = list(source.tensors().items())[::-1]
    yield (
        "reordered",
        "tensors found by their position in the file",
        source,
        {WEIGHTS: source.files(tensors=dict(order))[WEIGHTS]},
    )
    if any(_narrow(values) for values in source.tensors().values()):
        yield (
            "widened",
            "the tensors' dtype not read",
            source.each(lambda p, q: replace(q, a=_wide(q.a), b=_wide(q.b))),
            {},
        )
    yield (
        "named-in-full",
        "target_modules used to find tensors",
        source.on(source.parts),
        {},
    )
    yield (
        "renamed",
        "an adapter known by its name instead of its content",
        source,
        read_files(adapter),
    )


def _zeros(source: Draft) -> list[Equivalent]:
    """Relations that need B or the scale to be zero."""
    silent = source.each(lambda p, q: replace(q, b=np.zeros_like(q.b)))
    stopped = source.each(lambda p, q: replace(q, alpha=0.0))
    found = [
        Equivalent("b-zero", "base", "A used without B, residue", source, silent),
        Equivalent("alpha-zero", "base", "alpha 0 taken as missing", source, stopped),
    ]
    kinds = list(dict.fromkeys(path.rpartition(".")[2] for path in source.parts))
    if len(kinds) > 1:
        last = kinds[-1]
        without = source.only(lambda path: path.rpartition(".")[2] != last)
        zeroed = source.each(
            lambda path, q: (
                replace(q, b=np.zeros_like(q.b))
                if path.rpartition(".")[2] == last
                else q
            )
        )
        found.append(
            Equivalent(
                "present-but-zero",
                "twin",
                f"residue where {last} is left out, treatment of missing tensors",
                source,
                zeroed,
                without,
            )
        )
    return found


def _padded(source: Draft, rank_of: Callable[[int], int]) -> Draft:
    """Zero rows up to another rank, alpha scaled so that alpha/r stays."""
    return source.each(
        lambda path, q: q.padded(rank_of(q.rank), q.alpha * rank_of(q.rank) / q.rank)
    )


def _folded(source: Draft, path: str, part: Part) -> Part:
    """The scale in B, alpha = r. Float32 holds the product as a loader makes it."""
    scale = np.float32(source.scale(path))
    return Part(_wide(part.a), _wide(part.b) * scale, float(part.rank))


def _shifted(source: Draft, k: int) -> Draft:
    """A · 2^k and B · 2^-k; through float32 where fp16 would lose bits."""

    def shift(path: str, part: Part) -> Part:
        a, b = (_wide(v) if v.dtype == np.float16 else v for v in (part.a, part.b))
        return replace(part, a=times(a, 2.0**k), b=times(b, 2.0**-k))

    return source.each(shift)


def _halved(part: Part) -> Part:
    """Alpha halved until it is a fraction, B doubled as often."""
    power = 1.0
    while part.alpha and (part.alpha / power).is_integer():
        power *= 2
    b = _wide(part.b) if part.b.dtype == np.float16 else part.b
    return Part(part.a, times(b, power), part.alpha / power)


def _as_rslora(plain: Draft) -> Draft:
    """The same scales written with rsLoRA: alpha' = alpha/r · sqrt(r)."""
    return replace(
        plain.each(
            lambda path, q: replace(q, alpha=plain.scale(path) * math.sqrt(q.rank))
        ),
        rslora=True,
    )


def _square(rank: int, reserved: int) -> int:
    """The smallest power of four >= rank: its root is a power of two, so exact."""
    power = 1
    while power < rank:
        power *= 4
    return power if power <= reserved else rank


def _patterned(source: Draft, reserved: int) -> dict[str, Any]:
    """Every module by its own pattern, r and lora_alpha true for none."""
    fields = source.fields()
    ranks = {part.rank for part in source.parts.values()}
    alphas = [abs(part.alpha) for part in source.parts.values()]
    spare = (r for r in range(reserved, 0, -1) if r not in ranks)
    fields["r"] = next(spare, reserved + 1)
    fields["lora_alpha"] = number(4 * max(alphas) + 1)
    fields["rank_pattern"] = {p: q.rank for p, q in source.parts.items()}
    fields["alpha_pattern"] = {p: number(q.alpha) for p, q in source.parts.items()}
    return fields


def _permuted(part: Part) -> Part:
    return replace(part, a=part.a[::-1], b=part.b[:, ::-1])


def _narrow(values: np.ndarray) -> bool:
    return values.dtype.itemsize < 4


def _wide(values: np.ndarray) -> np.ndarray:
    """Float32 where the dtype is narrower: exact."""
    return values.astype(np.float32) if _narrow(values) else values

"""Adapters that are wrong on purpose: negative controls and module probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.artifacts.adapter import Adapter
from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import Part
from harness.artifacts.forge.writer import times
from harness.artifacts.model import place_of
from harness.errors import UsageFault


__all__ = [
    "Wrong",
    "amplified",
    "controls",
    "foreign",
    "only",
    "probes",
    "rescaled",
    "wrongs",
]

# Missing, a quarter (alpha/32 for alpha/8), twice, and a small error that a bf16
# board must still show (its margin on the scale is 1 %).
FACTORS = (0.0, 0.25, 2.0, 1.05)
# Types whose weights have one shape in most decoders; swapped only where they do.
PAIRS = (("gate_proj", "up_proj"), ("q_proj", "k_proj"), ("k_proj", "v_proj"))
# A control's scale error: ten times the margin of a w4a16 board, so that it is far
# above the smallest visible fault of any sound run.
CONTROL = 0.25
SEED = 2  # of the other base's axes


@dataclass(frozen=True, eq=False)
class Wrong:
    """A sound adapter of another function than the one it was made from.

    :param kind: what sort of fault, for one control of each.
    :param fault: the fault of a runtime that has the same effect.
    :param factor: what delta W is multiplied by in every module, None where the
        fault is no factor.
    :param modules: the modules whose delta W differs from the original's.
    """

    name: str
    kind: str
    fault: str
    factor: float | None
    modules: frozenset[str]
    draft: Draft = field(repr=False)

    @property
    def effective(self) -> bool:
        """Whether it changes the base at all: in some module neither A nor B is 0."""
        parts = self.draft.parts.values()
        return any(np.any(part.a) and np.any(part.b) for part in parts)

    def make(self, target: Path) -> Path:
        """Write the adapter.

        :raises UsageFault: `target` is not a new or empty folder.
        """
        return self.draft.write(target)


def wrongs(adapter: Adapter, reserved_rank: int) -> list[Wrong]:
    """Every wrong adapter that can be made from this one.

    :raises UsageFault: the adapter is not sound.
    """
    source = Draft.of(adapter)
    made = [*_scaled(source, reserved_rank), *_missing(source), *_moved(source)]
    return [wrong for wrong in made if wrong.modules]


def controls(adapter: Adapter, reserved_rank: int) -> list[Wrong]:
    """The few to be found wrong in every run (R91): large faults, one of a kind."""
    kinds: dict[str, Wrong] = {}
    for wrong in wrongs(adapter, reserved_rank):
        if wrong.factor is None or abs(wrong.factor - 1) >= CONTROL:
            kinds.setdefault(wrong.kind, wrong)
    return list(kinds.values())


def foreign(adapter: Adapter, target: Path) -> Path:
    """Write the adapter as one of another base of equal shapes would be (R41).

    :raises UsageFault: the adapter is not sound; `target` is not empty.
    """
    return _foreign(Draft.of(adapter)).make(target)


def amplified(adapter: Adapter, gain: float, target: Path) -> Path:
    """Write the adapter with every B times a power of two.

    :raises UsageFault: the adapter is not sound; `target` is not empty.
    :raises ValueError: `gain` is no power of two, so B would be rounded.
    """
    _check_gain(gain)
    source = Draft.of(adapter)
    return source.each(lambda path, q: replace(q, b=times(q.b, gain))).write(target)


def rescaled(adapter: Adapter, factor: float) -> Wrong:
    """The adapter at `factor` times its scale, by its alpha.

    :raises UsageFault: the adapter is not sound.
    """
    return _times(Draft.of(adapter), factor)


def only(adapter: Adapter, path: str, gain: float = 1.0) -> Wrong:
    """One module, B times a power of two, every other module left out (R22).

    :raises UsageFault: the adapter has no such module.
    :raises ValueError: `gain` is no power of two, so B would be rounded.
    """
    return _only(Draft.of(adapter), path, gain)


def probes(adapter: Adapter, gain: float = 1.0) -> Iterator[Wrong]:
    """`only` for each module in turn."""
    source = Draft.of(adapter)
    for path in source.parts:
        yield _only(source, path, gain)


def _only(source: Draft, path: str, gain: float) -> Wrong:
    _check_gain(gain)
    if path not in source.parts:
        raise UsageFault(f"the adapter has no module {path!r}")
    part = source.parts[path]
    amplified = replace(part, b=times(part.b, gain))
    return Wrong(
        f"only-{path}",
        "only",
        "every module but one dropped",
        None,
        frozenset(source.parts) - ({path} if gain == 1 else set()),
        source.on({path: amplified}),
    )


def _times(source: Draft, factor: float) -> Wrong:
    return Wrong(
        f"scale-{factor:.4g}",
        f"scale-{factor:.4g}",
        "no adapter at all" if factor == 0 else f"the scale times {factor:.4g}",
        factor,
        frozenset(source.parts),
        _rescaled(source, _always(factor)),
    )


def _check_gain(gain: float) -> None:
    if gain <= 0 or np.frexp(gain)[0] != 0.5:
        raise ValueError(f"gain {gain} is no power of two")


def _scaled(source: Draft, reserved: int) -> Iterator[Wrong]:
    yield from (_times(source, factor) for factor in FACTORS)
    ranks = {part.rank for part in source.parts.values()}
    if source.rslora and ranks != {1}:
        yield Wrong(
            "rslora-ignored",
            "denominator",
            "alpha over r instead of its root",
            1 / math.sqrt(max(ranks)) if len(ranks) == 1 else None,
            frozenset(p for p, q in source.parts.items() if q.rank != 1),
            replace(source, rslora=False),
        )
    if ranks != {reserved} and not source.rslora:
        yield Wrong(
            "reserved-denominator",
            "denominator",
            "alpha over the reserved rank",
            max(ranks) / reserved if len(ranks) == 1 else None,
            frozenset(p for p, q in source.parts.items() if q.rank != reserved),
            _rescaled(source, lambda part: part.rank / reserved),
        )


def _always(factor: float) -> Callable[[Part], float]:
    return lambda part: factor


def _rescaled(source: Draft, factor: Callable[[Part], float]) -> Draft:
    return source.each(lambda path, q: replace(q, alpha=q.alpha * factor(q)))


def _missing(source: Draft) -> Iterator[Wrong]:
    for name in dict.fromkeys(path.rpartition(".")[2] for path in source.parts):
        gone = frozenset(p for p in source.parts if p.rpartition(".")[2] == name)
        yield from _without(source, gone, "type", name)
    for layer in sorted({place_of(path).layer for path in source.parts}):
        gone = frozenset(p for p in source.parts if place_of(p).layer == layer)
        yield from _without(source, gone, "layer", f"layer {layer}")
    if all(part.rank > 1 for part in source.parts.values()):
        yield Wrong(
            "half-rank",
            "half-rank",
            "only the first half of the rank rows loaded",
            None,
            frozenset(source.parts),
            replace(source.each(lambda p, q: _half(source, p, q)), rslora=False),
        )


def _without(
    source: Draft, gone: frozenset[str], kind: str, what: str
) -> Iterator[Wrong]:
    if len(gone) < len(source.parts):  # else nothing would be left
        yield Wrong(
            f"without-{what.replace(' ', '-')}",
            f"without-{kind}",
            f"{what} dropped",
            None,
            gone,
            source.only(lambda path: path not in gone),
        )


def _half(source: Draft, path: str, part: Part) -> Part:
    rank = part.rank // 2
    return Part(part.a[:rank], part.b[:, :rank], source.scale(path) * rank)


def _moved(source: Draft) -> Iterator[Wrong]:
    """The right numbers in the wrong place."""
    parts = source.parts
    other = "read in the other memory order"
    turned = {p: replace(q, a=_misread(q.a)) for p, q in parts.items()}
    yield _of(source, "transposed-a", f"A {other}", turned)
    turned = {p: replace(q, b=_misread(q.b)) for p, q in parts.items()}
    yield _of(source, "transposed-b", f"B {other}", turned)
    exchanged = {
        p: replace(q, a=q.b.T, b=q.a.T) if q.a.shape == q.b.T.shape else q
        for p, q in parts.items()
    }
    yield _of(source, "exchanged", "A and B exchanged where shapes allow", exchanged)
    yield _of(source, "shifted", "layers shifted by one", _shifted(parts))
    for one, two in PAIRS:
        swapped = _swapped(parts, one, two)
        yield _of(source, f"swapped-{one}-{two}", f"{one} and {two} swapped", swapped)
    yield _foreign(source)


def _foreign(source: Draft) -> Wrong:
    """Input and output spaces turned: norms stay, directions mean nothing here."""
    turned = {
        p: replace(q, a=_axes(q.a, 1), b=_axes(q.b, 0)) for p, q in source.parts.items()
    }
    config = {**source.config, "base_model_name_or_path": "another/base"}
    fault = "an adapter of another base of equal shapes"
    return _of(replace(source, config=config), "foreign", fault, turned)


def _of(source: Draft, name: str, fault: str, parts: Mapping[str, Part]) -> Wrong:
    changed = frozenset(p for p, q in parts.items() if q is not source.parts[p])
    kind = name.partition("-")[0]
    return Wrong(name, kind, fault, None, changed, replace(source, parts=parts))


def _misread(values: np.ndarray) -> np.ndarray:
    """The same memory taken as column after column."""
    rows, columns = values.shape
    return np.ascontiguousarray(values.reshape(columns, rows).T)


def _shifted(parts: Mapping[str, Part]) -> dict[str, Part]:
    """Each module with the numbers of the same module one layer before."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(parts, key=lambda p: place_of(p).layer):
        kinds.setdefault(place_of(path).path, []).append(path)
    moved = dict(parts)
    for paths in kinds.values():
        for path, before in zip(paths, paths[-1:] + paths[:-1], strict=True):
            if _alike(parts[path], parts[before]) and path != before:
                moved[path] = parts[before]
    return moved


def _swapped(parts: Mapping[str, Part], one: str, other: str) -> dict[str, Part]:
    moved = dict(parts)
    for path in parts:
        stem, _, name = path.rpartition(".")
        twin = f"{stem}.{other}"
        if name == one and twin in parts and _alike(parts[path], parts[twin]):
            moved[path], moved[twin] = parts[twin], parts[path]
    return moved


def _alike(one: Part, other: Part) -> bool:
    """Whether the base could take one for the other: widths agree."""
    return (one.a.shape[1], one.b.shape[0]) == (other.a.shape[1], other.b.shape[0])


def _axes(values: np.ndarray, axis: int) -> np.ndarray:
    """Coordinates permuted and their signs drawn: orthogonal, exact in any dtype."""
    width = values.shape[axis]
    draw = np.random.default_rng((SEED, width))
    order, signs = draw.permutation(width), draw.choice([-1.0, 1.0], width)
    turned = np.take(values, order, axis=axis)
    shape = (1, width) if axis == 1 else (width, 1)
    return np.asarray(turned * signs.astype(values.dtype).reshape(shape))

"""Adapters that the checks need beside those under test, made before they run.

A kit is named like the fixture that hands it out, so a check's arguments say which
adapters it will put on the board. That is what lets a board that takes adapters in
bundles have a few of them made, each for many checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.artifacts import forge
from harness.artifacts.adapter import Adapter


__all__ = ["KITS", "Kits", "Made"]

# The former adapter is made large, so that what stays of it cannot hide.
POISON = 8.0
# In product margins: twice the smallest visible scale error, which on a sound run is
# a margin and a few standard errors, about two margins.
SMALL = 5
# What a run-time scale is compared with: alpha times as much. Powers of two are
# exact in every float; 0.3 is none.
SCALES = (4.0, -0.5, 0.0625, 0.3)
# Sessions with an adapter each: as many as the vendors' documents speak of.
CREW = 4


@dataclass(frozen=True)
class Made:
    """An adapter made for a check.

    :param folder: where it lies; its name is unlike any other of the run.
    :param twin: folder of what it must equal, where that is made as well.
    :param what: what the forge says of it.
    """

    folder: Path
    twin: Path | None = None
    what: Any = None

    @property
    def folders(self) -> list[Path]:
        """All that must be at hand."""
        return [self.folder] + ([self.twin] if self.twin else [])


Kit = Callable[["Kits", Adapter], Iterable[Made]]
# By the fixture's name. Those of the widest adapter are one for all checks.
KITS: dict[str, Kit] = {}
OF_THE_WIDEST: set[str] = set()


def _of_each(make: Kit) -> Kit:
    KITS[make.__name__] = make
    return make


def _of_the_widest(make: Kit) -> Kit:
    OF_THE_WIDEST.add(make.__name__)
    return _of_each(make)


class Kits:
    """The kits of one board, each made once.

    :param adapters: the adapters under test.
    :param reserved_rank: rank compiled into the model's slots.
    :param theta: margin on the adapter's scale.
    :param scratch: folder to make adapters in.
    """

    def __init__(
        self,
        adapters: Sequence[Adapter],
        reserved_rank: int,
        theta: Callable[[], float],
        scratch: Path,
    ) -> None:
        self.adapters = adapters
        self.reserved_rank = reserved_rank
        self.theta = theta
        self._scratch = scratch
        self._made: dict[tuple[str, str], list[Made]] = {}
        self._numbers = itertools.count()

    @property
    def widest(self) -> Adapter:
        """The adapter with the most modules, then the largest ranks."""
        return max(self.adapters, key=Adapter.width)

    def made(self, kit: str, adapter: str) -> list[Made]:
        """The adapters of a kit.

        :param adapter: name of the adapter they are made from, empty for the widest.
        """
        named = {a.name: a for a in self.adapters}
        subject = self.widest if kit in OF_THE_WIDEST or not adapter else named[adapter]
        key = (kit, subject.name)
        if key not in self._made:
            self._made[key] = list(KITS[kit](self, subject))
        return self._made[key]

    def needs(self, fixtures: Iterable[str], adapter: str) -> Mapping[str, Path]:
        """Folders that a check with these fixtures puts on the board, by name."""
        folders: list[Path] = []
        for name in fixtures:
            if name == "adapter":
                folders += [a.folder for a in self.adapters if a.name == adapter]
            elif name == "widest_adapter":
                folders.append(self.widest.folder)
            elif name in KITS:
                for made in self.made(name, adapter):
                    folders += made.folders
        return {folder.name: folder for folder in folders}

    def new(self, name: str) -> Path:
        """A folder that is not there yet.

        No two of a run have one name, so that only the check that asks for a name
        twice meets a board that keeps the old content of a name.
        """
        return self._scratch / f"{name}-{next(self._numbers)}"


@_of_each
def other(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """A sound adapter of other content: the widest there is, or a louder one."""
    others = [a for a in kits.adapters if a.digest != adapter.digest]
    if others:
        yield Made(max(others, key=Adapter.width).folder)
    else:
        yield Made(forge.amplified(adapter, 2.0, kits.new("louder")))


@_of_the_widest
def poison(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """The widest adapter, much louder."""
    yield Made(forge.amplified(adapter, POISON, kits.new("poison")))


@_of_each
def copy(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """The same adapter under another name."""
    yield Made(forge.rescaled(adapter, 1.0).make(kits.new("copy")))


@_of_each
def lone(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """One module of the adapter."""
    module = adapter.modules[len(adapter.modules) // 2]
    yield Made(forge.only(adapter, module.path).make(kits.new("one-module")))


@_of_each
def stranger(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """The adapter as one of another base of equal shapes would be."""
    yield Made(forge.foreign(adapter, kits.new("foreign")))


@_of_each
def equivalents(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """Folders that mean the same function as the adapter, or as their twin."""
    for same in forge.equivalents(adapter, kits.reserved_rank):
        twin = same.make_twin(kits.new(f"{same.name}-twin")) if same.twin else None
        yield Made(same.make(kits.new(same.name)), twin, same)


@_of_each
def rescaled(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """The adapter with alpha times each of `SCALES`."""
    for scale in SCALES:
        wrong = forge.rescaled(adapter, scale)
        yield Made(wrong.make(kits.new(wrong.name)), None, wrong)


@_of_each
def slightly_wrong(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """A scale that is off by little."""
    wrong = forge.rescaled(adapter, 1 + SMALL * kits.theta())
    yield Made(wrong.make(kits.new(wrong.name)), None, wrong)


@_of_the_widest
def controls(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """Of each kind of fault one that is large."""
    for wrong in forge.controls(adapter, kits.reserved_rank):
        yield Made(wrong.make(kits.new(wrong.name)), None, wrong)


@_of_the_widest
def crew(kits: Kits, adapter: Adapter) -> Iterable[Made]:
    """A few of the adapters under test, the widest first."""
    others = [a for a in kits.adapters if a is not adapter]
    for each in [adapter, *others][:CREW]:
        yield Made(each.folder)

"""The faults that a simulated board can be given, with the reports they come from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageFault
from harness.simulator.bm1688.device import Device as Bm1688
from harness.simulator.faults import table
from harness.simulator.rk1828.bundler import Bundler
from harness.simulator.rk1828.device import Device as Rk1828


__all__ = ["PLATFORMS", "Fault", "OfAnotherPlatform", "catalogue", "find"]

PLATFORMS = ("bm1688", "rk1828")
PLACE = "harness.simulator.faults."
Where = Literal["device", "loader", "converter"]


class OfAnotherPlatform(UsageFault):
    """The fault is one of another platform's."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    :param kind: what it gets wrong, one word.
    :param where: what it is put into; `converter` is the one that bundles adapters.
    :param source: the public report of such a fault; "" where there is none.
    :param benign: a board with it is right and must pass.
    :param spec: `module:Class`.
    """

    name: str
    kind: str
    platform: str
    where: Where
    source: str
    description: str
    spec: str
    benign: bool = False

    @property
    def file(self) -> str:
        """`FILE:Class` of a loader, for upload."""
        module, _, name = self.spec.partition(":")
        return f"{inspect.getfile(importlib.import_module(module))}:{name}"


TABLES: tuple[tuple[str, Where, str, table.Rows], ...] = (
    ("bm1688", "device", "bm1688", table.BM1688_DEVICES),
    ("bm1688", "loader", "loaders", table.BM1688_LOADERS),
    ("rk1828", "device", "rk1828", table.RK1828_DEVICES),
    ("rk1828", "converter", "converters", table.CONVERTERS),
)


def catalogue(platform: str) -> dict[str, Fault]:
    """Every built-in fault of a platform by its name."""
    return {f.name: f for f in _all() if f.platform == platform}


def _all() -> Iterator[Fault]:
    for platform, where, file, rows in TABLES:
        module = importlib.import_module(PLACE + file)
        for name, kind, cls, source in rows:
            description = inspect.getdoc(getattr(module, cls)) or ""
            yield Fault(
                name=name,
                kind=kind,
                platform=platform,
                where=where,
                source=source,
                description=description.splitlines()[0],
                spec=f"{module.__name__}:{cls}",
                benign=name in table.BENIGN,
            )


def find(spec: str, platform: str) -> Fault:
    """A platform's built-in fault, or the class named by `module:Class`.

    A class derived from a simulated device acts on that device, one from `Bundler`
    on the converter of adapters; any other is taken for a loader.

    :raises OfAnotherPlatform: there is such a fault, but not on this platform.
    :raises UsageFault: no such fault, module or class.
    """
    known = catalogue(platform)
    if spec in known:
        return known[spec]
    module, colon, name = spec.partition(":")
    if not colon:
        names = ", ".join(sorted(known))
        other = next((f.platform for f in _all() if f.name == spec), None)
        what = (
            f"a fault of the {other}, not of the {platform}"
            if other
            else "unknown fault"
        )
        kind = OfAnotherPlatform if other else UsageFault
        raise kind(f"{what}: {spec!r}", cure=f"give module:Class or one of {names}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageFault(
            f"fault {spec!r}: {error}", cure="give a class that can be imported here"
        ) from error
    if not inspect.isclass(found):
        raise UsageFault(f"fault {spec!r} is no class", cure="give module:Class")
    belongs, where = _place(found)
    if belongs != platform:
        raise OfAnotherPlatform(
            f"fault {spec!r} belongs to a {belongs}", cure=f"name a board of {belongs}"
        )
    description = inspect.getdoc(found) or ""
    return Fault(spec, "own", platform, where, "", description, spec)


def _place(found: type) -> tuple[str, Where]:
    """Platform and place that a class belongs to."""
    if issubclass(found, Bm1688):
        return "bm1688", "device"
    if issubclass(found, Rk1828):
        return "rk1828", "device"
    return (
        ("rk1828", "converter") if issubclass(found, Bundler) else ("bm1688", "loader")
    )

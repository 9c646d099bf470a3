"""What a check of files found, in one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from dataclasses import dataclass
from typing import Literal


__all__ = ["Finding", "about", "note", "shown", "unfit"]


@dataclass(frozen=True)
class Finding:
    """One finding.

    :param requirement: the requirement it belongs to (`R02`).
    :param severity: `unfit`: the board cannot run it right; `note`: worth knowing.
    :param text: one line naming the tensor or the field.
    """

    requirement: str
    severity: Literal["unfit", "note"]
    text: str

    def __str__(self) -> str:
        return f"{self.requirement} {self.severity}: {self.text}"

    def to_json(self) -> dict[str, str]:
        """JSON form."""
        return asdict(self)


def unfit(requirement: str, text: str) -> Finding:
    """A finding that keeps the adapter, model or base off the board."""
    return Finding(requirement, "unfit", " ".join(text.split()))


def note(requirement: str, text: str) -> Finding:
    """A finding that keeps nothing off the board."""
    return Finding(requirement, "note", " ".join(text.split()))


def shown(value: object) -> str:
    """A name (quoted) or value from a file, at most 160 characters of it."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except RecursionError:
        return "something deeply nested"
    text = text[:157] + "..." if len(text) > 160 else text
    return repr(text) if isinstance(value, str) else text


def about(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    items = list(names)
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"{shown(items[0])}{more}"

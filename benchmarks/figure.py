"""One measured number, beside what it is compared with."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import dataclass


__all__ = ["Figure", "median"]


@dataclass(frozen=True)
class Figure:
    """A raw figure and a ratio that outlives the machine it was measured on.

    :param name: what was measured.
    :param value: the raw figure.
    :param unit: its unit.
    :param ratio: value over what `against` names, None where nothing compares.
    :param against: what the ratio is taken over, with its own figure.
    :param demand: what the project demands of the raw figure; shown, never asserted.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    demand: str = ""

    def to_json(self) -> dict[str, object]:
        """JSON form, four significant digits."""
        facts = asdict(self)
        facts["value"] = _short(self.value)
        facts["ratio"] = None if self.ratio is None else _short(self.ratio)
        return facts


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def median(seconds: list[float]) -> float:
    """The middle one: a busy machine only makes some of them longer."""
    return sorted(seconds)[len(seconds) // 2]

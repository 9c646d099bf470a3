"""What was measured and what follows from it: the words of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.golden.scores import Scores


__all__ = ["BoardWrong", "Inconclusive", "Judgement", "Measurement", "Outcome"]


class Outcome(StrEnum):
    """What a judgement comes to."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Measurement:
    """A number with everything needed to read it.

    :param value: what was seen; text for facts that are no number, None where
        nothing could be measured.
    :param limit: the bound `value` was held against, in its unit.
    :param limit_source: where the bound comes from.
    :param low: lower end of the 90 % interval of `value`, None where exact.
    :param high: its upper end.
    :param smallest_visible: smallest fault that would have been found wrong 99
        times in 100, in the unit of `value`.
    :param used: share of the room between ideal and limit that was used; 1 is at
        the limit. Orders the closest calls.
    """

    name: str
    value: float | str | None
    unit: str
    limit: float | str | None
    limit_source: str
    low: float | None = None
    high: float | None = None
    smallest_visible: float | None = None
    used: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Measurement:
        """Read `to_json` back.

        :raises TypeError: a field is missing or unknown.
        """
        return cls(**item)


@dataclass(frozen=True)
class Judgement:
    """One decision, with all it was derived from.

    :param kind: the rule that decides, see `harness.verdict.decide`.
    :param name: what the check calls it.
    :param statistics: sufficient statistics, JSON values only.
    :param parameters: rates, margins and floors the rule used, JSON values only.
    :param reason: one line for humans: value, limit, where it is worst.
    """

    kind: str
    name: str
    outcome: Outcome
    measurement: Measurement
    statistics: dict[str, Any]
    parameters: dict[str, Any]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Judgement:
        """Read `to_json` back.

        :raises ValueError: not a judgement.
        """
        try:
            return cls(
                str(item["kind"]),
                str(item["name"]),
                Outcome(item["outcome"]),
                Measurement.from_json(item["measurement"]),
                dict(item["statistics"]),
                dict(item["parameters"]),
                str(item["reason"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a judgement: {error!r}") from error


class BoardWrong(AssertionError):
    """A judgement came to FAIL: the board does what it must not.

    :param judgement: the judgement, already recorded.
    :param scores: the logits it was made from, by role, worth keeping.
    """

    def __init__(
        self, judgement: Judgement, scores: Mapping[str, Scores] | None = None
    ) -> None:
        super().__init__(f"{judgement.name}: {judgement.reason}")
        self.judgement = judgement
        self.scores = dict(scores or {})


class Inconclusive(Exception):
    """Neither right nor wrong could be shown; never green.

    :param judgement: the judgement, None where a check stops before measuring.
    """

    def __init__(self, reason: str, judgement: Judgement | None = None) -> None:
        super().__init__(reason)
        self.judgement = judgement

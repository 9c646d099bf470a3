"""The kinds of record a run is kept as, one JSON line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields as fields_of
from enum import StrEnum
from typing import Any
from typing import ClassVar

from harness.verdict.measurement import Judgement


__all__ = [
    "SCHEMA",
    "AdapterFacts",
    "Check",
    "Deselected",
    "Environment",
    "Judged",
    "Planned",
    "Record",
    "Run",
    "Status",
    "from_json",
    "to_json",
]

# Raised whenever a record changes so that older readers would misread it.
SCHEMA = 2


class Status(StrEnum):
    """How a check ended; FAIL is the board's doing, ERROR and MISS are ours.

    ERROR: it began and met trouble of the harness or the lab. MISS: it was planned
    and did not run. SKIP: the platform has no such feature.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    ERROR = "ERROR"
    MISS = "MISS"
    SKIP = "SKIP"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Run:
    """What was started: once per run, by the controller.

    :param started: seconds since 1970, UTC.
    :param command: the command line, without secrets.
    :param harness: version and, in a checkout, the commit.
    """

    kind: ClassVar[str] = "run"
    id: str
    started: float
    command: tuple[str, ...]
    harness: str
    python: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """What was tested on one board, digests and versions (R90)."""

    kind: ClassVar[str] = "environment"
    board: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class AdapterFacts:
    """An adapter under test on a board.

    :param facts: `rank`, `alpha`, `scale`, `modules`, ... for the page (R03).
    """

    kind: ClassVar[str] = "adapter"
    board: str
    name: str
    digest: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A check that is to run; what has no `Check` in the end is a MISS (R92)."""

    kind: ClassVar[str] = "planned"
    nodeid: str
    board: str
    adapter: str
    requirements: tuple[str, ...]
    title: str


@dataclass(frozen=True)
class Deselected:
    """Checks of a board that the user left out: the run is a partial one.

    :param count: how many; 0 where single files were asked for, and nobody knows.
    """

    kind: ClassVar[str] = "deselected"
    board: str
    count: int


@dataclass(frozen=True)
class Judged:
    """One judgement of a check."""

    kind: ClassVar[str] = "judgement"
    nodeid: str
    board: str
    adapter: str
    requirements: tuple[str, ...]
    attempt: int
    judgement: Judgement


@dataclass(frozen=True)
class Check:
    """How an attempt at a check ended.

    :param attempt: counted from 1; the last one counts, each is kept.
    :param reason: one line; empty for PASS.
    :param code: the stable code of the error it ended with, see `harness.errors`.
    :param seconds: wall time.
    :param finished: seconds since 1970, UTC.
    :param arrays: logits kept for a closer look, role to sha256.
    """

    kind: ClassVar[str] = "check"
    nodeid: str
    board: str
    adapter: str
    requirements: tuple[str, ...]
    attempt: int
    status: Status
    reason: str
    seconds: float
    finished: float
    arrays: Mapping[str, str] = field(default_factory=dict)
    code: str = ""


Record = Run | Environment | AdapterFacts | Planned | Deselected | Judged | Check

_KINDS: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (Run, Environment, AdapterFacts, Planned, Deselected, Judged, Check)
}


def to_json(record: Record) -> dict[str, Any]:
    """JSON form, with the record's kind and the schema."""
    return {"record": record.kind, "schema": SCHEMA, **asdict(record)}


def from_json(item: Mapping[str, Any]) -> Record:
    """Read `to_json` back.

    :raises ValueError: not a record, or of another schema.
    """
    try:
        fields = dict(item)
        cls = _KINDS[fields.pop("record")]
        schema = fields.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"schema {schema!r:.20}, this harness reads {SCHEMA}")
        for name in ("requirements", "command"):
            if name in fields:
                fields[name] = tuple(str(part) for part in fields[name])
        if "judgement" in fields:
            fields["judgement"] = Judgement.from_json(fields["judgement"])
        if "status" in fields:
            fields["status"] = Status(fields["status"])
        record: Record = cls(**fields)
        _check_types(record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record: {error!r:.200}") from error
    return record


# By the annotations used above; what is not listed was made by its own reader.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "Mapping[str, Any]": Mapping,
    "Mapping[str, str]": Mapping,
}


def _check_types(record: Record) -> None:
    """Refuse a record whose fields are of other types than it says."""
    for part in fields_of(record):
        wanted = _TYPES.get(str(part.type))
        value = getattr(record, part.name)
        if wanted is not None and (
            not isinstance(value, wanted) or isinstance(value, bool)
        ):
            raise ValueError(f"{part.name} is {value!r:.40}, not {part.type}")

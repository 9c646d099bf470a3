"""The sign-off as data: `signoff.json`, derived from the records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from harness.evidence import AdapterFacts
from harness.evidence import Check
from harness.evidence import Deselected
from harness.evidence import Environment
from harness.evidence import Judged
from harness.evidence import Planned
from harness.evidence import Record
from harness.evidence import derive
from harness.evidence import last_attempts
from harness.evidence.release import CONTROL
from harness.evidence.release import verdict_of
from harness.report.context import coverage
from harness.report.context import reproduce
from harness.report.context import retries
from harness.report.context import run_facts
from harness.report.context import untested
from harness.report.requirements import title


__all__ = ["SCHEMA", "document", "judgements", "obstacles", "row", "severity"]

# Raised whenever a field changes its meaning.
SCHEMA = 1
# Worst first: what stands in the way of a release leads.
ORDER = ("FAIL", "ERROR", "MISS", "INCONCLUSIVE", "PASS", "SKIP")
# Closest calls kept; the page and the terminal show a few of them.
MOST_CALLS = 10
# Measurement names that say less than the name of their judgement.
VAGUE = ("value", "fact")

# Speaks of the controls alone, whatever else their checks measure.
CONTROLLED = "R91"

Row = dict[str, Any]


def severity(status: str) -> int:
    """Place in the order of statuses, 0 is the worst."""
    return ORDER.index(status) if status in ORDER else len(ORDER)


def document(records: Sequence[Record]) -> dict[str, Any]:
    """Everything the page says, as JSON values.

    :param records: of one run, in any order of the writers.
    :returns: `verdict`, `reason`, `boards`, `adapters`, `planned`, `executed`,
        `missing`, `requirements`, `controls`, `closest_calls`, `environment`, ...
    """
    release = derive(records)
    checks = _checks(records)
    rows = judgements(records)
    _attach_tightest(checks, rows)
    failures = [c for c in checks if c["status"] not in ("PASS", "SKIP")]
    failures.sort(key=lambda check: severity(check["status"]))
    missing = set(release.missing)
    boards = dict.fromkeys(check["board"] for check in checks)
    return {
        "schema": SCHEMA,
        "run": run_facts(records),
        "verdict": release.verdict,
        "reason": release.reason,
        "exit_status": release.exit_status,
        "planned": release.planned,
        "executed": release.executed,
        "missing": [_named(c) for c in checks if c["nodeid"] in missing],
        "counts": _counts(checks),
        "boards": {name: verdict_of(records, _on(name)).verdict for name in boards},
        "adapters": _adapters(records, checks),
        "others": _cells(check for check in checks if not check["adapter"]),
        "requirements": _requirements(checks, rows),
        "controls": [
            {**row, "found": row["outcome"] == "PASS"}
            for row in rows
            if row["kind"] == CONTROL
        ],
        "closest_calls": _closest(rows),
        "failures": [
            {**_named(check), "status": check["status"], "title": check["title"]}
            for check in failures
        ],
        "retries": retries(records),
        "coverage": coverage(checks),
        "partial": any(isinstance(record, Deselected) for record in records),
        "untested": untested(records, checks),
        "environment": {
            r.board: dict(r.facts) for r in records if isinstance(r, Environment)
        },
        "checks": checks,
        "reproduce": reproduce(records),
    }


def obstacles(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What stands in the way of a release, worst first, alike ones together.

    Checks of one requirement on one board with one reason are one obstacle. A
    board that is away reaches the checks of every requirement: it is one line too.

    :param doc: see `document`.
    :returns: `status`, `requirement`, `board`, `adapters`, `reason`, `count`.
    """
    grouped: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(doc["failures"], key=lambda row: severity(row["status"])):
        away = row["status"] == "MISS"
        requirement = "" if away else " ".join(row["requirements"])
        entry = grouped.setdefault(
            (row["status"], requirement, row["board"], row["reason"]),
            {
                "status": row["status"],
                "requirement": requirement,
                "board": row["board"],
                "adapters": [],
                "reason": row["reason"],
                "count": 0,
            },
        )
        entry["count"] += 1
        if row["adapter"] and row["adapter"] not in entry["adapters"]:
            entry["adapters"].append(row["adapter"])
    return list(grouped.values())


def judgements(records: Iterable[Record]) -> list[Row]:
    """The judgements of the attempts that count, flat, in their order."""
    records = list(records)
    last = last_attempts(records)
    return [
        row(record)
        for record in records
        if isinstance(record, Judged)
        and record.nodeid in last
        and record.attempt == last[record.nodeid].attempt
    ]


def row(record: Judged) -> Row:
    """A judgement as the page has it, flat."""
    judgement = record.judgement
    measured = judgement.measurement.to_json()
    parameters = judgement.parameters
    scale = {"expected", "theta"} <= parameters.keys()
    return {
        "nodeid": record.nodeid,
        "board": record.board,
        "adapter": record.adapter,
        "requirements": list(record.requirements),
        "kind": judgement.kind,
        "name": judgement.name,
        "outcome": str(judgement.outcome),
        "reason": judgement.reason,
        **{key: value for key, value in measured.items() if key != "name"},
        "measured": judgement.name if measured["name"] in VAGUE else measured["name"],
        # Of a scale: the right one and its margin.
        "margin": [parameters["expected"], parameters["theta"]] if scale else None,
    }


def _tightness(row: Row) -> tuple[int, float, bool]:
    """Sorts the tightest first: what failed, then what used most of its limit.

    That an adapter makes a difference is the lesser statement of two equal ones.
    """
    used = row["used"] if row["used"] is not None else -1.0
    return severity(row["outcome"]), -used, row["kind"] == "differs"


def _checks(records: Sequence[Record]) -> list[Row]:
    """Every planned check with how it ended."""
    last = last_attempts(records)
    attempts = Counter(r.nodeid for r in records if isinstance(r, Check))
    rows = []
    for plan in {r.nodeid: r for r in records if isinstance(r, Planned)}.values():
        end = last.get(plan.nodeid)
        rows.append(
            {
                "nodeid": plan.nodeid,
                "board": plan.board,
                "adapter": plan.adapter,
                "requirements": list(plan.requirements),
                "title": plan.title,
                "status": str(end.status) if end else "MISS",
                "reason": end.reason if end else "planned, never ended",
                "seconds": end.seconds if end else None,
                "attempts": attempts[plan.nodeid],
            }
        )
    return rows


def _attach_tightest(checks: Iterable[Row], rows: Iterable[Row]) -> None:
    by_check: dict[str, list[Row]] = {}
    for row in rows:
        by_check.setdefault(row["nodeid"], []).append(row)
    for check in checks:
        mine = by_check.get(check["nodeid"])
        check["tightest"] = min(mine, key=_tightness) if mine else None


def _named(check: Row) -> Row:
    keys = ("nodeid", "board", "adapter", "requirements", "reason")
    return {key: check[key] for key in keys}


def _counts(checks: Iterable[Row]) -> dict[str, int]:
    return dict(sorted(Counter(check["status"] for check in checks).items()))


def _cells(checks: Iterable[Row]) -> dict[str, Row]:
    """Status and counts by board."""
    groups: dict[str, list[Row]] = {}
    for check in checks:
        groups.setdefault(check["board"], []).append(check)
    return {
        board: {"status": _worst(group), "checks": _counts(group)}
        for board, group in groups.items()
    }


def _worst(checks: Sequence[Row]) -> str:
    return min((str(check["status"]) for check in checks), key=severity)


def _on(board: str, adapter: str | None = None) -> Callable[[Planned], bool]:
    """Picks the checks of a board, or those of an adapter on it."""
    return lambda plan: plan.board == board and adapter in (None, plan.adapter)


def _adapters(records: Sequence[Record], checks: Sequence[Row]) -> list[Row]:
    """One row per content: boards may hold different ones under one name."""
    known = [r for r in records if isinstance(r, AdapterFacts)]
    adapters = {(r.name, r.digest): dict(r.facts) for r in known}
    digests = {(r.board, r.name): r.digest for r in known}
    for check in checks:
        key = (check["board"], check["adapter"])
        if check["adapter"] and key not in digests:
            adapters.setdefault((check["adapter"], ""), {})
    rows = []
    for (name, digest), facts in adapters.items():
        cells = _cells(
            check
            for check in checks
            if check["adapter"] == name
            and digests.get((check["board"], name), "") == digest
        )
        for board, cell in cells.items():
            release = verdict_of(records, _on(board, name))
            cell["verdict"] = release.verdict
        rows.append({"name": name, "digest": digest, "facts": facts, "boards": cells})
    return rows


def _requirements(checks: Sequence[Row], rows: Sequence[Row]) -> dict[str, Row]:
    names = sorted({name for check in checks for name in check["requirements"]})
    out = {}
    for name in names:
        mine = [check for check in checks if name in check["requirements"]]
        judged = [row for row in rows if name in row["requirements"]]
        if name == CONTROLLED:
            judged = [row for row in judged if row["kind"] == CONTROL]
        worst = min(mine, key=lambda check: severity(check["status"]))
        out[name] = {
            "status": worst["status"],
            "title": title(name),
            "checks": _counts(mine),
            "boards": {board: cell["status"] for board, cell in _cells(mine).items()},
            "tightest": min(judged, key=_tightness) if judged else None,
            "reason": worst["reason"],
        }
    return out


def _closest(rows: Iterable[Row]) -> list[Row]:
    """What passed with the least room, by the share of the limit used."""
    passed = [r for r in rows if r["outcome"] == "PASS" and (r["used"] or 0) > 0]
    return sorted(passed, key=lambda row: -row["used"])[:MOST_CALLS]

"""What stands around the checks: the run, its retries, what it leaves open."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from collections.abc import Sequence
from datetime import UTC
from datetime import datetime
from typing import Any

from harness.evidence import Check
from harness.evidence import Deselected
from harness.evidence import Record
from harness.evidence import Run
from harness.report.requirements import TITLES
from harness.report.requirements import title


__all__ = ["coverage", "reproduce", "retries", "run_facts", "untested"]

# The page itself meets these: it names misses, visible faults and changes.
BY_THE_PAGE = {"R92", "R93", "R94"}

Row = dict[str, Any]


def coverage(checks: Iterable[Row]) -> dict[str, int]:
    """How many of the known requirements this run speaks about."""
    tested = {
        name
        for check in checks
        if check["status"] not in ("SKIP", "MISS")
        for name in check["requirements"]
    }
    return {"tested": len(TITLES.keys() & (tested | BY_THE_PAGE)), "known": len(TITLES)}


def retries(records: Iterable[Record]) -> list[Row]:
    """Checks that were tried more than once, with every attempt's status."""
    attempts: dict[str, dict[int, Check]] = {}
    for record in records:
        if isinstance(record, Check):
            # Trouble while cleaning up ends an attempt a second time.
            attempts.setdefault(record.nodeid, {})[record.attempt] = record
    return [
        {
            "nodeid": nodeid,
            "attempts": [str(check.status) for check in tries.values()],
            "reason": next((c.reason for c in tries.values() if c.reason), ""),
        }
        for nodeid, tries in attempts.items()
        if len(tries) > 1
    ]


def untested(records: Iterable[Record], checks: Sequence[Row]) -> list[Row]:
    """What this run does not speak about: left out, unsupported, not covered."""
    rows = [
        ("", "", r.board, f"{r.count or 'some'} checks deselected: a partial run")
        for r in records
        if isinstance(r, Deselected)
    ]
    rows += [
        ("SKIP", name, check["board"], check["reason"])
        for check in checks
        if check["status"] == "SKIP"
        for name in check["requirements"]
    ]
    covered = {name for check in checks for name in check["requirements"]}
    rows += [
        ("", name, "every board", "no check of this run covers it")
        for name in TITLES
        if name not in covered | BY_THE_PAGE
    ]
    return [
        {
            "status": status,
            "requirement": name,
            "title": title(name),
            "board": board,
            "reason": reason,
        }
        for status, name, board, reason in dict.fromkeys(rows)
    ]


def run_facts(records: Sequence[Record]) -> dict[str, Any]:
    """Who ran it, when, with what."""
    runs = [record for record in records if isinstance(record, Run)]
    if not runs:  # the controller died before its end
        return {"id": "unknown", "started": None, "ended": None, "seconds": None}
    run = runs[0]
    ended = max((r.finished for r in records if isinstance(r, Check)), default=None)
    return {
        "id": run.id,
        "started": _iso(run.started),
        "ended": _iso(ended) if ended is not None else None,
        "seconds": round(ended - run.started, 1) if ended is not None else None,
        "command": shlex.join(run.command),
        "harness": run.harness,
        "python": run.python,
        "versions": dict(run.versions),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def reproduce(records: Sequence[Record]) -> list[str]:
    """Commands that run it again and that check the page."""
    run = run_facts(records)
    again = []
    if "command" in run:
        again = [
            f"# harness {run['harness']}, Python {run['python']}",
            run["command"],
        ]
    return [
        *again,
        "# in the folder of this page",
        "harness report verify .",
        "sha256sum --check --strict MANIFEST.sha256 && sha256sum MANIFEST.sha256",
    ]

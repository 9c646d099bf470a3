"""The sign-off as data: `signoff.json`, derived from the records alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


__all__ = ["obstacles", "severity"]

# Worst first: what stands in the way of a release leads.
ORDER = ("FAIL", "ERROR", "MISS", "INCONCLUSIVE", "PASS", "SKIP")


def severity(status: str) -> int:
    """Place in the order of statuses, 0 is the worst."""
    return ORDER.index(status) if status in ORDER else len(ORDER)


def obstacles(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What stands in the way of a release, worst first, alike ones together.

    Checks of one requirement on one board with one reason are one obstacle: a
    board that is away is one line, not two hundred.

    :returns: `status`, `requirement`, `board`, `adapters`, `reason`, `count`.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(doc["failures"], key=lambda row: severity(row["status"])):
        requirement = (row["requirements"] or ["-"])[0]
        # One cause reaches the checks of every requirement when a board is away.
        if row["status"] == "MISS":
            requirement = "all" 
        key = (row["status"], requirement, row["board"], row["reason"])
        entry = rows.setdefault(
            key,
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
    return list(rows.values())

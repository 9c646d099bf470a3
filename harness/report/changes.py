"""What differs from the run before (R94)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import NamedTuple


__all__ = ["Change", "changes", "previous"]

Doc = Mapping[str, Any]

# A tenth of the room between ideal and limit: less moves from run to run by the
# noise of a board.
DRIFT = 0.1
# Runs looked through for one of the same boards, the newest first.
MOST_RUNS = 50


class Change(NamedTuple):
    """One thing that was different: as text, for people."""

    what: str
    was: str
    now: str


def previous(folder: Path, doc: Doc) -> Doc | None:
    """The last whole run before this one on the same boards, without faults put in.

    :param folder: the run folder of `doc`; its neighbours are looked through.
    """
    older = [
        path
        for path in folder.parent.glob("*/signoff.json")
        if not path.parent.is_symlink() and path.parent.name < folder.name
    ]
    for path in sorted(older, reverse=True)[:MOST_RUNS]:
        try:
            other = json.loads(path.read_bytes())
            if (
                other["schema"] == doc["schema"]
                and set(other["boards"]) == set(doc["boards"])
                and other["executed"] > 0
                and not other["partial"]
                and not any(board.get("fault") for board in _environment(other))
            ):
                return dict(other)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # unfinished, or not ours
    return None


def _environment(doc: Doc) -> list[Mapping[str, Any]]:
    return list(doc["environment"].values())


def changes(doc: Doc, before: Doc) -> dict[str, Any]:
    """Compare two runs.

    :returns: `previous` (run id), `summary` (one line), `rows` (what, was, now).
    """
    was, now = _outcomes(before), _outcomes(doc)
    rows = list(_differences(was, now))
    worse = sum(_bad(row.now) and not _bad(row.was) for row in rows)
    better = sum(_bad(row.was) and not _bad(row.now) for row in rows)
    facts = list(_differences(_facts(before), _facts(doc)))
    drifts = list(_drifts(before, doc))
    parts = []
    if before["verdict"] != doc["verdict"]:
        parts.append(f"{before['verdict']} became {doc['verdict']}")
    parts.append(f"{worse} worse, {better} better" if rows else "no outcome changed")
    if facts:
        names = [row.what for row in facts]
        parts.append("changed: " + ", ".join(names[:4]))
        if len(names) > 4:
            parts.append(f"{len(names) - 4} more changes of what was tested")
    if drifts:
        parts.append(f"drift in {', '.join(row.what[:3] for row in drifts)}")
    return {
        "previous": before["run"]["id"],
        "summary": "; ".join(parts) + ".",
        "rows": [row._asdict() for row in (*rows, *facts, *drifts)],
    }


def _bad(status: str) -> bool:
    return status in ("FAIL", "ERROR", "MISS", "INCONCLUSIVE")


def _outcomes(doc: Doc) -> dict[str, str]:
    out = {f"{id} {entry['title']}": entry["status"] for id, entry in _required(doc)}
    for adapter in doc["adapters"]:
        for board, cell in adapter["boards"].items():
            out[f"{adapter['name']} on {board}"] = cell["status"]
    return out


def _required(doc: Doc) -> Iterator[tuple[str, Any]]:
    yield from doc["requirements"].items()


def _facts(doc: Doc) -> dict[str, str]:
    """What was tested and with what, by name."""
    out = {f"adapter {a['name']}": str(a["digest"]) for a in doc["adapters"]}
    for name, board in doc["environment"].items():
        out[f"model on {name}"] = str((board.get("model") or {}).get("digest", ""))
        out[f"probe on {name}"] = str(board.get("probe", ""))
        for part, version in (board.get("versions") or {}).items():
            out[f"{part} on {name}"] = str(version)
    for part in ("harness", "commit"):
        out[part] = str(doc["run"].get(part, ""))
    return {key: fact for key, fact in out.items() if fact}


def _differences(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Change]:
    for what in sorted({*was, *now}):
        if was.get(what) != now.get(what):
            yield Change(what, was.get(what, "absent"), now.get(what, "absent"))


def _drifts(before: Doc, doc: Doc) -> Iterator[Change]:
    """Requirements whose tightest measurement moved towards its limit, or away."""
    then = before["requirements"]
    for id, entry in _required(doc):
        other = then.get(id, {})
        if {entry["status"], other.get("status")} != {"PASS"}:
            continue  # that is no drift, and said above
        now = (entry.get("tightest") or {}).get("used")
        was = (other.get("tightest") or {}).get("used")
        if now is not None and was is not None and abs(now - was) > DRIFT:
            yield Change(f"{id} limit used", f"{was:.0%}", f"{now:.0%}")

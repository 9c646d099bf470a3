"""The sign-off page: one HTML file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from harness.report.document import obstacles
from harness.report.document import severity
from harness.report.figures import Figure
from harness.report.numbers import NOTHING
from harness.report.numbers import duration
from harness.report.numbers import kind
from harness.report.numbers import limit
from harness.report.numbers import moment
from harness.report.numbers import passed
from harness.report.numbers import percent
from harness.report.numbers import plain
from harness.report.numbers import printable
from harness.report.numbers import seconds
from harness.report.numbers import share
from harness.report.numbers import value
from harness.report.numbers import visible


__all__ = ["render"]

# What fits on the first sheet of A4 beside verdict and signature.
FIRST_ADAPTERS = 8
FIRST_BOARDS = 4
FIRST_FAILURES = 3
# The closest calls take what the rest leaves of so many lines, within limits.
FIRST_LINES = 22
FIRST_CALLS = (2, 6)
# Letters of a reason on the first page; section 2 has all of it.
BRIEF = 170

# Boards a table of facts has room for.
SIDE_BY_SIDE = 3

WORDS = {
    "PASS": "passed",
    "FAIL": "failed",
    "INCONCLUSIVE": "inconclusive",
    "ERROR": "lab errors",
    "SKIP": "skipped",
}


def slug(word: object) -> str:
    """A class name made of letters and hyphens only."""
    return re.sub(r"[^a-z]+", "-", str(word).lower()).strip("-")


def half(digest: object) -> str:
    """The first 16 hex digits: enough to tell, the annex has all 64."""
    return plain(digest)[:16]


def flat(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as (dotted name, text)."""
    if isinstance(data, Mapping):
        for key, part in data.items():
            yield from flat(part, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list | tuple) and any(
        isinstance(part, Mapping | list | tuple) for part in data
    ):
        for index, part in enumerate(data):
            yield from flat(part, f"{path}.{index}")
    else:
        yield path, plain(data)


def pairs(versions: Any) -> str:
    """`bmrt 1.9, driver 0.5`."""
    if not isinstance(versions, Mapping):
        return plain(versions)
    return ", ".join(f"{key} {plain(value)}" for key, value in versions.items())


def mono(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16,}", text) is not None


def brief(text: str, most: int = BRIEF) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def comparison(environment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Boards side by side, a few a table; what they share is said once.

    :returns: `names` and `rows` of (key, [(text, columns)]).
    """
    names = list(environment)
    for start in range(0, len(names), SIDE_BY_SIDE):
        group = names[start : start + SIDE_BY_SIDE]
        facts = [dict(flat(environment[name])) for name in group]
        keys = dict.fromkeys(key for part in facts for key in part)
        rows = []
        for key in keys:
            texts = [part.get(key, NOTHING) for part in facts]
            same = len(set(texts)) == 1
            cells = [(texts[0], len(group))] if same else [(text, 1) for text in texts]
            rows.append((key, cells))
        yield {"names": group, "rows": rows}


def by_file(
    checks: Sequence[Mapping[str, Any]],
) -> list[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
    """Checks under the file they are written in, in their order."""
    files: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for check in checks:
        file, _, name = check["nodeid"].partition("::")
        files.setdefault(file, []).append((name or file, check))
    return list(files.items())


def short(name: str, most: int) -> str:
    """A long name without its middle: the ends tell names apart."""
    if len(name) <= most:
        return name
    tail = most // 2
    return f"{name[: most - tail - 1]}\u2026{name[-tail:]}"


def model_digest(board: Mapping[str, Any]) -> object:
    model = board.get("model")
    return model.get("digest") if isinstance(model, Mapping) else None


def _first(doc: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the document that the first page has room for."""
    boards = list(doc["boards"])
    adapters = sorted(
        doc["adapters"],
        key=lambda a: min(
            (severity(c["status"]) for c in a["boards"].values()), default=9
        ),
    )
    failures = obstacles(doc)
    more = [
        f"{len(part) - most} more {name} in section {section}"
        for name, part, most, section in (
            ("boards", boards, FIRST_BOARDS, 5),
            ("adapters", adapters, FIRST_ADAPTERS, 5),
        )
        if len(part) > most
    ]
    taken = min(len(adapters), FIRST_ADAPTERS)
    taken += min(len(boards), FIRST_BOARDS) + 2 * min(len(failures), FIRST_FAILURES)
    least, most = FIRST_CALLS
    calls = min(max(FIRST_LINES - taken, least), most)
    found = sum(bool(row["found"]) for row in doc["controls"])
    return {
        "boards": boards[:FIRST_BOARDS],
        "adapters": adapters[:FIRST_ADAPTERS],
        "more": f"{'; '.join(more)}." if more else "",
        "matrix": [
            boards[start : start + FIRST_BOARDS]
            for start in range(0, len(boards) if more else 0, FIRST_BOARDS)
        ],
        "failures": failures[:FIRST_FAILURES],
        "failed": [row for row in doc["failures"] if row["status"] != "MISS"],
        "failures_more": max(0, len(failures) - FIRST_FAILURES),
        "closest": doc["closest_calls"][:calls],
        "controls_found": found,
        "controls_missed": len(doc["controls"]) - found,
        "simulated": [
            name for name, e in doc["environment"].items() if e.get("simulated")
        ],
        "faults": list(
            dict.fromkeys(
                str(e["fault"]) for e in doc["environment"].values() if e.get("fault")
            )
        ),
        "controls": _controls(doc),
    }


def _controls(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Controls of one name on one board as one line, what was missed first."""
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for row in sorted(doc["controls"], key=lambda row: bool(row["found"])):
        entry = grouped.setdefault(
            (row["name"], row["board"]),
            {
                "name": row["name"],
                "board": row["board"],
                "reason": row["reason"],
                "adapters": [],
                "count": 0,
                "found": 0,
            },
        )
        entry["adapters"].append(row["adapter"])
        entry["count"] += 1
        entry["found"] += bool(row["found"])
    return list(grouped.values())


def _clean(part: Any) -> Any:
    """What the template prints, without characters that deceive."""
    if isinstance(part, Markup) or not isinstance(part, str):
        return part
    return printable(part)


def _template(name: str) -> str:
    return (
        resources.files("harness.report").joinpath("templates", name).read_text("utf-8")
    )


def render(
    doc: Mapping[str, Any],
    *,
    figures: Sequence[Figure],
    changes: Mapping[str, Any] | None,
    evidence: str,
) -> str:
    """The page of one run.

    Everything in `doc` may come from a board: the template escapes it all, the
    policy in the page's head forbids scripts and fetches besides.

    :param doc: `signoff.json` as made by `harness.report.document.document`.
    :param changes: what differs from the run before, None without one.
    :param evidence: digest of the evidence, see `bundle.evidence_digest`.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        brief=brief,
        by_file=by_file,
        comparison=comparison,
        duration=duration,
        flat=flat,
        half=half,
        kind=kind,
        limit=limit,
        model_digest=model_digest,
        moment=moment,
        mono=mono,
        pairs=pairs,
        passed=passed,
        percent=percent,
        plain=plain,
        seconds=seconds,
        share=share,
        short=short,
        slug=slug,
        value=value,
        visible=visible,
    )
    return environment.from_string(_template("signoff.html.j2")).render(
        doc=doc,
        first=_first(doc),
        words=WORDS,
        figures=figures,
        changes=changes,
        evidence=evidence,
        css=Markup(_template("signoff.css")),
    )

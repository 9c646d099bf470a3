"""What allure-pytest leaves to others: environment, categories, numbers."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.report.bundle import replace
from harness.report.numbers import limit
from harness.report.numbers import plain
from harness.report.numbers import value
from harness.report.page import flat


__all__ = ["attach", "results_folder", "write_results"]

# allure-pytest: an AssertionError is `failed`, any other exception `broken`; the
# first line of a message is searched.
CATEGORIES = [
    {"name": "Board was away", "messageRegex": r"(?s).*\[board-away\].*"},
    {"name": "Inconclusive", "messageRegex": r"(?s).*\bInconclusive: .*"},
    {"name": "Board is wrong", "matchedStatuses": ["failed"]},
    {"name": "Harness or lab", "matchedStatuses": ["broken"]},
    {"name": "Not supported by the platform", "matchedStatuses": ["skipped"]},
]


class _Wrong(AssertionError):
    """Ends a step as failed; never leaves this module."""


def results_folder(config: pytest.Config) -> Path | None:
    """Where allure-pytest writes to; None without it and in xdist's workers."""
    folder = config.getoption("allure_report_dir", default=None)
    if not folder or hasattr(config, "workerinput"):
        return None
    return Path(folder)


def write_results(folder: Path, doc: Mapping[str, Any]) -> None:
    """Write `environment.properties`, `categories.json` and `executor.json`.

    :param doc: `signoff.json` of the run.
    :raises OSError: the folder cannot be written.
    """
    facts = [
        ("Verdict", doc["verdict"]),
        ("Run", doc["run"]["id"]),
        *((f"Adapter.{a['name']}", a["digest"]) for a in doc["adapters"]),
        *flat(doc["environment"]),
    ]
    lines = [f"{_escaped(key, key=True)}={_escaped(fact)}" for key, fact in facts]
    run = doc["run"]
    executor = {"name": "harness", "type": "harness", "buildName": run["id"]}
    replace(folder / "environment.properties", ("\n".join(lines) + "\n").encode())
    replace(folder / "categories.json", json.dumps(CATEGORIES, indent=1).encode())
    replace(folder / "executor.json", json.dumps(executor, indent=1).encode())


def _escaped(text: object, *, key: bool = False) -> str:
    """Text in the syntax of Java's properties, ASCII only."""
    out = []
    for letter in plain(text):
        if letter == "\\" or (key and letter in " :=#!"):
            out.append("\\" + letter)
        elif " " <= letter <= "~":
            out.append(letter)
        else:
            units = letter.encode("utf-16-be", "surrogatepass").hex()
            out.extend(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    return "".join(out)


def attach(row: Mapping[str, Any]) -> None:
    """Show a judgement as a step of the running test, its numbers as JSON.

    Without an active allure-pytest it does nothing.

    :param row: a judgement row as in `signoff.json`.
    """
    import allure

    title = f"{row['outcome']} {row['name']}: {value(row)}, limit {limit(row)}"
    with contextlib.suppress(_Wrong), allure.step(title):
        allure.attach(
            json.dumps(row, indent=1, default=str),
            name=str(row["name"]),
            attachment_type=allure.attachment_type.JSON,
        )
        if row["outcome"] == "FAIL":
            raise _Wrong(row["reason"])
    measured = row["value"]
    # A fact is text; only numbers have a finite value.
    if isinstance(measured, int | float) and math.isfinite(measured):
        # Allure's history is keyed by the parameters: a measured number among
        # them would give every run a history of its own.
        allure.dynamic.parameter(str(row["name"]), value(row), excluded=True)

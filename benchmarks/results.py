"""Results as a table on the terminal and as benchmarks/README.md."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table


__all__ = ["table", "write_readme"]

README = Path(__file__).with_name("README.md")
COLUMNS = ("figure", "value", "ratio", "over", "demanded")
INTRODUCTION = """\
# Benchmarks

    .venv/bin/python -m benchmarks [NAME...] [--json FILE]

What the harness costs beside what the board takes. No time here passes or fails, and
no test asserts one: figures differ from machine to machine and with what else runs
on it, ratios less so. Wrong answers do fail: `soak` and `acceptance` end with what
was wrong. The load is the average number of processes that wanted to run in the
minute before and after; above the number of cores, times are too long. Board and
harness mostly take turns, so the processor time of an acceptance is about its wall
time on a quiet machine. Models and bundles come from the cache where they were made
before.

This file is written by the command; the last figures:
"""


def table(name: str, result: Mapping[str, Any]) -> Table:
    """One benchmark's figures for the terminal."""
    shown = Table(title=f"{name}: {result['what']}", title_justify="left")
    for column in COLUMNS:
        justify = "right" if column in ("value", "ratio") else "left"
        shown.add_column(column, justify=justify)  # type: ignore[arg-type]
    for figure in result["figures"]:
        shown.add_row(*_row(figure))
    shown.caption = _circumstances(result)
    return shown


def write_readme(results: Mapping[str, Any], order: Iterable[str]) -> None:
    """Write README.md with the last figures of every benchmark."""
    parts = [INTRODUCTION]
    for name in order:
        if name not in results:
            continue
        result = results[name]
        lines = [f"## {name}", "", result["what"], ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|---|---|"]
        lines += ["| " + " | ".join(_row(f)) + " |" for f in result["figures"]]
        lines += ["", _circumstances(result), ""]
        parts.append("\n".join(lines))
    README.write_text("\n".join(parts), "utf-8")


def _row(figure: Mapping[str, Any]) -> list[str]:
    ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.3g}"
    value = f"{figure['value']:.4g} {figure['unit']}".strip()
    return [figure["name"], value, ratio, figure["against"], figure["demand"]]


def _circumstances(result: Mapping[str, Any]) -> str:
    facts = result["machine"]
    before, after = result["load"]
    return (
        f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory']}, {facts['system']}, Python {facts['python']}, "
        f"numpy {facts['numpy']}; took {result['seconds']:g} s, "
        f"load {before:g} before and {after:g} after."
    )

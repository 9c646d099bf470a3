"""The verdict on a terminal, or plainly in a log."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.document import obstacles
from harness.report.numbers import limit
from harness.report.numbers import passed
from harness.report.numbers import printable
from harness.report.numbers import share
from harness.report.numbers import value
from harness.report.numbers import visible


__all__ = ["Terminal"]

# Lines of each kind; the page has all of them.
MOST_ADAPTERS = 16
MOST_FAILURES = 12
MOST_CALLS = 5
STYLES = {
    "GO": "bold green",
    "NO-GO": "bold red",
    "INVALID": "bold magenta",
    "INCONCLUSIVE": "bold yellow",
    "PASS": "green",
    "FAIL": "bold red",
    "ERROR": "magenta",
    "MISS": "magenta",
}


class Terminal:
    """Prints the verdict of a run.

    :param console: where to; without a terminal behind it nothing is coloured and
        nothing is cut to the width.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(
        self, doc: Mapping[str, Any], *, page: Path | None = None, bundle: str = ""
    ) -> None:
        """The verdict line first, then what stands behind it.

        :param doc: `signoff.json` of the run.
        :param page: where the page lies.
        :param bundle: digest of the manifest, to be copied onto the signed page.
        """
        style = STYLES.get(doc["verdict"], "bold")
        self._print(self._text(doc["verdict"], style), self._text(doc["reason"]))
        self._matrix(doc)
        self._failures(doc)
        self._calls(doc)
        self._counts(doc)
        if page is not None:
            self._print(self._text("page    ", "dim"), self._text(page))
        if bundle:
            self._print(self._text("bundle  ", "dim"), self._text(f"sha256:{bundle}"))

    def _text(self, words: object, style: str = "") -> Text:
        """One line of foreign text, in letters that the terminal has."""
        line = " ".join(printable(str(words)).split())
        codec = self._console.encoding
        return Text(line.encode(codec, "replace").decode(codec), style)

    def _print(self, *parts: Text) -> None:
        self._console.print(Text("  ").join(parts), highlight=False)

    def _table(self, *heads: str) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for head in heads:
            # A terminal has a width to keep to, a log has not.
            table.add_column(
                self._text(head, "dim"),
                header_style="",
                no_wrap=self._console.is_terminal,
                overflow="ellipsis" if self._console.is_terminal else "fold",
            )
        return table

    def _section(self, title: str, table: Table, left: int = 0) -> None:
        self._console.print()
        self._console.print(Text(title, "bold"))
        self._console.print(table)
        if left > 0:
            self._console.print(Text(f"and {left} more on the page", "dim"))

    def _cell(self, entry: Mapping[str, Any] | None) -> Text:
        if not entry:
            return Text("not run", "dim")
        status = entry["status"]
        counts = passed(entry["checks"])
        return Text.assemble(self._text(status, STYLES.get(status, "")), f" {counts}")

    def _matrix(self, doc: Mapping[str, Any]) -> None:
        boards: Sequence[str] = list(doc["boards"])
        if not boards:
            return
        environment = doc["environment"]
        kinds = [
            "simulated" if environment.get(name, {}).get("simulated") else "hardware"
            for name in boards
        ]
        table = self._table(
            "", *(f"{name} ({kind})" for name, kind in zip(boards, kinds, strict=True))
        )
        for adapter in doc["adapters"][:MOST_ADAPTERS]:
            cells = [self._cell(adapter["boards"].get(name)) for name in boards]
            table.add_row(self._text(adapter["name"]), *cells)
        if doc["others"]:
            cells = [self._cell(doc["others"].get(name)) for name in boards]
            table.add_row(Text("without an adapter", "dim"), *cells)
        verdicts = [doc["boards"][name] for name in boards]
        table.add_row(
            Text("board as a whole"),
            *(self._text(word, STYLES.get(word, "")) for word in verdicts),
        )
        self._section(
            "Adapters on boards", table, len(doc["adapters"]) - MOST_ADAPTERS
        )

    def _failures(self, doc: Mapping[str, Any]) -> None:
        rows = obstacles(doc)
        if not rows:
            return
        table = self._table("", "", "", "reason")
        for row in rows[:MOST_FAILURES]:
            who = " ".join([row["board"], *row["adapters"]])
            table.add_row(
                self._text(row["status"], STYLES.get(row["status"], "")),
                self._text(row["requirement"]),
                self._text(f"{who} ({row['count']})" if row["count"] > 1 else who),
                self._text(row["reason"]),
            )
        self._section("Against a release", table, len(rows) - MOST_FAILURES)

    def _calls(self, doc: Mapping[str, Any]) -> None:
        if not doc["closest_calls"]:
            return
        table = self._table("", "measured", "value", "limit", "used", "could see")
        for row in doc["closest_calls"][:MOST_CALLS]:
            who = [*row["requirements"], row["board"], row["adapter"]]
            table.add_row(
                self._text(" ".join(part for part in who if part)),
                self._text(row["measured"]),
                self._text(value(row)),
                self._text(limit(row)),
                self._text(share(row["used"])),
                self._text(visible(row)),
            )
        self._section("Closest calls", table)

    def _counts(self, doc: Mapping[str, Any]) -> None:
        found = sum(bool(row["found"]) for row in doc["controls"])
        self._console.print()
        self._print(
            self._text(
                f"planned {doc['planned']}, executed {doc['executed']}, "
                f"missing {len(doc['missing'])}; wrong on purpose: {found} of "
                f"{len(doc['controls'])} found; repeated {len(doc['retries'])}"
            )
        )

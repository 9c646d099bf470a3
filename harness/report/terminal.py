"""The verdict on a terminal, or plainly in a log."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.document import obstacles
from harness.report.numbers import kind
from harness.report.numbers import limit
from harness.report.numbers import passed
from harness.report.numbers import printable
from harness.report.numbers import share
from harness.report.numbers import value
from harness.report.numbers import visible


__all__ = ["Terminal", "on"]

# Lines of each kind; the page has all of them.
MOST_ADAPTERS = 16
# Letters that a column of words keeps: most of `R22 sim-bm1688 r16-rslora`.
NARROWEST = 18
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


@contextlib.contextmanager
def on(out: Console | pytest.TerminalReporter) -> Iterator[Console]:
    """A console that prints to `out`, pytest's own way where it is pytest's."""
    if isinstance(out, Console):
        yield out
        return
    writer = out.config.get_terminal_writer()
    text = io.StringIO()
    yield Console(
        file=text,
        width=writer.fullwidth,
        force_terminal=writer.hasmarkup,
        no_color=not writer.hasmarkup,
    )
    out.write(text.getvalue())


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
        verdict = self._text(doc["verdict"], style)
        self._console.print(
            Text("  ").join([verdict, self._text(doc["reason"])]), highlight=False
        )
        for name, facts in doc["environment"].items():
            if fault := facts.get("fault"):
                self._print(self._text(f"{name}: fault {fault} was put in on purpose"))
        self._matrix(doc)
        self._failures(doc)
        self._calls(doc)
        self._counts(doc)
        if page is not None:
            self._print(Text("page  ", "dim"), self._text(page))
        if bundle:
            self._print(Text("bundle", "dim"), self._text(f"sha256:{bundle}"))

    def _text(self, words: object, style: str = "") -> Text:
        """One line of foreign text, in letters that the terminal has."""
        line = " ".join(printable(str(words)).split())
        codec = self._console.encoding
        return Text(line.encode(codec, "replace").decode(codec), style)

    def _print(self, *parts: Text) -> None:
        """One line, however long: the terminal wraps it, a path stays whole."""
        self._console.print(Text(" ").join(parts), highlight=False, soft_wrap=True)

    def _table(self, *heads: str) -> Table:
        """A table whose columns of words give way on a narrow terminal."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
        for index, head in enumerate(heads):
            words = index == 0 or head == "measured"
            table.add_column(
                self._text(head, "dim"),
                no_wrap=not words,
                overflow="fold",
                min_width=NARROWEST if words else None,
            )
        return table

    def _title(self, title: str) -> None:
        self._console.print()
        self._console.print(Text(title, "bold"))

    def _left(self, count: int) -> None:
        if count > 0:
            self._console.print(Text(f"and {count} more on the page", "dim"))

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
        kinds = (kind(doc["environment"].get(name)) for name in boards)
        heads = (f"{name} ({word})" for name, word in zip(boards, kinds, strict=True))
        table = self._table("", *heads)
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
        self._title("Adapters on boards")
        self._console.print(table)
        self._left(len(doc["adapters"]) - MOST_ADAPTERS)

    def _failures(self, doc: Mapping[str, Any]) -> None:
        rows = obstacles(doc)
        if not rows:
            return
        self._title("Against a release")
        for row in rows[:MOST_FAILURES]:
            more = f"({row['count']} checks)" if row["count"] > 1 else ""
            self._print(
                self._text(row["status"], STYLES.get(row["status"], "")),
                self._text(f"{row['requirement']} {row['board']}".strip(), "bold"),
                self._text(" ".join([*row["adapters"], more])),
            )
            reason = self._text(row["reason"])
            if self._console.is_terminal:
                reason.truncate(self._console.width - 5, overflow="ellipsis")
            self._print(Text("   "), reason)
        self._left(len(rows) - MOST_FAILURES)

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
        self._title("Closest calls")
        self._console.print(table)

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

"""Figures of a run, drawn from the recorded numbers only."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.numbers import number
from harness.report.numbers import printable


__all__ = ["Figure", "figures"]

Row = Mapping[str, Any]

# The text width of A4 with 14 mm margins, in inches.
WIDTH = 182 / 25.4
LINE = 0.155
# More lines than this are no figure any more: the worst are drawn, the caption
# says how many are not.
MOST_LINES = 60
STATES = {
    "R10": "base",
    "R11": "loaded",
    "R12": "cleared",
    "R13": "reloaded",
}
# Margins drawn to each side of the right scale: enough for every interval that
# matters; a value beyond stands at the edge with its number.
REACH = 4.0
# Units of the judgements on states, see `harness.verdict.state`.
DISTANCE, ROWS = "relative L2", "rows"
# Shape and fill differ with the outcome, so that grey print tells them apart.
MARKS = {
    "PASS": ("o", "#11613a"),
    "FAIL": ("X", "#a3141c"),
    "INCONCLUSIVE": ("D", "#7d5200"),
}
OTHER = ("s", "#44505e")
INK, SOFT, LINES = "#16191d", "#59616b", "#cfd4da"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 7.5,
    "svg.fonttype": "none",
    # A board's name is no formula.
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "axes.edgecolor": LINES,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "ytick.major.size": 0,
    # A mark at the left edge stays clear of its label.
    "ytick.major.pad": 7,
}


@dataclass(frozen=True)
class Figure:
    """A drawing for the page.

    :param svg: one `<svg>` element, text escaped.
    :param caption: what it shows, plain text.
    """

    svg: str
    caption: str


def figures(rows: Sequence[Row]) -> list[Figure]:
    """What can be drawn of the judgements; empty without numbers.

    :param rows: judgement rows of `signoff.json`.
    """
    drawn = [_limits(rows), _states(rows), _scales(rows)]
    return [figure for figure in drawn if figure is not None]


def _draw(salt: str, height: float, paint: Callable[[Any], None]) -> str:
    """An svg; the same numbers give the same bytes.

    :param height: inches.
    :param paint: draws into the empty figure.
    """
    # Heavy, and only needed here. No pyplot: it keeps figures in a global.
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    matplotlib.set_loglevel("ERROR")  # a missing font is the reader's choice
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
        paint(canvas)
        out = io.StringIO()
        FigureCanvasSVG(canvas)
        with warnings.catch_warnings():
            # Text stays text: a letter this machine lacks, the reader's may have.
            warnings.filterwarnings("ignore", "Glyph .* missing")
            canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids of groups repeat between figures and nothing refers to them.
    text = re.sub(r'(<g) id="[A-Za-z0-9_.]*_\d+"', r"\1", text)
    return text.replace("<svg", '<svg role="img" aria-label="see caption"', 1)


def _lines(axes: Any, labels: Sequence[str]) -> None:
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
    axes.grid(axis="x", color=LINES, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.minorticks_off()


def _short(label: str, most: int = 44) -> str:
    label = printable(label).replace("\n", " ")
    return label if len(label) <= most else label[: most - 1] + "\u2026"


def _dots(axes: Any, points: Iterable[tuple[float, float, str]]) -> None:
    """Marks at (x, y) by outcome, one call an outcome: thousands stay quick."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for x, y, outcome in points:
        groups.setdefault(outcome, []).append((x, y))
    for outcome, places in groups.items():
        shape, colour = MARKS.get(outcome, OTHER)
        axes.plot(
            *zip(*places, strict=True),
            shape,
            color=colour,
            markersize=4.2 if outcome == "PASS" else 5,
            markerfacecolor=colour if outcome != "INCONCLUSIVE" else "white",
            clip_on=False,
        )


def _spread(line: int, count: int) -> Iterator[tuple[float, float]]:
    """Centre and half height of `count` judgements of one line, one below another."""
    half = 0.4 / max(count, 1)
    for index in range(count):
        yield line - 0.4 + (2 * index + 1) * half, half


def _finite(*xs: float | str | None) -> bool:
    return all(isinstance(x, int | float) and math.isfinite(x) for x in xs)


def _log(x: float, zero: float) -> float:
    """log10, with a place of its own for 0."""
    return math.log10(x) if x > 0 else zero


def _who(row: Row) -> str:
    return f"{row['board']}  {row['adapter']}".strip()


def _worst(groups: dict[str, list[Row]]) -> tuple[dict[str, list[Row]], str]:
    """At most `MOST_LINES` lines in their order, and what the caption adds."""
    if len(groups) <= MOST_LINES:
        return groups, ""
    worst = sorted(
        groups, key=lambda name: -max(row["used"] or 0.0 for row in groups[name])
    )
    keep = set(worst[:MOST_LINES])
    return {name: rows for name, rows in groups.items() if name in keep}, (
        f" The {MOST_LINES} closest to their limits of {len(groups)} are drawn."
    )


def _grouped(rows: Iterable[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=name):
        groups.setdefault(name(row), []).append(row)
    return groups


def _limits(rows: Sequence[Row]) -> Figure | None:
    """How much of its limit each judgement used, by requirement."""
    groups, more = _worst(
        _grouped(
            (row for row in rows if _finite(row["used"])),
            lambda row: " ".join(row["requirements"]) or "none",
        )
    )
    above = [row["used"] for part in groups.values() for row in part if row["used"] > 0]
    if not groups:
        return None
    # Zero has no place on a logarithmic axis: it stands at its own left edge.
    low = math.floor(math.log10(max(min([*above, 0.1]), 1e-6))) - 1
    high = math.log10(min(max([*above, 1.0]), 1e9)) + 0.3

    def paint(canvas: Any) -> None:
        axes = canvas.add_subplot()
        _lines(axes, list(groups))
        axes.axvline(0, color=INK, linewidth=1)
        _dots(
            axes,
            (
                (min(max(_log(row["used"], low), low), high), y, row["outcome"])
                for y, part in enumerate(groups.values())
                for row in part
            ),
        )
        axes.set_xlim(low, high)
        ticks = range(low, math.floor(high) + 1)
        axes.set_xticks(
            ticks, ["0"] + [f"{number(100 * 10.0**k)} %" for k in ticks[1:]]
        )
        axes.set_xlabel("share of the limit used (logarithmic); the limit is the line")

    return Figure(
        _draw("limits", 0.5 + LINE * len(groups), paint),
        "Every judgement with a limit, by requirement; right of the line is over it. "
        "Circle: passed. Cross: failed. Open diamond: inconclusive. At the left edge: "
        f"no difference at all.{more}",
    )


def _states(rows: Sequence[Row]) -> Figure | None:
    """Base, loaded, cleared, reloaded: the distances that were measured."""
    chosen = [
        row
        for row in rows
        if set(row["requirements"]) & set(STATES)
        and row["unit"] in (DISTANCE, ROWS)
        and _finite(row["value"])
    ]
    if not chosen:
        return None
    groups, more = _worst(_grouped(chosen, _who))
    sizes = [
        math.log10(x)
        for row in chosen
        if row["unit"] == DISTANCE
        for x in (row["value"], row["limit"])
        if _finite(x) and x > 0
    ]
    low = math.floor(min(sizes, default=-3.0)) - 1
    high = max([*sizes, low + 2.0]) + 0.3

    def place(x: float, row: Row) -> float:
        return _log(x, low) if row["unit"] == DISTANCE or x <= 0 else high

    def paint(canvas: Any) -> None:
        panels = canvas.subplots(1, len(STATES), sharey=True)
        for axes, (requirement, text) in zip(panels, STATES.items(), strict=True):
            _lines(axes, list(groups))
            axes.set_title(
                f"{requirement}  {text}", fontsize=7.5, color=INK, loc="left"
            )
            points, bars = [], []
            for line, part in enumerate(groups.values()):
                mine = [row for row in part if requirement in row["requirements"]]
                for row, (y, half) in zip(mine, _spread(line, len(mine)), strict=True):
                    points.append((place(row["value"], row), y, row["outcome"]))
                    if _finite(row["limit"]):
                        bars.append((place(row["limit"], row), y - half, y + half))
            if bars:
                axes.vlines(*zip(*bars, strict=True), color=INK, linewidth=1)
            _dots(axes, points)
            axes.set_xlim(low, high)
            step = max(1, math.ceil((high - low) / 4))
            ticks = range(low, math.floor(high) + 1, step)
            axes.set_xticks(ticks, ["0"] + [number(10.0**k) for k in ticks[1:]])

    tall = max(
        sum(state in row["requirements"] for row in part)
        for part in groups.values()
        for state in STATES
    )
    return Figure(
        _draw("states", 0.45 + max(LINE, 0.055 * tall + 0.05) * len(groups), paint),
        "The states of each adapter, relative L2 of the logits: distance measured "
        "(mark) and its limit (bar), on a logarithmic axis that begins at 0. A mark "
        "that shows the adapter's effect (R11) must lie right of its bar, every other "
        f"one at it or left of it.{more}",
    )


def _scales(rows: Sequence[Row]) -> Figure | None:
    """Estimates with their intervals and the margin they must lie in."""
    groups, more = _worst(
        _grouped(
            (row for row in rows if row["margin"] and _finite(row["value"])),
            lambda row: f"{_who(row)}  {' '.join(row['requirements'])}",
        )
    )
    if not groups:
        return None
    margins = sorted({row["margin"][1] for part in groups.values() for row in part})

    def place(row: Row, end: str) -> float:
        target, margin = row["margin"]
        if not _finite(row[end]):  # an interval without an end
            return -REACH if end == "low" else REACH
        return min(max((row[end] - target) / margin, -REACH), REACH)

    thetas = " or ".join(f"{100 * theta:g} %" for theta in margins)

    def paint(canvas: Any) -> None:
        axes = canvas.add_subplot()
        _lines(axes, list(groups))
        axes.axvspan(-1, 1, color="#e4e9ee", linewidth=0, zorder=0.5)
        axes.axvline(0, color=SOFT, linewidth=0.6)
        points, spans = [], []
        for line, part in enumerate(groups.values()):
            beyond = {}
            for row, (y, _) in zip(part, _spread(line, len(part)), strict=True):
                x = place(row, "value")
                points.append((x, y, row["outcome"]))
                spans.append((y, place(row, "low"), place(row, "high")))
                if abs(x) == REACH:
                    beyond[x] = number(row["value"])
            for x, text in beyond.items():
                axes.annotate(
                    text,
                    (x, line),
                    xytext=(6 if x < 0 else -6, 0),
                    textcoords="offset points",
                    ha="left" if x < 0 else "right",
                    va="center",
                    fontsize=7,
                )
        axes.hlines(*zip(*spans, strict=True), color=INK, linewidth=1)
        _dots(axes, points)
        axes.set_xlim(-REACH, REACH)
        ticks = range(-int(REACH), int(REACH) + 1)
        axes.set_xticks(ticks, [f"{k:+d}\u2009\u03b8" if k else "right" for k in ticks])
        axes.set_xlabel(
            f"distance from the right scale in product margins \u03b8 = {thetas}"
        )

    tall = max(len(part) for part in groups.values())
    return Figure(
        _draw("scales", 0.4 + max(LINE, 0.07 * tall + 0.05) * len(groups), paint),
        "Scale of the adapter's effect against the reference's with its 90 % interval; "
        "the band is the product margin. A check passes when the whole interval lies "
        f"inside. A number at the edge is a scale beyond the axis.{more}",
    )

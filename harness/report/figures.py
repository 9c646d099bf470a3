"""Figures of a run, drawn from the recorded numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.drawing import INK
from harness.report.drawing import LINE
from harness.report.drawing import SOFT
from harness.report.drawing import dots
from harness.report.drawing import draw
from harness.report.drawing import lines
from harness.report.drawing import logarithm
from harness.report.drawing import spread
from harness.report.numbers import number


__all__ = ["Figure", "figures"]

Row = Mapping[str, Any]

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


def _finite(*xs: float | str | None) -> bool:
    return all(isinstance(x, int | float) and math.isfinite(x) for x in xs)


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
        lines(axes, list(groups))
        axes.axvline(0, color=INK, linewidth=1)
        dots(
            axes,
            (
                (min(max(logarithm(row["used"], low), low), high), y, row["outcome"])
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
        draw("limits", 0.5 + LINE * len(groups), paint),
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
        # Before it is cleared an adapter must differ too: that is R11's to show.
        and (row["kind"] != "differs" or "R11" in row["requirements"])
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
        return logarithm(x, low) if row["unit"] == DISTANCE or x <= 0 else high

    def paint(canvas: Any) -> None:
        panels = canvas.subplots(1, len(STATES), sharey=True)
        for axes, (requirement, text) in zip(panels, STATES.items(), strict=True):
            lines(axes, list(groups))
            axes.set_title(
                f"{requirement}  {text}", fontsize=7.5, color=INK, loc="left"
            )
            points, bars = [], []
            for line, part in enumerate(groups.values()):
                mine = [row for row in part if requirement in row["requirements"]]
                for row, (y, half) in zip(mine, spread(line, len(mine)), strict=True):
                    points.append((place(row["value"], row), y, row["outcome"]))
                    if _finite(row["limit"]):
                        bars.append((place(row["limit"], row), y - half, y + half))
            if bars:
                axes.vlines(*zip(*bars, strict=True), color=INK, linewidth=1)
            dots(axes, points)
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
        draw("states", 0.45 + max(LINE, 0.055 * tall + 0.05) * len(groups), paint),
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
        return float(min(max((row[end] - target) / margin, -REACH), REACH))

    thetas = " or ".join(f"{100 * theta:g} %" for theta in margins)

    def paint(canvas: Any) -> None:
        axes = canvas.add_subplot()
        lines(axes, list(groups))
        axes.axvspan(-1, 1, color="#e4e9ee", linewidth=0, zorder=0.5)
        axes.axvline(0, color=SOFT, linewidth=0.6)
        points, spans = [], []
        for line, part in enumerate(groups.values()):
            beyond = {}
            for row, (y, _) in zip(part, spread(line, len(part)), strict=True):
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
        dots(axes, points)
        axes.set_xlim(-REACH, REACH)
        ticks = range(-int(REACH), int(REACH) + 1)
        axes.set_xticks(ticks, [f"{k:+d}\u2009\u03b8" if k else "right" for k in ticks])
        axes.set_xlabel(
            f"distance from the right scale in product margins \u03b8 = {thetas}"
        )

    tall = max(len(part) for part in groups.values())
    return Figure(
        draw("scales", 0.4 + max(LINE, 0.07 * tall + 0.05) * len(groups), paint),
        "Scale of the adapter's effect against the reference's with its 90 % interval; "
        "the band is the product margin. A check passes when the whole interval lies "
        f"inside. A number at the edge is a scale beyond the axis.{more}",
    )

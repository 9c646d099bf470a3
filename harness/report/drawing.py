"""Marks and lines on an svg, in the page's own colours."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from harness.report.numbers import printable


__all__ = ["INK", "LINE", "SOFT", "dots", "draw", "lines", "logarithm", "spread"]

# The text width of A4 with 14 mm margins, in inches.
WIDTH = 182 / 25.4
# Height of a line of text, inches.
LINE = 0.155
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


def draw(salt: str, height: float, paint: Callable[[Any], None]) -> str:
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


def lines(axes: Any, labels: Sequence[str]) -> None:
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
    axes.grid(axis="x", color=LINES, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.minorticks_off()


def _short(label: str, most: int = 44) -> str:
    label = printable(label).replace("\n", " ")
    return label if len(label) <= most else label[: most - 1] + "\u2026"


def dots(axes: Any, points: Iterable[tuple[float, float, str]]) -> None:
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


def spread(line: int, count: int) -> Iterator[tuple[float, float]]:
    """Centre and half height of `count` judgements of one line, one below another."""
    half = 0.4 / max(count, 1)
    for index in range(count):
        yield line - 0.4 + (2 * index + 1) * half, half


def logarithm(x: float, zero: float) -> float:
    """log10, with a place of its own for 0."""
    return math.log10(x) if x > 0 else zero

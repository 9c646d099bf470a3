"""Numbers, times and foreign text as the reader sees them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any


__all__ = [
    "duration",
    "kind",
    "limit",
    "moment",
    "number",
    "passed",
    "percent",
    "plain",
    "printable",
    "seconds",
    "share",
    "value",
    "visible",
]

NOTHING = "\u2014"
# Three digits tell two measurements apart; more is noise on paper.
DIGITS = 3
# Digits at which two float64 differ for certain.
MOST_DIGITS = 17


# Characters that draw nothing, move the cursor or turn the reading direction: a
# board could forge a line of the page or of the terminal with them.
_FORGERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\uffff]"
)


def printable(text: str) -> str:
    """Text without characters that could deceive the reader or break a file."""
    return _FORGERS.sub("\ufffd", text)


def number(x: float | str | None, digits: int = DIGITS) -> str:
    """`0.0123`, `1.2e-05`, `0`; text as it is; a dash for None."""
    if x is None or x == "":
        return NOTHING
    if isinstance(x, str):
        return "none" if x in ("[]", "{}", "set()", "()") else x
    if not math.isfinite(x):
        return "not a number" if math.isnan(x) else "unbounded"
    if x == 0:
        return "0"
    if float(x).is_integer() and abs(x) < 1e6:
        return str(int(x))
    return f"{x:.{digits}g}"


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    """Value and limit, with as many digits as it takes to tell them apart."""
    x, bound = row.get("value"), row.get("limit")
    digits = DIGITS
    if isinstance(x, int | float) and isinstance(bound, int | float) and x != bound:
        while number(x, digits) == number(bound, digits) and digits < MOST_DIGITS:
            digits += 1
    return number(x, digits), number(bound, digits)


def value(row: Mapping[str, Any]) -> str:
    """The measured value of a row, without its unit."""
    return _pair(row)[0]


def limit(row: Mapping[str, Any]) -> str:
    """The limit of a row, without its unit."""
    return _pair(row)[1]


def visible(row: Mapping[str, Any]) -> str:
    """The smallest fault a row could have seen, `any` for an exact fact."""
    smallest = row.get("smallest_visible")
    if smallest is None and str(row.get("note", "")).startswith("any "):
        return "any"
    return number(smallest)


def share(used: float | None) -> str:
    """How much of the limit is used: `62 %`, `3.1 x` beyond it."""
    if used is None or math.isnan(used):
        return NOTHING
    if used > 9.99:
        return f"{used:.0f}\u00a0\u00d7" if math.isfinite(used) else "over"
    if used > 1:
        return f"{used:.2f}\u00a0\u00d7"
    # 99.6 % is not all of it: never round up to the limit.
    return f"{math.floor(100 * used)}\u00a0%"


def passed(counts: Mapping[str, int] | None) -> str:
    """`38 of 40 passed`, or `40`; what a platform lacks does not count."""
    if not counts:
        return ""
    total = sum(counts.values()) - counts.get("SKIP", 0)
    good = counts.get("PASS", 0)
    return str(total) if good == total else f"{good} of {total} passed"


def percent(used: float) -> str:
    """Width of a bar, 0 to 100."""
    return f"{100 * min(max(used, 0.0), 1.0):.1f}"


def seconds(x: float | None) -> str:
    return NOTHING if x is None else f"{x:.1f}" if x < 99 else f"{x:.0f}"


def duration(x: float) -> str:
    """`42 s`, `3 min 07 s`, `2 h 05 min`."""
    whole = round(x)
    if whole < 60:
        return f"{x:.1f} s" if x < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(stamp: str) -> str:
    """`2026-07-03 14:05 UTC` of an ISO 8601 time; the text itself otherwise."""
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    return f"{at:%Y-%m-%d %H:%M} {at.tzname() or ''}".rstrip()


def kind(environment: Mapping[str, Any] | None) -> str:
    """What a board is: `simulated`, `hardware`, or `not reached`."""
    if not environment:
        return "not reached"
    return "simulated" if environment.get("simulated") else "hardware"


def plain(x: object) -> str:
    """A recorded fact as text: a dash for what is absent, `yes` and `no`."""
    if x is None or x in ("", [], {}):
        return NOTHING
    if isinstance(x, bool):
        return "yes" if x else "no"
    if isinstance(x, float):
        return number(x, 6)
    if isinstance(x, list | tuple):
        return ", ".join(plain(part) for part in x)
    return str(x)

"""Words that a board said, made fit for a message."""

from __future__ import annotations


__all__ = ["printable"]


def printable(text: str, limit: int = 200) -> str:
    """`text` on one line, without control characters, at most `limit` long.

    A board could otherwise send escape sequences to the terminal, or megabytes.
    """
    words = " ".join(text[: 4 * limit].split())
    kept = "".join(c if c.isprintable() else "?" for c in words)
    return kept if len(kept) <= limit else kept[: limit - 3] + "..."

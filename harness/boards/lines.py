"""Where a key stands in a TOML text: tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from harness.errors import UsageFault


__all__ = ["Lines"]

_PLACE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
_KEY = re.compile(r"""\s*((?:[\w.\s-]|"[^"]*"|'[^']*')+?)\s*=""")


class Lines:
    """The lines of a TOML text by key.

    :param path: the file, for messages.
    :param text: its content; need not be valid.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._count = max(1, len(text.splitlines()))
        self._keys: dict[tuple[str, ...], int] = {}
        self._first: dict[tuple[str, ...], int] = {}
        self._twice: list[tuple[tuple[str, ...], int]] = []
        self._scan(text)

    def _scan(self, text: str) -> None:
        table: tuple[str, ...] = ()
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("["):
                key = _key_of(line)
                if key:
                    table = key
            elif match := _KEY.match(line):
                key = table + _key_of(f"{match[1]} = 0") if match[1].strip() else ()
            else:
                continue
            if key in self._keys:
                self._twice.append((key, number))
            elif key:
                self._keys[key] = number
            for end in range(1, len(key)):
                # [boards.a] opens the table `boards` too.
                self._first.setdefault(key[:end], number)

    def line(self, key: tuple[str, ...]) -> int:
        """The line of `key`, or of the nearest table around it."""
        while key:
            if number := self._keys.get(key) or self._first.get(key):
                return number
            key = key[:-1]
        return 1

    def fault(self, key: tuple[str, ...], what: str, cure: str) -> UsageFault:
        """An error at the line of `key`."""
        return UsageFault(what, where=f"{self._path}:{self.line(key)}", cure=cure)

    def syntax_fault(self, error: tomllib.TOMLDecodeError) -> UsageFault:
        """What tomllib refuses, at its line; names both lines of a duplicate."""
        text = str(error)
        place = _PLACE.search(text)
        number = int(place[1]) if place and place[1] else self._count
        for key, second in self._twice:
            if second == number:
                return UsageFault(
                    f"{'.'.join(key)!r} stands here and in line {self._keys[key]}",
                    where=f"{self._path}:{second}",
                    cure="rename or remove one of the two",
                )
        return UsageFault(
            f"not TOML: {_PLACE.sub('', text).strip()}",
            where=f"{self._path}:{number}",
            cure='keys read key = value, texts stand in "quotes"',
        )


def _key_of(line: str) -> tuple[str, ...]:
    """The key path of one line, as tomllib reads it; empty where it cannot."""
    try:
        value: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(value, dict) and len(value) == 1:
        (key, value), *_ = value.items()
        path.append(key)
    return tuple(path)

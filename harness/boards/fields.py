"""Values of `boards.toml`: paths made absolute, addresses and commands checked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from pydantic import BeforeValidator
from pydantic import Field
from pydantic import ValidationInfo

from harness.boards.address import Address


__all__ = ["At", "Command", "Folders", "Here", "Loader", "There"]


def _path(value: object, info: ValidationInfo) -> object:
    """A path in the file is relative to the file; `~` is the user's home."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError('a path is a text in "quotes"')
    if not value or "\0" in value:
        raise ValueError("a path must not be empty")
    folder = (info.context or {}).get("folder", Path())
    try:
        return folder / Path(value).expanduser()
    except RuntimeError as error:  # "~nobody/..."
        raise ValueError(str(error)) from None


def _paths(value: object, info: ValidationInfo) -> object:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return tuple(_path(item, info) for item in value)
    return _path(value, info)


def _address(value: str) -> str:
    Address.parse(value)
    return value


def _there(value: str) -> str:
    """A path on the board goes through no shell, so nothing would expand it."""
    if value.startswith("~"):
        raise ValueError("~ is not expanded on the board: give the path in full")
    if not value.isprintable() or ".." in value.split("/"):
        raise ValueError("a path on the board has no '..' and no control characters")
    if value.startswith("-"):
        raise ValueError("a path must not look like an option")
    return value


def _command(value: str) -> str:
    if not shlex.split(value):
        raise ValueError("the command is empty")
    return value


def _loader(value: str, info: ValidationInfo) -> str:
    """`reference`, `file.py:Class` (file made absolute) or `module:Class`."""
    if value == "reference":
        return value
    place, _, name = value.rpartition(":")
    if not place or not name.isidentifier():
        raise ValueError("neither 'reference' nor 'file.py:Class' nor 'module:Class'")
    return f"{_path(place, info)}:{name}" if place.endswith(".py") else value


At = Annotated[str, AfterValidator(_address)]
Command = Annotated[str, AfterValidator(_command)]
Folders = Annotated[Path | tuple[Path, ...] | None, BeforeValidator(_paths)]
Here = Annotated[Path, BeforeValidator(_path)]
Loader = Annotated[str, AfterValidator(_loader)]
There = Annotated[str, Field(min_length=1), AfterValidator(_there)]

"""What hardware there is: boards.toml, checked strictly."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Self

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import model_validator

from harness.boards.address import Address
from harness.boards.fields import At
from harness.boards.fields import Command
from harness.boards.fields import Folders
from harness.boards.fields import Here
from harness.boards.fields import Loader
from harness.boards.fields import There
from harness.boards.lines import Lines
from harness.errors import UsageFault


__all__ = ["Board", "Inventory"]

# A board's name becomes a pytest id, a file name and a lock's name.
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Board(BaseModel):
    """One board of the inventory.

    :param name: its name in `boards.toml`.
    :param platform: which probe and converter belong to it.
    :param simulated: a board on this machine's CPU, started when it is needed.
    :param host: `ssh://user@host:port`; None until a simulated board runs.
    :param identity: private key; None: the agent's keys.
    :param known_hosts: host keys that are trusted; None: `~/.ssh/known_hosts`.
    :param python: the Python command over there (>= 3.8, with numpy).
    :param workdir: folder over there, relative to the login folder or absolute.
    :param model: path over there of a model that is on the board already.
    :param convert: command, run here, that makes the model; ` BASE OUT` is
        appended and `{python}` stands for this interpreter.
    :param bundle: command, run here, that makes a bundle of adapters, where the
        platform takes them so; ` BASE OUT NAME=FOLDER ...` is appended.
    :param base: folder of the base checkpoint, here.
    :param dequantised: the base as a quantised board holds it, here; the converter
        gives it where there is one.
    :param golden: folder of the stored reference, here.
    :param adapters: a folder of adapter folders, or the adapter folders, here.
    :param loader: `reference`, `FILE.py:Class` or `module:Class`.
    :param reserved_rank: rank compiled into the model's slots.
    :param guards_cache_files: the product promises to refuse a KV cache file of
        another adapter or scale (R52); without it one that is taken is only noted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern=_NAME)
    platform: Literal["bm1688", "rk1828"]
    simulated: bool = False
    host: At | None = None
    identity: Here | None = None
    known_hosts: Here | None = None
    python: There = "python3"
    workdir: There = ".harness"
    model: There | None = None
    convert: Command | None = None
    bundle: Command | None = None
    base: Here | None = None
    dequantised: Here | None = None
    golden: Here | None = None
    adapters: Folders = None
    loader: Loader = "reference"
    reserved_rank: int = Field(default=32, ge=1, le=1024)
    guards_cache_files: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for key in ("convert", "bundle"):
            if getattr(self, key) is not None and self.base is None:
                raise ValueError(f"{key!r} needs 'base', the checkpoint it converts")
        if self.platform == "rk1828":
            if self.bundle is None:
                raise ValueError("'bundle' is missing: an rk1828 takes adapters in it")
            if self.loader != "reference":
                raise ValueError("'loader' has no place on an rk1828")
        elif self.bundle is not None:
            raise ValueError(f"'bundle' has no place on a {self.platform}")
        if self.simulated:
            for key in ("host", "identity", "known_hosts", "model"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key!r} has no place on a simulated board")
            if self.convert is None:
                raise ValueError("a simulated board needs 'convert' and 'base'")
        elif self.host is None:
            raise ValueError("'host' is missing (simulated = true needs none)")
        elif self.model is None and self.convert is None:
            raise ValueError("'model' or 'convert' is missing: what shall it run?")
        return self

    @property
    def address(self) -> Address | None:
        """Where it is reached; None for a simulated board that does not run."""
        return Address.parse(self.host) if self.host else None

    def adapter_folders(self) -> tuple[Path, ...]:
        """The adapter folders by name.

        :raises UsageFault: a named folder is not there or holds no adapter.
        """
        if self.adapters is None:
            return ()
        if isinstance(self.adapters, tuple):
            folders = self.adapters
        elif self.adapters.is_dir():
            found = self.adapters.glob("*/adapter_config.json")
            folders = tuple(sorted(file.parent for file in found))
        else:
            folders = ()
        lost = [f for f in folders if not (f / "adapter_config.json").is_file()]
        if lost or not folders:
            raise UsageFault(
                f"no adapter_config.json in {lost[0] if lost else self.adapters}",
                where=f"board {self.name}, adapters",
                cure="name a folder of PEFT adapter folders, or the folders themselves",
            )
        return folders


_CURES = {
    "bool_type": "write true or false, without quotes",
    "int_type": "write a whole number, without quotes",
    "string_type": 'write a text in "quotes"',
}
_KEYS = tuple(key for key in Board.model_fields if key != "name")


@dataclass(frozen=True)
class Inventory:
    """The boards of one boards.toml, in the file's order."""

    path: Path
    boards: tuple[Board, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check `path`.

        :raises UsageFault: names file and line, the key, what is wrong, the cure.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8 text"
            raise UsageFault(
                f"cannot read the inventory: {reason}",
                where=str(path),
                cure="name an existing boards.toml",
            ) from None
        lines = Lines(path, text)
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise lines.syntax_fault(error) from None
        for key in tables:
            if key != "boards":
                raise lines.fault(
                    (key,), f"unknown key {key!r}", _suggest(key, ("boards",), "table")
                )
        named = tables.get("boards", {})
        if not isinstance(named, dict):
            raise lines.fault(
                ("boards",), "'boards' is no table", "write [boards.NAME] tables"
            )
        boards = (_board(path, lines, name, table) for name, table in named.items())
        return cls(path, tuple(boards))

    def pick(self, names: Iterable[str]) -> tuple[Board, ...]:
        """The boards of these names, in the order asked for.

        :raises UsageFault: there is none of such a name.
        """
        known = {board.name: board for board in self.boards}
        chosen = dict.fromkeys(names)
        for name in chosen:
            if name not in known:
                raise UsageFault(
                    f"no board {name!r}",
                    where=str(self.path),
                    cure=_suggest(name, tuple(known), "board"),
                )
        return tuple(known[name] for name in chosen)

    def simulated(self) -> tuple[Board, ...]:
        """The boards on this machine's CPU."""
        return tuple(board for board in self.boards if board.simulated)

    def real(self) -> tuple[Board, ...]:
        """The boards that are hardware."""
        return tuple(board for board in self.boards if not board.simulated)


def _board(path: Path, lines: Lines, name: str, table: object) -> Board:
    here = ("boards", name)
    if not isinstance(table, dict):
        raise lines.fault(here, f"{name!r} is no table", f"write [boards.{name}]")
    if "name" in table:
        raise lines.fault(
            (*here, "name"),
            "unknown key 'name'",
            f"the name is in the table's title, [boards.{name}]",
        )
    try:
        context = {"folder": path.absolute().parent}
        return Board.model_validate({"name": name, **table}, context=context)
    except ValidationError as error:
        raise _fault(lines, here, error.errors()) from None


def _fault(lines: Lines, here: tuple[str, ...], errors: list[Any]) -> UsageFault:
    """One error that pydantic found, in our words: a misspelt key comes first."""
    first = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    key = str(first["loc"][0]) if first["loc"] else ""
    if key == "name":
        return lines.fault(
            here,
            f"{here[-1]!r} is no name for a board",
            "use at most 64 letters, digits, '.', '_' and '-'",
        )
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return lines.fault(
            (*here, key), f"unknown key {key!r}", _suggest(key, _KEYS, "key")
        )
    if first["type"] == "missing":
        what, cure = f"{key!r} is missing", f"add a line {key} = ..."
    elif not key:
        # A rule over several keys: the line of the key that it names first.
        words = [word for word in what.split("'") if word in _KEYS]
        key = words[0] if words else ""
        cure = f"put it right in [boards.{here[-1]}]"
    else:
        what = f"{key!r}: {what[0].lower()}{what[1:]}"
        cure = _CURES.get(first["type"], f"correct the value of {key}")
    return lines.fault((*here, key) if key else here, what, cure)


def _suggest(word: str, known: tuple[str, ...], kind: str) -> str:
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known {kind}s: {', '.join(known) or 'none'}"

"""What a converter made: a file or a folder, and the sidecar that vouches for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Self

from harness.artifacts.content import Content
from harness.artifacts.content import folder_digest
from harness.artifacts.model import read_json
from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.golden.identity import BaseIdentity


__all__ = ["Artifact"]

# Of a folder this part goes onto the board, and this is the base as the board holds
# it: a checkpoint with the weights that quantisation left.
BOARD, DEQUANTISED = "board", "dequantised"


@dataclass(frozen=True)
class Artifact:
    """What a converter made.

    :param path: the file, or the folder.
    :param digest: its sha256 in hex; of a folder that over its files' digests.
    :param sidecar: what the converter recorded beside it.
    """

    path: Path
    digest: str
    sidecar: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """What lies at `path`, checked against `path`.json.

        :raises Infrastructure: it is not what its sidecar says, or has none.
        """
        record = path.with_name(path.name + ".json")
        try:
            sidecar = read_json(record, "the converter must write OUT.json")
            if not path.exists():
                raise Infrastructure("the converter wrote no model", where=str(path))
            digest = _digest(path)
        except UsageFault as error:
            raise Infrastructure(
                error.cause, where=error.where, cure=error.cure
            ) from None
        if sidecar.get("sha256") != digest:
            raise Infrastructure(
                f"the model is {digest[:12]}, its sidecar says "
                f"{str(sidecar.get('sha256'))[:12]}",
                where=str(path),
                cure="the converter must record the sha256 of what it wrote",
            )
        return cls(path, digest, sidecar)

    @property
    def for_board(self) -> Path:
        """What goes onto the board: the file, or a folder."""
        return self.path / BOARD if self.path.is_dir() else self.path

    @property
    def dequantised(self) -> Path | None:
        """The base as the board holds it, None where it holds the base itself."""
        folder = self.path / DEQUANTISED
        return folder if folder.is_dir() else None

    def matches(self, identity: BaseIdentity) -> bool:
        """Whether a base is the one this was made from, or its dequantised form."""
        known = (self.sidecar.get("digests"), self.sidecar.get("dequantised"))
        return identity.to_json() in known


def _digest(path: Path) -> str:
    return folder_digest(path) if path.is_dir() else Content.of(path).digest

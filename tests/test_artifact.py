"""What a converter made, read with the sidecar that vouches for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.artifacts.artifact import Artifact
from harness.errors import Infrastructure
from harness.golden.identity import BaseIdentity


FILES = {"board/model.bin": b"graph", "board/embed.bin": b"", "notes.txt": b"n"}


def sidecar(path: Path, **fields: Any) -> Path:
    """Write what the converter says of `path`."""
    record = path.with_name(path.name + ".json")
    record.write_text(json.dumps(fields))
    return record


def made_file(tmp_path: Path) -> Path:
    """A model that is one file."""
    path = tmp_path / "model"
    path.write_bytes(b"all of it")
    sidecar(path, sha256=hashlib.sha256(b"all of it").hexdigest(), rank=32)
    return path


def made_folder(tmp_path: Path) -> Path:
    """A model that is a folder."""
    path = tmp_path / "model"
    for place, content in FILES.items():
        (path / place).parent.mkdir(parents=True, exist_ok=True)
        (path / place).write_bytes(content)
    lines = [
        f"{hashlib.sha256(content).hexdigest()} {place}\n"
        for place, content in sorted(FILES.items())
    ]
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    sidecar(path, sha256=digest, rank=32)
    return path


MAKES = pytest.mark.parametrize("make", [made_file, made_folder])


@MAKES
def test_a_sound_one(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    artifact = Artifact.read(path)
    assert artifact.path == path and artifact.sidecar["rank"] == 32
    assert artifact.digest == artifact.sidecar["sha256"]
    board = path if path.is_file() else path / "board"
    assert artifact.for_board == board


def test_the_base_as_the_board_holds_it(tmp_path: Path) -> None:
    path = made_folder(tmp_path)
    assert Artifact.read(path).dequantised is None
    (path / "dequantised").mkdir()  # an empty folder changes no digest
    assert Artifact.read(path).dequantised == path / "dequantised"
    (tmp_path / "other").mkdir()
    assert Artifact.read(made_file(tmp_path / "other")).dequantised is None


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize("damage", ["bit", "longer", "gone", "moved"])
def test_every_file_of_a_folder_counts(tmp_path: Path, place: str, damage: str) -> None:
    path = made_folder(tmp_path)
    file = path / place
    match damage:
        case "bit":
            content = bytearray(file.read_bytes() or b"x")
            content[0] ^= 1
            file.write_bytes(content)
        case "longer":
            file.write_bytes(file.read_bytes() + b"\0")
        case "gone":
            file.unlink()
        case _:
            file.rename(file.with_name("elsewhere"))
    refused(path, "its sidecar says")


def test_a_file_too_many(tmp_path: Path) -> None:
    path = made_folder(tmp_path)
    (path / "board" / "more").write_bytes(b"")
    refused(path, "its sidecar says")


@MAKES
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[]", "object"),
        ("{}", "its sidecar says"),
        ('{"sha256": 7}', "its sidecar says"),
        ('{"sha256": null}', "its sidecar says"),
    ],
)
def test_sidecar(
    make: Callable[[Path], Path], tmp_path: Path, content: str | None, says: str
) -> None:
    path = make(tmp_path)
    record = path.with_name("model.json")
    record.unlink()
    if content is not None:
        record.write_text(content)
    refused(path, says)


def test_no_model_beside_its_sidecar(tmp_path: Path) -> None:
    path = made_file(tmp_path)
    path.unlink()
    refused(path, "wrote no model")


def refused(path: Path, says: str) -> None:
    """Reading it is refused with one line that says where."""
    with pytest.raises(Infrastructure, match=says) as trouble:
        Artifact.read(path)
    assert "\n" not in str(trouble.value) and str(path) in str(trouble.value)


def test_the_base_it_was_made_of(tmp_path: Path) -> None:
    base, held, other = (
        BaseIdentity(weights=w, tokenizer="t", chat_template="c", config="f")
        for w in ("base", "held", "other")
    )
    path = tmp_path / "model"
    plain = Artifact(path, "", {"digests": base.to_json()})
    assert plain.matches(base) and not plain.matches(held)
    quantised = Artifact(
        path, "", {"digests": base.to_json(), "dequantised": held.to_json()}
    )
    assert quantised.matches(base) and quantised.matches(held)
    assert not quantised.matches(other)
    assert not Artifact(path, "", {}).matches(base)

"""Adapters on their way to a board, in bundles and on their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.artifacts.artifact import Artifact
from harness.artifacts.supply import Bundles
from harness.artifacts.supply import Folders
from harness.errors import ConversionRefused
from harness.errors import RuntimeRefused


MOST = 3


class Converter:
    """Refuses folders that hold a file `bad`, and more than three adapters."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[list[str]] = []

    def __call__(self, adapters: Mapping[str, Path]) -> Artifact:
        self.asked.append(list(adapters))
        for name, folder in adapters.items():
            if (folder / "bad").exists():
                raise ConversionRefused("a bad file", where=name)
        if len(adapters) > MOST:
            raise ConversionRefused(f"{len(adapters)} adapters")
        path = self.folder / f"{len(self.asked)}.bundle"
        path.write_text(" ".join(adapters))
        entries = {name: {"dequantised": f"{name}-as-int4"} for name in adapters}
        return Artifact(path, "", {"adapters": entries})


class Shelf:
    """A store that knows what lies over there."""

    def __init__(self) -> None:
        self.files: list[str] = []

    def put_file(self, path: Path) -> str:
        self.files.append(f"there/{path.name}")
        return self.files[-1]

    def drop(self, path: str) -> None:
        self.files.remove(path)

    def forget(self) -> None:
        self.files.clear()


@pytest.fixture
def converter(tmp_path: Path) -> Converter:
    return Converter(tmp_path)


@pytest.fixture
def bundles(converter: Converter) -> Bundles:
    return Bundles(Shelf(), converter)  # type: ignore[arg-type]


def made(folder: Path, names: str, file: str = "good") -> dict[str, Path]:
    """Adapter folders by name."""
    for name in names.split():
        (folder / name).mkdir()
        (folder / name / file).write_text(name)
    return {name: folder / name for name in names.split()}


def test_adapters_are_found_in_the_bundle_at_hand(
    bundles: Bundles, tmp_path: Path
) -> None:
    adapters = made(tmp_path, "a b c")
    assert not bundles.has(adapters)
    assert bundles.stock(adapters)
    assert bundles.has(adapters) and bundles.has({"b": adapters["b"]})
    assert {bundles.find(n, f) for n, f in adapters.items()} == {"there/1.bundle"}
    assert bundles.held("a") == "a-as-int4"
    more = made(tmp_path, "d")
    assert bundles.find("d", more["d"]) is None
    assert bundles.stock(more)
    assert bundles.find("d", more["d"]) == "there/2.bundle"
    assert bundles.find("a", adapters["a"]) is None


def test_only_one_bundle_lies_over_there(converter: Converter, tmp_path: Path) -> None:
    shelf = Shelf()
    bundles = Bundles(shelf, converter)  # type: ignore[arg-type]
    for number, name in enumerate("abc", 1):
        (adapter,) = made(tmp_path, name).items()
        bundles.stock(dict([adapter]))
        for _ in range(2):
            bundles.find(*adapter)
        assert shelf.files == [f"there/{number}.bundle"]
    bundles.forget()  # the board lost its files
    bundles.find(*adapter)
    assert shelf.files == ["there/3.bundle"]


def test_a_name_means_a_content(bundles: Bundles, tmp_path: Path) -> None:
    one, two = made(tmp_path, "a b").values()
    bundles.stock({"same": one})
    assert bundles.find("same", one)
    assert bundles.find("same", two) is None
    assert bundles.find("other", one) is None
    (one / "good").write_text("changed")
    assert bundles.find("same", one) is None


def test_one_that_is_refused_keeps_none_of_the_others_away(
    bundles: Bundles, converter: Converter, tmp_path: Path
) -> None:
    good, bad = made(tmp_path, "a b"), made(tmp_path, "x", "bad")
    assert bundles.stock({**bad, **good})
    assert all(bundles.find(n, f) for n, f in good.items())
    with pytest.raises(RuntimeRefused, match="a bad file") as refused:
        bundles.find("x", bad["x"])
    assert refused.value.vendor_code == "converter"
    assert refused.value.where == "x"
    # What is known to be refused is not tried again, and is no reason to stock.
    asked = len(converter.asked)
    assert bundles.has({**bad, **good})
    assert bundles.stock({**bad, **good})
    assert converter.asked[asked:] == [["a", "b"]]


def test_nothing_but_refused_leaves_the_bundle(
    bundles: Bundles, tmp_path: Path
) -> None:
    good, bad = made(tmp_path, "a"), made(tmp_path, "x", "bad")
    bundles.stock(good)
    assert not bundles.stock(bad)
    with pytest.raises(RuntimeRefused, match="a bad file"):
        bundles.admit("x", bad["x"])
    assert bundles.find("a", good["a"]) == "there/1.bundle"


def test_too_many_together_are_refused(
    bundles: Bundles, converter: Converter, tmp_path: Path
) -> None:
    good = made(tmp_path, "a b c d")
    few = {name: good[name] for name in "ab"}
    bundles.stock(few)
    with pytest.raises(RuntimeRefused, match="4 adapters"):
        bundles.stock(good)
    assert bundles.has(few)
    # Whoever was in a bundle before is not to blame.
    assert converter.asked == [["a", "b"], list("abcd"), ["c"], ["d"]]


def test_one_that_may_be_had_is_not_at_hand_yet(
    bundles: Bundles, converter: Converter, tmp_path: Path
) -> None:
    good, bad = made(tmp_path, "a b"), made(tmp_path, "x", "bad")
    bundles.stock({"a": good["a"]})
    bundles.admit("b", good["b"])
    asked = len(converter.asked)
    bundles.admit("a", good["a"])  # was taken before
    assert len(converter.asked) == asked
    for _ in range(2):
        with pytest.raises(RuntimeRefused, match="a bad file") as refused:
            bundles.admit("x", bad["x"])
        assert refused.value.vendor_code == "converter"
    assert bundles.has({"a": good["a"]}) and not bundles.has({"b": good["b"]})
    assert bundles.find("b", good["b"]) is None


def test_folders_go_on_their_own(tmp_path: Path) -> None:
    store = SimpleNamespace(put_folder=lambda folder: f"there/{folder.name}")
    folders = Folders(store)  # type: ignore[arg-type]
    adapters = made(tmp_path, "a b")
    assert folders.has(adapters)
    assert not folders.stock(adapters)
    assert folders.find("another-name", adapters["a"]) == "there/a"
    assert folders.held("a") is None

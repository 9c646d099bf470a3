"""Forged for platforms that hide how they hold adapters: by content, and as bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from made_adapters import BF16
from made_adapters import adapters
from made_adapters import deltas

from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.artifacts.forge import by_content
from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import Part


RESERVED = 64
WEAKER = ("bytes", "exact", "rounded")


def drafts() -> st.SearchStrategy[Draft]:
    """Small adapters of up to three modules."""
    values = st.floats(-8, 8, width=16)

    def part(rank: int) -> st.SearchStrategy[Part]:
        return st.builds(
            Part,
            arrays(np.float32, (rank, 4), elements=values),
            arrays(np.float32, (3, rank), elements=values),
            st.sampled_from([0.0, 1.0, 8.0, -3.0]),
        )

    parts = st.dictionaries(
        st.sampled_from("abc"), st.integers(1, 3).flatmap(part), max_size=3
    )
    return st.builds(Draft, st.just({}), parts, st.booleans())


class TestByContent:
    @given(drafts(), drafts())
    def test_it_is_never_called_more_equal_than_it_is(
        self, one: Draft, other: Draft
    ) -> None:
        assert by_content(one, other) == by_content(other, one)
        assert by_content(one, one) in ("bytes", "exact")
        if by_content(one, other) == "rounded":
            return
        for path in one.parts.keys() | other.parts.keys():
            assert np.array_equal(product(one, path), product(other, path))

    @given(drafts(), st.data())
    def test_any_change_that_counts_is_seen(
        self, draft: Draft, data: st.DataObject
    ) -> None:
        loud = [p for p in draft.parts if product(draft, p).any()]
        if not loud:
            return
        path = data.draw(st.sampled_from(loud))
        part = draft.parts[path]
        a, b = part.a.copy(), part.b.copy()
        change = data.draw(st.sampled_from(["a", "b", "alpha", "gone"]))
        if change in "ab":
            values = a if change == "a" else b
            place = data.draw(st.integers(0, values.size - 1))
            values.flat[place] = np.nextafter(values.flat[place], np.float32(np.inf))
        changed = dict(draft.parts)
        alpha = part.alpha * (1.5 if change == "alpha" else 1)
        changed[path] = Part(a, b, alpha)
        if change == "gone":
            del changed[path]
        assert by_content(draft, replace(draft, parts=changed)) == "rounded"

    def test_the_same_values_in_another_dtype(self) -> None:
        a, b = np.ones((2, 4), np.float32), np.full((3, 2), 0.5, np.float32)
        left = Draft({}, {"m": Part(a, b, 2.0)}, rslora=False)
        right = Draft({}, {"m": Part(a.astype(BF16), b.astype(BF16), 2.0)}, False)
        assert by_content(left, right) == "bytes"

    def test_another_spelling_of_the_same_scale(self) -> None:
        part = Part(np.ones((4, 4), np.float32), np.ones((3, 4), np.float32), 8.0)
        plain = Draft({}, {"m": part}, rslora=False)
        rooted = Draft({}, {"m": replace(part, alpha=4.0)}, rslora=True)
        assert by_content(plain, rooted) == "bytes"
        assert by_content(plain, replace(plain, rslora=True)) == "rounded"

    def test_nothing_and_zeros_are_base(self) -> None:
        silent = [
            Part(np.zeros((1, 4)), np.ones((3, 1)), 1.0),
            Part(np.ones((1, 4)), np.zeros((3, 1)), 1.0),
            Part(np.ones((2, 4)), np.ones((3, 2)), 0.0),
        ]
        for one, other in permutations(silent, 2):
            left = Draft({}, {"m": one}, rslora=False)
            assert by_content(left, Draft({}, {"m": other}, rslora=False)) == "exact"
            assert by_content(left, Draft({}, {}, rslora=False)) == "exact"

    @pytest.mark.parametrize("source", adapters(), ids=lambda p: p.name)
    def test_relations(self, source: Path, tmp_path: Path) -> None:
        """What is unknown of the device only ever weakens what must be equal."""
        original = deltas(source)
        for e in forge.equivalents(Adapter.open(source), RESERVED):
            found = e.exactness(by_content)
            assert e.relation != "base" or found == "exact", e.name
            if e.relation == "adapter" and found == "bytes":
                made = deltas(e.make(tmp_path / e.name))
                assert made.keys() == original.keys(), e.name
                assert all(np.array_equal(made[p], original[p]) for p in made), e.name


def product(draft: Draft, path: str) -> np.ndarray:
    """Delta W of a module `[3, 4]` of the drafts above, zeros for none."""
    part = draft.parts.get(path)
    if part is None:
        return np.zeros((3, 4))
    return draft.scale(path) * (part.b.astype(np.float64) @ part.a.astype(np.float64))


class TestDamagedFiles:
    @given(st.binary(min_size=16, max_size=4000))
    def test_each_is_another_file(self, data: bytes) -> None:
        made = list(forge.damaged_files(data))
        assert len(made) >= 8 and all(damage.data != data for damage in made)
        assert len({damage.name for damage in made}) == len(made)

    @given(st.binary(min_size=512, max_size=4000))
    def test_each_in_its_own_way(self, data: bytes) -> None:
        made = {damage.name: damage for damage in forge.damaged_files(data)}
        cut = [made.pop(name).data for name in list(made) if name.startswith("cut")]
        assert all(data.startswith(one) for one in cut)
        assert len({len(one) for one in cut}) == len(cut) == 3
        assert made.pop("empty").data == b""
        longer = made.pop("with bytes too many").data
        assert longer.startswith(data) and len(longer) > len(data)
        flipped = [made.pop(name).data for name in list(made) if "bit" in name]
        for one in flipped:
            bits = np.frombuffer(one, np.uint8) ^ np.frombuffer(data, np.uint8)
            assert int(np.unpackbits(bits).sum()) == 1
        assert len(set(flipped)) == len(flipped) == 2
        (foreign,) = made.values()
        assert len(foreign.data) == len(data)

    @given(st.binary(min_size=512, max_size=4000))
    def test_a_small_change_is_for_a_checksum_to_see(self, data: bytes) -> None:
        for damage in forge.damaged_files(data):
            longer = abs(len(damage.data) - len(data)) > 64
            assert damage.structural == (longer or damage.data[:4] != data[:4])

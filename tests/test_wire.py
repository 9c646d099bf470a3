"""Frames survive the trip, and nothing that is no frame does harm."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harness.probes import wire
from harness.probes.wire import StreamCut
from harness.probes.wire import WireError
from harness.probes.wire import read_frame
from harness.probes.wire import write_frame


busy = settings(deadline=None)  # test machines are
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
headers = st.dictionaries(st.text().filter(lambda k: k != "arrays"), json_values)
bodies = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=8),
    st.sampled_from(wire.DTYPES).flatmap(
        lambda dtype: arrays.arrays(
            np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0)
        )
    ),
    max_size=4,
)


def encode(header: dict[str, Any], body: dict[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    write_frame(out.write, header, body)
    return out.getvalue()


def raw(header: Any, data: bytes = b"") -> Any:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(struct.pack("<I", len(text)) + text + data).read


def listed(**item: Any) -> dict[str, Any]:
    return {"arrays": [{"name": "a", "dtype": "<f4", "shape": [2], **item}]}


@busy
@given(headers, bodies)
def test_round_trip(header: dict[str, Any], body: dict[str, np.ndarray]) -> None:
    stream = io.BytesIO(encode(header, body) + encode({"next": 1}, {}))
    got, arrays = read_frame(stream.read)
    assert got == json.loads(json.dumps(header))
    assert arrays.keys() == body.keys()
    for name, array in body.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()
    assert read_frame(stream.read) == ({"next": 1}, {})
    with pytest.raises(EOFError):
        read_frame(stream.read)


def test_arrays_that_are_not_contiguous() -> None:
    array = np.arange(12, dtype="<i4").reshape(3, 4)
    _, arrays = read_frame(io.BytesIO(encode({}, {"a": array.T[::2]})).read)
    assert (arrays["a"] == array.T[::2]).all()


@busy
@given(headers, bodies, st.data())
def test_a_cut_frame_is_never_a_frame(
    header: dict[str, Any], body: dict[str, np.ndarray], data: st.DataObject
) -> None:
    whole = encode(header, body)
    size = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(StreamCut):
        read_frame(io.BytesIO(whole[:size]).read)


@busy
@given(st.binary(min_size=1, max_size=200))
def test_noise_is_refused_and_nothing_else(noise: bytes) -> None:
    with pytest.raises((WireError, EOFError)):
        read_frame(io.BytesIO(b"\x20\x00\x00\x00" + noise).read)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"a":' + b"[" * 200_000,
        b'{"a":1' + b"0" * 10_000 + b"}",
        {"arrays": {}},
        {"arrays": [7]},
        {"arrays": [{}]},
        {"arrays": listed()["arrays"] * 2},
        {"arrays": [listed(name=f"n{i}", shape=[0])["arrays"][0] for i in range(65)]},
        listed(name=""),
        listed(name="x" * 65),
        listed(name=5),
        listed(dtype="<f8"),
        listed(dtype="O"),
        listed(dtype=["<f4"]),
        listed(shape=[-1]),
        listed(shape=[True]),
        listed(shape=[1.0]),
        listed(shape=5),
        listed(shape=[1] * 5),
        listed(shape=[1 << 16, 1 << 16]),
        listed(shape=[1 << 31, 1 << 31, 1 << 31, 1 << 31]),
        listed(shape=[1 << 80]),
        listed(shape=[0, 1 << 40]),
    ],
    ids=lambda h: repr(h)[:50],
)
def test_hostile_headers(header: Any) -> None:
    with pytest.raises(WireError) as refused:
        read_frame(raw(header, b"\0" * 64))
    assert not isinstance(refused.value, StreamCut)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("length", [0, 1, wire.HEADER_BYTES + 1, 0xFFFFFFFF])
def test_a_lying_length_takes_no_memory(length: int) -> None:
    asked = []

    def read(size: int) -> bytes:
        asked.append(size)
        return struct.pack("<I", length)[:size]

    with pytest.raises(WireError):
        read_frame(read)
    assert asked == [4]


def test_a_reader_limits_what_it_takes() -> None:
    array = np.zeros(100, "<f4")
    frame = encode({}, {"a": array})
    assert read_frame(io.BytesIO(frame).read, 400)[1]["a"].size == 100
    with pytest.raises(WireError, match="400 bytes"):
        read_frame(io.BytesIO(frame).read, 399)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({"a": float("nan")}, {}),
        ({"a": object()}, {}),
        ({"a": "x" * wire.HEADER_BYTES}, {}),
        ({}, {"a": np.zeros(2, np.float64)}),
        ({}, {"a": np.zeros(2, object)}),
        ({}, {"": np.zeros(2, np.float32)}),
    ],
    ids=["nan", "object", "too-long", "float64", "objects", "no-name"],
)
def test_nothing_is_sent_that_cannot_be_read(
    header: dict[str, Any], body: dict[str, Any]
) -> None:
    sent: list[bytes | memoryview] = []
    with pytest.raises(WireError):
        write_frame(sent.append, header, body)
    assert not sent


def test_small_frames_go_in_one_piece_and_large_arrays_uncopied() -> None:
    sent: list[bytes | memoryview] = []
    write_frame(sent.append, {"id": 1}, {"a": np.zeros(512, np.float32)})
    assert len(sent) == 1
    large = np.zeros(151_936, np.float32)
    write_frame(sent.append, {"id": 2}, {"a": large})
    assert np.shares_memory(np.frombuffer(sent[-1], np.float32), large)

"""The probe's own reader against the safetensors library, and on damaged files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file

from harness.probes.safetensors import SafetensorsError
from harness.probes.safetensors import Tensors


ADAPTERS = Path(__file__).resolve().parents[1] / "fixtures" / "adapters"
FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
tensors = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda n: n != "__metadata__"),
    st.tuples(
        st.sampled_from(FLOATS),
        arrays.arrays(
            np.float32, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)
        ),
    ),
    max_size=5,
)
per_file = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=60,
    deadline=None,
)


@per_file
@given(tensors)
def test_reads_what_the_library_writes(
    tmp_path: Path, drawn: dict[str, tuple[Any, np.ndarray]]
) -> None:
    with np.errstate(all="ignore"):
        written = {name: array.astype(dtype) for name, (dtype, array) in drawn.items()}
    path = tmp_path / "file"
    save_file(written, path, metadata={"format": "pt"})
    read = Tensors(str(path))
    assert set(read.names()) == set(written)
    assert read.metadata == {"format": "pt"}
    for name, array in written.items():
        assert read[name].shape == array.shape
        with np.errstate(all="ignore"):
            expected = array.astype(np.float32)
        assert np.array_equal(read.values(name), expected, equal_nan=True)


@pytest.mark.parametrize("folder", sorted(ADAPTERS.iterdir()), ids=lambda p: p.name)
def test_reads_what_peft_wrote(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    read = Tensors(str(path))
    with safetensors.safe_open(path, "np") as library:
        assert set(read.names()) == set(library.keys())
        for name in library.keys():
            expected = library.get_tensor(name).astype(np.float32)
            assert np.array_equal(read.values(name), expected)


@per_file
@given(st.data())
def test_no_damage_gets_through_or_crashes(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever the damage: an error of ours, or tensors inside the file."""
    path = tmp_path / "file"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float16)}, path)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        read = Tensors(str(path))
    except SafetensorsError as error:
        assert "\n" not in str(error)
        return
    for name in read.names():
        assert read[name].stop <= path.stat().st_size


def file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(**fields: Any) -> dict[str, Any]:
    sound = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    return {"a": {k: v for k, v in {**sound, **fields}.items() if v is not None}}


DAMAGED = {
    "empty": b"",
    "no header": b"\x05\0\0",
    "header cut": struct.pack("<Q", 100) + b"{}",
    "header too large": struct.pack("<Q", 100_000_001) + b"{}",
    "header of 2^64-1": struct.pack("<Q", 2**64 - 1) + b"{}",
    "no JSON": file(b"{nope}"),
    "not UTF-8": file(b'{"\xff":1}'),
    "a list": file(b"[]"),
    "leading space": file(b" {}"),
    "deep JSON": file(b'{"a":' + b"[" * 100_000),
    "huge integer": file(tensor(shape=[10**40])),
    "NaN": file(b'{"a":NaN}'),
    "no object": file({"a": 5}),
    "no dtype": file(tensor(dtype=None)),
    "no shape": file(tensor(shape=None)),
    "no offsets": file(tensor(data_offsets=None)),
    "one field more": file(tensor(extra=1)),
    "unknown dtype": file(tensor(dtype="F31")),
    "dtype is a list": file(tensor(dtype=["F32"])),
    "negative extent": file(tensor(shape=[-2])),
    "fractional extent": file(tensor(shape=[2.0])),
    "boolean extent": file(tensor(shape=[True, 2])),
    "shape overflows": file(tensor(shape=[1 << 31, 1 << 31, 1 << 2, 0])),
    "too many extents": file(tensor(shape=[1] * 9)),
    "offsets reversed": file(tensor(data_offsets=[8, 0]), b"\0" * 8),
    "offset negative": file(tensor(data_offsets=[-8, 0]), b"\0" * 8),
    "three offsets": file(tensor(data_offsets=[0, 4, 8]), b"\0" * 8),
    "beyond the end": file(tensor(), b"\0" * 7),
    "size does not fit": file(tensor(shape=[3]), b"\0" * 8),
    "bytes behind": file(tensor(), b"\0" * 9),
    "hole": file(tensor(data_offsets=[4, 12]), b"\0" * 12),
    "overlap": file(
        {**tensor(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        b"\0" * 12,
    ),
    "same place twice": file({**tensor(), "b": tensor()["a"]}, b"\0" * 8),
    "name twice": file(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b"\0" * 4,
    ),
    "metadata no map": file({"__metadata__": [1]}),
    "metadata of numbers": file({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SafetensorsError) as refused:
        Tensors(str(path))
    assert len(str(refused.value)) < 400


def test_integers_have_no_values(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"a": np.ones(3, np.int32)}, path)
    read = Tensors(str(path))
    assert read["a"].dtype == "I32"
    with pytest.raises(SafetensorsError, match="I32"):
        read.values("a")


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    save_file({"a": np.ones(3, np.float32)}, path)
    read = Tensors(str(path))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(SafetensorsError, match="shrank"):
        read.values("a")

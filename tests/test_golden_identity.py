"""Digests of bases and adapters, and the file reader beneath them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import adapter_digest
from harness.golden import base_identity
from harness.golden.identity import lm_head_of
from harness.golden.tensors import TensorFile


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASE, GOLDEN = FIXTURES / "base", FIXTURES / "golden"
R8 = FIXTURES / "adapters" / "r8-all"


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def one_line(error: pytest.ExceptionInfo[UsageFault]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


class TestBaseIdentity:
    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(BASE, tmp_path / "base"))

    def test_resharding_changes_nothing(self, base):
        whole = base_identity(base)
        reshard(base)
        assert base_identity(base) == whole
        GoldenStore.open(GOLDEN, base)

    def test_foreign_weights_are_refused(self, base):
        path = base / "model.safetensors"
        flip(path, path.stat().st_size - 1)
        with pytest.raises(UsageFault) as error:
            GoldenStore.open(GOLDEN, base)
        assert "weights" in one_line(error)

    def test_same_weights_with_another_rope_are_refused(self, base):
        edit(base, lambda c: c["text_config"].update(rope_theta=10_000.0))
        with pytest.raises(UsageFault, match="config"):
            GoldenStore.open(GOLDEN, base)

    def test_form_of_the_rope_and_bookkeeping_do_not_matter(self, base):
        before = base_identity(base).config

        def rewrite(config):
            text = config["text_config"]
            text["rope_parameters"] = text.pop("rope_scaling")
            text["rope_parameters"]["rope_theta"] = text.pop("rope_theta")
            text["dtype"] = config["dtype"] = "float32"
            config["transformers_version"] = "0"

        edit(base, rewrite)
        assert base_identity(base).config == before

    @pytest.mark.parametrize(
        "name",
        ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"],
    )
    def test_missing_and_empty_file(self, base, name):
        (base / name).write_bytes(b"")
        with pytest.raises(UsageFault) as error:
            base_identity(base)
        assert name in one_line(error)
        (base / name).unlink()
        with pytest.raises(UsageFault) as error:
            base_identity(base)
        assert name in one_line(error)

    def test_missing_shard(self, base):
        reshard(base)
        (base / "part-1.safetensors").unlink()
        with pytest.raises(UsageFault, match=r"part-1\.safetensors"):
            base_identity(base)

    def test_index_cannot_leave_the_folder(self, base):
        reshard(base, prefix="../")
        with pytest.raises(UsageFault, match="outside its folder"):
            base_identity(base)


class TestAdapterDigest:
    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(R8, tmp_path / "renamed"))

    def test_name_of_the_folder_does_not_matter(self, adapter):
        assert adapter_digest(adapter) == adapter_digest(R8)

    @pytest.mark.parametrize(
        "name", ["adapter_config.json", "adapter_model.safetensors"]
    )
    def test_every_byte_matters(self, adapter, name):
        path = adapter / name
        if name.endswith("json"):
            path.write_bytes(path.read_bytes() + b" ")
        else:
            flip(path, path.stat().st_size - 1)
        assert adapter_digest(adapter) != adapter_digest(R8)

    @pytest.mark.parametrize("keep", [0, 7, 100, -1])
    def test_truncated(self, adapter, keep):
        path = adapter / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(UsageFault) as error:
            adapter_digest(adapter)
        assert "adapter_model.safetensors" in one_line(error)

    def test_missing(self, tmp_path):
        with pytest.raises(UsageFault, match="cannot read"):
            adapter_digest(tmp_path)


class TestTensorFile:
    @pytest.mark.parametrize(
        "header",
        [
            b"[]",
            b"{",
            b'{"a": 1}',
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}',
            b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}',
            b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}',
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
            b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}',
            b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}',
            b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
            b' "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}',
        ],
    )
    def test_malformed_header(self, tmp_path, header):
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(header).to_bytes(8, "little") + header + b"abcd")
        with pytest.raises(UsageFault) as error:
            TensorFile(path)
        one_line(error)

    def test_absurd_header_length(self, tmp_path):
        path = tmp_path / "x.safetensors"
        path.write_bytes(b"\xff" * 64)
        with pytest.raises(UsageFault, match="not a safetensors file"):
            TensorFile(path)

    def test_bfloat16_comes_back(self, tmp_path):
        value = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
        save_file({"a": value}, tmp_path / "x.safetensors")
        assert np.array_equal(TensorFile(tmp_path / "x.safetensors").array("a"), value)


def reshard(base: Path, prefix: str = "") -> None:
    """Cut the one weights file into two with an index."""
    file = TensorFile(base / "model.safetensors")
    names = sorted(file.tensors, reverse=True)
    places = {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard = f"part-{i}.safetensors"
        save_file({n: file.array(n) for n in part}, base / shard)
        places |= dict.fromkeys(part, prefix + shard)
    (base / "model.safetensors").unlink()
    index = base / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))


def edit(base: Path, change) -> None:
    """Change config.json in place."""
    path = base / "config.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_lm_head_is_untied_bfloat16():
    head = lm_head_of(BASE)
    assert head.shape == (512, 128)
    assert head.dtype == ml_dtypes.bfloat16

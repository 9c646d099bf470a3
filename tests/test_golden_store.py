"""The golden store and the digests it is keyed by; no torch here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden import GoldenMissing
from harness.golden import GoldenStore
from harness.golden import adapter_digest
from harness.golden import base_identity
from harness.golden import prompts_of
from harness.golden.gap import Block
from harness.golden.gap import effect_of
from harness.golden.gap import gap_of
from harness.golden.gap import log_softmax
from harness.golden.identity import lm_head_of
from harness.golden.index import GoldenIndex
from harness.golden.tensors import TensorFile


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASE, GOLDEN = FIXTURES / "base", FIXTURES / "golden"
R8 = FIXTURES / "adapters" / "r8-all"


@pytest.fixture(scope="module")
def store() -> GoldenStore:
    return GoldenStore.open(GOLDEN, BASE)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden that a test may damage."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def one_line(error: pytest.ExceptionInfo[UsageFault]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


class TestOpen:
    def test_logits_have_full_vocabulary_and_are_made_once(self, store):
        reference = store.base()
        assert reference.exact.logits.shape == (store.prompts.rows, 512)
        assert reference.exact.logits.dtype == np.float32
        assert store.base() is reference

    def test_logits_cannot_be_changed_by_one_of_their_readers(self, store):
        with pytest.raises(ValueError, match="read-only"):
            store.base().exact.logits[0, 0] = 1

    def test_device_arithmetic_is_near_and_not_equal(self, store):
        reference = store.base()
        gap = np.abs(reference.exact.logits - reference.device.logits).max()
        assert 0 < gap < 0.5

    def test_subset_is_the_head_of_each_prompt(self, store):
        few = store.prompts.few(3, 5)
        part = store.base().on(few)
        assert part.exact.logits.shape == (15, 512)
        assert np.array_equal(part.device.of(2), store.base().device.of(2)[:5])

    def test_foreign_prompts_are_missing(self, store):
        other = store.domain_prompts(adapter_digest(R8))
        with pytest.raises(GoldenMissing) as error:
            store.base().on(other)
        assert "other prompts" in one_line(error)

    def test_domain_by_name_and_by_adapter(self, store):
        digest = adapter_digest(R8)
        prompts = store.domain_prompts(digest)
        assert store.has(digest)
        assert store.base(digest) is store.base(store.entry(digest).domain)
        assert store.adapter(digest, digest).exact.prompts == prompts

    def test_unknown_adapter_is_missing(self, store):
        assert not store.has("0" * 64)
        with pytest.raises(GoldenMissing) as error:
            store.adapter("0" * 64)
        assert "harness golden" in one_line(error)

    def test_unknown_domain_is_missing(self, store):
        with pytest.raises(GoldenMissing):
            store.base("nowhere")

    def test_prompts_without_a_base(self, store):
        main, domains = prompts_of(GOLDEN)
        assert main == store.prompts
        assert set(domains) == {e.name for e in store.adapters.values()}


class TestDamage:
    def test_one_bit_of_a_state(self, copy):
        state = sorted((copy / "states").iterdir())[0]
        flip(state, state.stat().st_size - 1)
        with pytest.raises(UsageFault) as error:
            GoldenStore.open(copy, BASE)
        assert state.name in one_line(error)

    def test_one_token_of_a_prompt(self, copy):
        path = copy / "golden.json"
        value = json.loads(path.read_text())
        value["prompts"][0]["tokens"][0] += 1
        path.write_text(json.dumps(value))
        with pytest.raises(UsageFault, match="damaged"):
            GoldenStore.open(copy, BASE)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1'])
    def test_index_that_is_none(self, copy, text):
        (copy / "golden.json").write_text(text)
        with pytest.raises(UsageFault) as error:
            GoldenStore.open(copy, BASE)
        assert "golden.json" in one_line(error)

    def test_missing_folder_and_missing_state(self, copy, tmp_path):
        with pytest.raises(UsageFault, match="cannot read"):
            GoldenStore.open(tmp_path / "none", BASE)
        sorted((copy / "states").iterdir())[0].unlink()
        with pytest.raises(UsageFault, match="cannot read"):
            GoldenStore.open(copy, BASE)

    def test_index_survives_writing(self, copy):
        index = GoldenIndex.read(copy)
        index.write(copy)
        assert GoldenIndex.read(copy) == index


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


class TestGap:
    """Formulas against cases whose answer is known."""

    def blocks(self, factor: float, noise: float) -> list[Block]:
        draw = np.random.default_rng(0)
        out = []
        for _ in range(8):
            base = log_softmax(draw.normal(size=(5, 64)))
            delta = 0.1 * draw.normal(size=base.shape)
            adapter = log_softmax(base + delta)
            device = base + factor * (adapter - base)
            device += noise * draw.normal(size=base.shape)
            out.append(Block(base, base, adapter, log_softmax(device)))
        return out

    def test_equal_is_one_without_error(self):
        gap = gap_of(self.blocks(1.0, 0.0))
        assert gap.scale == pytest.approx(1)
        assert gap.base == 0
        assert gap.scale_error == pytest.approx(0, abs=1e-9)

    def test_half_is_half(self):
        assert gap_of(self.blocks(0.5, 0.0)).scale == pytest.approx(0.5, abs=0.01)

    def test_noise_is_seen_in_residual_and_error(self):
        gap = gap_of(self.blocks(1.0, 0.01))
        assert gap.delta == pytest.approx(0.1, rel=0.2)
        assert abs(gap.scale - 1) < 4 * gap.scale_error

    def test_effect_ignores_a_constant(self):
        logits = np.random.default_rng(1).normal(size=(4, 16))
        assert effect_of(logits, logits + 3) == pytest.approx(0, abs=1e-12)


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

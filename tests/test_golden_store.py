"""The golden store: no torch here."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quantised_base import dequantised
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden import GoldenMissing
from harness.golden import GoldenStore
from harness.golden import adapter_digest
from harness.golden import prompts_of
from harness.golden.identity import weights_digest
from harness.golden.index import GoldenIndex
from harness.golden.tensors import TensorFile


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASE, GOLDEN = FIXTURES / "base", FIXTURES / "golden"
QUANTISED = FIXTURES / "golden-rk1828"
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

    def test_other_versions_of_the_reference_are_refused(self, store):
        store.check_versions(store.versions)
        with pytest.raises(UsageFault) as error:
            store.check_versions({**store.versions, "peft": "0.0"})
        assert "peft" in one_line(error)

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


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory) -> Path:
    """The base as the simulated RK1828's compiler has it."""
    return dequantised(tmp_path_factory.mktemp("converted"))


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory) -> Path:
    """A base of the same sizes with other weights."""
    folder = tmp_path_factory.mktemp("finetuned") / "base"
    shutil.copytree(BASE, folder)
    file = TensorFile(folder / "model.safetensors")
    tensors = {name: file.array(name) for name in file.tensors}
    name = next(n for n in tensors if "layers.0" in n)
    tensors[name] = tensors[name] * tensors[name].dtype.type(2)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


class TestTwoBases:
    """A board that quantises has two bases, and a golden is for one of them."""

    def test_the_one_it_is_for_is_taken(self, multiplied):
        for bases in ((multiplied, BASE), (BASE, multiplied)):
            store = GoldenStore.open(QUANTISED, *bases)
            assert store.reference_base == multiplied
            assert store.lm_head.shape == (512, 128)
            assert GoldenStore.open(GOLDEN, *bases).reference_base == BASE

    def test_a_golden_for_neither_names_both(self, finetuned):
        with pytest.raises(UsageFault) as error:
            GoldenStore.open(QUANTISED, finetuned, BASE)
        text = one_line(error)
        assert str(finetuned) in text and str(BASE) in text
        assert f"made from weights {weights_digest(BASE)[:12]}" in text

    def test_device_states_and_logits_have_the_dtypes_of_the_device(self, multiplied):
        store = GoldenStore.open(QUANTISED, multiplied)
        file = TensorFile(QUANTISED / "states" / "base.safetensors")
        assert {n: t.dtype for n, t in file.tensors.items()} == {
            "hidden": "F32",
            "hidden_device": "F16",
        }
        base = store.base()
        device, exact = base.device.logits, base.exact.logits
        assert np.array_equal(device, device.astype(np.float16).astype(np.float32))
        assert not np.array_equal(exact, exact.astype(np.float16).astype(np.float32))

    def test_source_and_device_base_survive_writing(self, copy):
        plain = GoldenIndex.read(copy)
        assert (plain.source, plain.device_base) == ("", "")
        assert GoldenIndex.read(QUANTISED).source == weights_digest(BASE)
        index = replace(plain, source="a" * 64, device_base="b" * 64)
        index.write(copy)
        assert GoldenIndex.read(copy) == index

    def test_results_on_another_device_base_have_another_key(self, store, copy):
        replace(store.index, device_base="b" * 64).write(copy)
        assert GoldenStore.open(copy, BASE).key != store.key

    def test_plain_golden_is_written_as_before_there_were_two_bases(self, copy):
        before = (copy / "golden.json").read_bytes()
        GoldenIndex.read(copy).write(copy)
        assert (copy / "golden.json").read_bytes() == before

    def test_scheme_of_a_later_version(self, store, copy):
        replace(store.index, scheme="w2a8").write(copy)
        with pytest.raises(UsageFault, match="no scheme 'w2a8'"):
            GoldenStore.open(copy, BASE)

"""Goldens are made whole or not at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from quantised_base import dequantised
from safetensors.numpy import save_file

from harness.cli import main
from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import Prompt
from harness.golden import PromptSet
from harness.golden import adapter_digest
from harness.golden import prompts_of
from harness.golden.identity import weights_digest
from harness.golden.tensors import TensorFile
from harness.golden.writer import write_golden


for package in ("torch", "transformers", "peft"):
    pytest.importorskip(package)

pytestmark = pytest.mark.reference

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASE, GOLDEN = FIXTURES / "base", FIXTURES / "golden"
R8 = FIXTURES / "adapters" / "r8-all"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter that a test may spoil."""
    return Path(shutil.copytree(R8, tmp_path / "spoilt"))


class TestWrite:
    def test_new_adapter_with_prompts_of_a_golden(self, tmp_path, adapter):
        prompts, _ = prompts_of(GOLDEN)
        few = prompts.few(2, 6)
        seen: list[str] = []
        write_golden(BASE, [adapter], few, {}, tmp_path / "g", progress=seen.append)
        store = GoldenStore.open(tmp_path / "g", BASE)
        digest = adapter_digest(adapter)
        assert store.has(digest) and store.domain_prompts(digest) is None
        assert store.prompts == few
        assert seen == ["base", "spoilt"]
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    def test_refused_adapter_leaves_the_old_golden(self, tmp_path, adapter):
        few = prompts_of(GOLDEN)[0].few(1, 2)
        write_golden(BASE, [R8], few, {}, tmp_path / "g")
        before = (tmp_path / "g" / "golden.json").read_bytes()
        path = adapter / "adapter_model.safetensors"
        file = TensorFile(path)
        save_file({n: file.array(n) for n in sorted(file.tensors)[1:]}, path)
        with pytest.raises(UsageFault):
            write_golden(BASE, [adapter], few, {}, tmp_path / "g")
        assert (tmp_path / "g" / "golden.json").read_bytes() == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "spoilt"]

    def test_folder_that_is_no_golden_is_left_alone(self, tmp_path):
        (tmp_path / "mine.txt").write_text("x")
        few = prompts_of(GOLDEN)[0].few(1, 2)
        with pytest.raises(UsageFault, match="not a golden"):
            write_golden(BASE, [R8], few, {}, tmp_path)
        assert (tmp_path / "mine.txt").read_text() == "x"

    def test_two_adapters_of_one_content(self, tmp_path, adapter):
        few = prompts_of(GOLDEN)[0].few(1, 2)
        with pytest.raises(UsageFault, match="same content"):
            write_golden(BASE, [R8, adapter], few, {}, tmp_path / "g")

    def test_token_outside_the_vocabulary(self, tmp_path):
        foreign = PromptSet((Prompt("x", "y", (1, 512), (3,)),))
        with pytest.raises(UsageFault, match="outside the vocabulary"):
            write_golden(BASE, [R8], foreign, {}, tmp_path / "g")


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory) -> Path:
    """The base as the simulated RK1828's compiler has it."""
    return dequantised(tmp_path_factory.mktemp("converted"))


class TestQuantisedDevice:
    def test_floor_without_the_multiplied_base_holds_the_quantisation(
        self, tmp_path, multiplied
    ):
        few = prompts_of(GOLDEN)[0].few(4, 20)
        source = weights_digest(BASE)
        write_golden(
            multiplied, [R8], few, {}, tmp_path / "a", scheme="w4a16", source=source
        )
        write_golden(
            BASE, [R8], few, {}, tmp_path / "b", scheme="w4a16", device_base=multiplied
        )
        near = GoldenStore.open(tmp_path / "a", multiplied, BASE)
        far = GoldenStore.open(tmp_path / "b", multiplied, BASE)
        assert (near.reference_base, far.reference_base) == (multiplied, BASE)
        assert (near.index.source, near.index.device_base) == (source, "")
        assert (far.index.source, far.index.device_base) == (
            "",
            weights_digest(multiplied),
        )
        state = TensorFile(tmp_path / "a" / "states" / "base.safetensors")
        assert state.tensors["hidden_device"].dtype == "F16"
        # One device, two references.
        assert np.allclose(
            near.base().device.logits, far.base().device.logits, atol=0.01
        )
        digest = adapter_digest(R8)
        assert far.entry(digest).gap.delta > 3 * near.entry(digest).gap.delta
        assert far.entry(digest).gap.base > 5 * near.entry(digest).gap.base

    def test_another_model_is_no_device_base(self, tmp_path, multiplied):
        other = Path(shutil.copytree(multiplied, tmp_path / "other"))
        file = TensorFile(other / "model.safetensors")
        tensors = {n: file.array(n) for n in file.tensors}
        tensors["lm_head.weight"] = tensors["lm_head.weight"][::-1].copy()
        save_file(tensors, other / "model.safetensors", {"format": "pt"})
        few = prompts_of(GOLDEN)[0].few(1, 2)
        with pytest.raises(UsageFault, match="lm_head is not that of"):
            write_golden(BASE, [R8], few, {}, tmp_path / "g", device_base=other)
        assert not (tmp_path / "g").exists()


class TestCommand:
    """`harness golden`."""

    @pytest.fixture
    def command(self, tmp_path, monkeypatch):
        few = prompts_of(GOLDEN)[0].few(1, 2)
        write_golden(BASE, [R8], few, {}, tmp_path / "few")

        def run(base: Path, *options: str | Path) -> None:
            arguments = ["golden", base, "--adapter", R8, "--prompts", tmp_path / "few"]
            arguments += ["--out", tmp_path / "g", *options]
            monkeypatch.setattr(sys, "argv", ["harness", *map(str, arguments)])
            main()

        return run

    def test_both_kinds_of_quantised_golden(self, command, tmp_path, multiplied):
        for base, option, other in (
            (multiplied, "--source", BASE),
            (BASE, "--device-base", multiplied),
        ):
            with pytest.raises(SystemExit) as end:
                command(base, "--scheme", "w4a16", option, other)
            assert not end.value.code
            store = GoldenStore.open(tmp_path / "g", base)
            assert store.scheme == "w4a16"
            found = store.index.source or store.index.device_base
            assert found == weights_digest(other)

    @pytest.mark.parametrize(
        ("options", "cause"),
        [
            (["--scheme", "w8a8"], "no scheme 'w8a8'"),
            (["--device-base", "nowhere"], "nowhere"),
            (["--source", "nowhere"], "nowhere"),
        ],
    )
    def test_bad_value_is_one_line(self, command, tmp_path, capsys, options, cause):
        with pytest.raises(SystemExit) as end:
            command(BASE, *options)
        (line,) = capsys.readouterr().err.splitlines()
        assert end.value.code == 4 and cause in line
        assert not (tmp_path / "g").exists()

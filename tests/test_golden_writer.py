"""Goldens are made whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import Prompt
from harness.golden import PromptSet
from harness.golden import adapter_digest
from harness.golden import prompts_of
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

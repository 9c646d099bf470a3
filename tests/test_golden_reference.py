"""The reference gives the committed goldens again, and stays clean."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from quantised_base import dequantised
from safetensors.numpy import save_file

from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import Prompt
from harness.golden import PromptSet
from harness.golden import adapter_digest
from harness.golden.gap import relative_l2
from harness.golden.identity import lm_head_of
from harness.golden.store import logits_of
from harness.golden.tensors import TensorFile


torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from harness.golden import reference as reference_module  # noqa: E402
from harness.golden.reference import PeftReference  # noqa: E402
from harness.golden.reference import ReferenceContaminated  # noqa: E402
from harness.golden.reference import load_base  # noqa: E402
from harness.golden.reference import with_adapter  # noqa: E402


pytestmark = pytest.mark.reference

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASE, GOLDEN = FIXTURES / "base", FIXTURES / "golden"
ADAPTERS = sorted(p for p in (FIXTURES / "adapters").iterdir() if p.is_dir())
IDS = [p.name for p in ADAPTERS]
R8 = FIXTURES / "adapters" / "r8-all"


@pytest.fixture(scope="module", autouse=True)
def threads():
    torch.set_num_threads(1)  # the model is small: more threads only wait


@pytest.fixture(scope="module")
def store() -> GoldenStore:
    return GoldenStore.open(GOLDEN, BASE)


@pytest.fixture(scope="module")
def reference() -> PeftReference:
    return PeftReference(BASE)


@pytest.fixture(scope="module")
def head() -> np.ndarray:
    return lm_head_of(BASE).astype(np.float32)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter that a test may spoil."""
    return Path(shutil.copytree(R8, tmp_path / "spoilt"))


def rewrite(adapter: Path, change) -> None:
    """Change the tensors of an adapter in place."""
    path = adapter / "adapter_model.safetensors"
    file = TensorFile(path)
    tensors = {name: file.array(name) for name in file.tensors}
    change(tensors)
    save_file(tensors, path)


class TestGoldens:
    # float32 sums in another order give 1e-6; bf16 rounds to 4e-3, and another
    # processor may sum in another order before it rounds.
    def test_base(self, reference, store, head):
        found = reference.score(store.prompts)
        want = store.base()
        assert relative_l2(logits_of(found.exact, head), want.exact.logits) <= 1e-5
        assert relative_l2(logits_of(found.device, head), want.exact.logits) <= 0.02

    @pytest.mark.parametrize("folder", ADAPTERS, ids=IDS)
    def test_adapter(self, folder, reference, store, head):
        digest = adapter_digest(folder)
        samples = store.domain_prompts(digest)
        main, own = reference.score_all([store.prompts, samples], folder)
        for found, want in (
            (main, store.adapter(digest)),
            (own, store.adapter(digest, digest)),
        ):
            assert relative_l2(logits_of(found.exact, head), want.exact.logits) <= 1e-5
            assert (
                relative_l2(logits_of(found.device, head), want.device.logits) <= 0.02
            )

    def test_on_a_device_of_four_bits(self, tmp_path):
        base = dequantised(tmp_path)
        store = GoldenStore.open(FIXTURES / "golden-rk1828", base)
        head = lm_head_of(base).astype(np.float32)
        reference = PeftReference(base, "w4a16")
        for found, want in (
            (reference.score(store.prompts), store.base()),
            (reference.score(store.prompts, R8), store.adapter(adapter_digest(R8))),
        ):
            assert relative_l2(logits_of(found.exact, head), want.exact.logits) <= 1e-5
            # A float32 sum in another order may move a code of the cache.
            assert (
                relative_l2(logits_of(found.device, head), want.device.logits) <= 0.004
            )

    @pytest.mark.parametrize("folder", ADAPTERS, ids=IDS)
    def test_merged_weights_give_the_same_logits(self, folder, store):
        few = store.prompts.few(4, 40)
        tuned = with_adapter(load_base(BASE, "float32"), folder, "float32")
        merged = tuned.merge_and_unload()
        assert not [n for n, _ in merged.named_parameters() if "lora_" in n]
        rows = []
        with torch.inference_mode():
            for p in few:
                ids = torch.tensor([p.tokens + p.continuation])
                rows.append(merged(input_ids=ids).logits[0, len(p.tokens) - 1 : -1])
        want = store.adapter(adapter_digest(folder)).on(few).exact.logits
        assert relative_l2(torch.cat(rows).numpy(), want) <= 1e-4


class TestCleanBase:
    def test_base_is_the_same_after_an_adapter(self, reference, store):
        few = store.prompts.few(2, 10)
        before = reference.score(few)
        reference.score(few, R8)
        after = reference.score(few)
        assert np.array_equal(before.exact, after.exact)
        assert np.array_equal(before.device, after.device)

    def test_contaminated_base_is_found(self, store, monkeypatch):
        """PEFT wraps in place: a base that is used twice carries the adapter."""
        kept = {}

        def careless(base, arithmetic):
            if arithmetic not in kept:
                kept[arithmetic] = load_base(base, arithmetic)
            return kept[arithmetic]

        monkeypatch.setattr(reference_module, "load_base", careless)
        few = store.prompts.few(1, 10)
        reference = PeftReference(BASE)
        reference.score(few, R8)
        with pytest.raises(ReferenceContaminated, match="differs from its first"):
            reference.score(few)


class TestRefusals:
    def test_missing_tensor(self, adapter, reference, store):
        def drop(tensors):
            del tensors[sorted(tensors)[0]]

        rewrite(adapter, drop)
        with pytest.raises(UsageFault, match="missing, unexpected"):
            reference.score(store.prompts.few(1, 1), adapter)

    def test_unexpected_tensor(self, adapter, reference, store):
        def add(tensors):
            name = sorted(tensors)[0]
            tensors[name.replace("layers.0", "layers.9")] = tensors[name]

        rewrite(adapter, add)
        with pytest.raises(UsageFault, match="missing, unexpected"):
            reference.score(store.prompts.few(1, 1), adapter)

    def test_adapter_of_another_shape(self, adapter, reference, store):
        def cut(tensors):
            for name, value in tensors.items():
                if "lora_A" in name:
                    tensors[name] = np.ascontiguousarray(value[:, :64])

        rewrite(adapter, cut)
        with pytest.raises(UsageFault, match="PEFT does not load it"):
            reference.score(store.prompts.few(1, 1), adapter)

    def test_no_adapter_at_all(self, tmp_path, reference, store):
        with pytest.raises(UsageFault):
            reference.score(store.prompts.few(1, 1), tmp_path)

    def test_adapted_lm_head(self, tmp_path, reference, store):
        model = load_base(BASE, "float32")
        config = peft.LoraConfig(
            r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False
        )
        tuned = peft.get_peft_model(model, config)
        tuned.save_pretrained(tmp_path / "head", save_embedding_layers=False)
        with pytest.raises(UsageFault, match="hidden states x lm_head"):
            reference.score(store.prompts.few(1, 4), tmp_path / "head")

    def test_base_that_lacks_a_tensor(self, tmp_path, store):
        base = Path(shutil.copytree(BASE, tmp_path / "base"))
        file = TensorFile(base / "model.safetensors")
        tensors = {n: file.array(n) for n in sorted(file.tensors)[:-1]}
        save_file(tensors, base / "model.safetensors", {"format": "pt"})
        with pytest.raises(UsageFault, match="lacks 1 tensors"):
            PeftReference(base).score(store.prompts.few(1, 1))


class TestVariants:
    """Kinds of adapters that boards may refuse and the reference must not."""

    @pytest.mark.parametrize(
        "options",
        [
            {"use_dora": True},
            {"lora_bias": True},
            {"modules_to_save": ["down_proj"]},
        ],
        ids=["dora", "lora_bias", "modules_to_save"],
    )
    def test_is_scored_and_base_stays(self, tmp_path, reference, store, options):
        few = store.prompts.few(1, 10)
        config = peft.LoraConfig(
            r=4, target_modules=["q_proj"], init_lora_weights=False, **options
        )
        tuned = peft.get_peft_model(load_base(BASE, "float32"), config)
        tuned.save_pretrained(tmp_path / "one", save_embedding_layers=False)
        base = reference.score(few)
        assert not np.array_equal(
            reference.score(few, tmp_path / "one").exact, base.exact
        )
        assert np.array_equal(reference.score(few).exact, base.exact)


@pytest.mark.parametrize("tied", [True, False])
def test_text_only_base(tmp_path, tied):
    """A causal LM is scored like the vision-language class, its head tied or not."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=tied,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    prompts = PromptSet((Prompt("a", "d", (1, 2, 3), (4, 5)),))
    hidden = PeftReference(tmp_path).score(prompts)
    with torch.inference_mode():
        want = model(input_ids=torch.tensor([[1, 2, 3, 4, 5]])).logits[0, 2:4]
    head = lm_head_of(tmp_path).astype(np.float32)
    assert relative_l2(logits_of(hidden.exact, head), want.numpy()) <= 1e-5


def test_missing_extra_is_named(tmp_path):
    """Without torch the fault names the extra, in one line."""
    (tmp_path / "torch.py").write_text("raise ImportError('no', name='torch')\n")
    code = (
        "from pathlib import Path\n"
        "from harness.errors import UsageFault\n"
        "from harness.golden.reference import PeftReference\n"
        "try:\n"
        f"    PeftReference(Path({str(BASE)!r}))\n"
        "except UsageFault as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{FIXTURES.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "[reference]" in run.stdout and "'torch'" in run.stdout


def test_room_does_not_import_torch():
    code = "import sys, harness.golden; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(FIXTURES.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert run.stdout.strip() == "False"


def test_golden_says_which_versions_made_it(store):
    assert set(store.versions) == {"torch", "transformers", "peft"}
    assert json.loads((GOLDEN / "golden.json").read_text())["scheme"] == "bf16"

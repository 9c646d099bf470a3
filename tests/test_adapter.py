"""Adapter and base folders: what is read from them, and how they are refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_adapters import BASE
from made_adapters import adapters
from made_adapters import factors
from made_adapters import path_of
from made_adapters import write_adapter
from made_adapters import write_base

from harness.artifacts.adapter import Adapter
from harness.artifacts.model import Base
from harness.errors import UsageFault


class TestReading:
    def test_facts_of_a_saved_adapter(self) -> None:
        adapter = Adapter.open(BASE.parent / "adapters" / "r8-all")
        assert adapter.name == "r8-all"
        assert len(adapter.digest) == 64
        assert len(adapter.modules) == 28
        module = next(m for m in adapter.modules if m.name == "down_proj")
        assert (module.rank, module.alpha, module.scale) == (8, 16.0, 2.0)
        assert (module.in_features, module.out_features) == (256, 128)
        assert module.dtype == "BF16"

    @pytest.mark.parametrize(
        ("config", "scale"),
        [
            ({"r": 8, "lora_alpha": 16}, 2.0),
            ({"r": 8, "lora_alpha": 24.5}, 24.5 / 8),
            ({"r": 8, "lora_alpha": 16, "use_rslora": True}, 16 / np.sqrt(8)),
            ({"r": 4, "rank_pattern": {"q_proj": 8}}, 2.0),
            ({"r": 8, "alpha_pattern": {r"layers\.0\..*q_proj": 4}}, 0.5),
            # PEFT: the first key that matches wins, a key matches whole parts.
            ({"alpha_pattern": {"proj": 1, "q_proj": 4, "self_attn.q_proj": 8}}, 0.5),
            ({"r": ..., "lora_alpha": ...}, 1.0),
        ],
    )
    def test_scale(self, tmp_path: Path, config: dict, scale: float) -> None:
        tensors = factors(8, layers=1, modules=["self_attn.q_proj"])
        adapter = Adapter.open(write_adapter(tmp_path / "a", tensors, **config))
        assert [m.scale for m in adapter.modules] == [pytest.approx(scale, rel=1e-15)]

    def test_data_is_what_was_saved(self, tmp_path: Path) -> None:
        tensors = factors(4)
        adapter = Adapter.open(write_adapter(tmp_path / "a", tensors, r=4))
        for name, values in tensors.items():
            assert adapter.data(name).tobytes() == values.tobytes()

    def test_digest_is_of_the_content_not_the_name(self, tmp_path: Path) -> None:
        one = write_adapter(tmp_path / "one", factors(8))
        two = shutil.copytree(one, tmp_path / "two")
        three = write_adapter(tmp_path / "three", factors(8, seed=1))
        digests = [Adapter.open(p).digest for p in (one, two, three)]
        assert digests[0] == digests[1] != digests[2]

    @pytest.mark.reference
    @pytest.mark.parametrize("folder", adapters(), ids=lambda p: p.name)
    def test_scales_are_those_of_peft(self, folder: Path) -> None:
        peft = pytest.importorskip("peft")
        transformers = pytest.importorskip("transformers")
        base = transformers.AutoModelForImageTextToText.from_pretrained(BASE)
        model = peft.PeftModel.from_pretrained(base, folder)
        layers = {
            name.removeprefix("base_model.model."): layer.scaling["default"]
            for name, layer in model.named_modules()
            if isinstance(layer, peft.tuners.lora.LoraLayer)
        }
        mine = {m.path: m.scale for m in Adapter.open(folder).modules}
        assert mine == layers


def _one_line(fault: pytest.ExceptionInfo[UsageFault]) -> str:
    text = str(fault.value)
    assert "\n" not in text
    assert fault.value.where
    assert fault.value.cure
    return text


class TestRefusing:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageFault) as fault:
            Adapter.open(tmp_path / "nowhere")
        assert "no such folder" in _one_line(fault)

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageFault) as fault:
            Adapter.open(tmp_path / "file")
        assert "not a folder" in _one_line(fault)

    def test_no_config_but_one_in_a_sub_folder(self, tmp_path: Path) -> None:
        write_adapter(tmp_path / "a" / "tuned", factors(8))
        with pytest.raises(UsageFault, match="sub-folder 'tuned'"):
            Adapter.open(tmp_path / "a")

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"peft_type": "LORA", "r": 8, "r": 16}',
            b'{"peft_type": "LORA", "lora_alpha": NaN}',
            b" " * (1 << 21),
        ],
        ids=["empty", "cut", "list", "binary", "deep", "twice", "nan", "large"],
    )
    def test_malformed_config(self, tmp_path: Path, text: bytes) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        (folder / "adapter_config.json").write_bytes(text)
        with pytest.raises(UsageFault) as fault:
            Adapter.open(folder)
        assert "adapter_config.json" in _one_line(fault)

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({"peft_type": "IA3"}, "not LORA"),
            ({"peft_type": ...}, "not LORA"),
            ({"r": 0}, "r is 0"),
            ({"r": "8"}, "r is '8'"),
            ({"r": True}, "r is True"),
            ({"lora_alpha": 10**400}, "lora_alpha"),
            ({"use_rslora": "yes"}, "use_rslora"),
            ({"rank_pattern": {"(": 4}}, "rank_pattern"),
            ({"alpha_pattern": [4]}, "alpha_pattern"),
            ({"target_modules": 7}, "target_modules"),
        ],
    )
    def test_field(self, tmp_path: Path, config: dict, says: str) -> None:
        folder = write_adapter(tmp_path / "a", factors(8), **config)
        with pytest.raises(UsageFault) as fault:
            Adapter.open(folder)
        assert says in _one_line(fault)

    def test_pickle_only(self, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        weights = folder / "adapter_model.safetensors"
        weights.rename(folder / "adapter_model.bin")
        with pytest.raises(UsageFault) as fault:
            Adapter.open(folder)
        assert "pickle" in _one_line(fault)
        assert "safe_serialization" in fault.value.cure

    def test_no_weights(self, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        (folder / "adapter_model.safetensors").unlink()
        with pytest.raises(UsageFault, match=r"no adapter_model\.safetensors"):
            Adapter.open(folder)

    def test_weights_that_are_a_pipe(self, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        (folder / "adapter_model.safetensors").unlink()
        os.mkfifo(folder / "adapter_model.safetensors")  # opening one would block
        with pytest.raises(UsageFault):
            Adapter.open(folder)

    def test_no_tensor(self, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", {})
        with pytest.raises(UsageFault, match="no tensor"):
            Adapter.open(folder)

    def test_data_after_the_file_went(self, tmp_path: Path) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        adapter = Adapter.open(folder)
        (folder / "adapter_model.safetensors").unlink()
        with pytest.raises(UsageFault):
            adapter.data(next(iter(adapter.tensors)))


class TestBase:
    def test_facts_of_the_fixture(self) -> None:
        base = Base.open(BASE)
        assert base.architecture == "Qwen3VLForConditionalGeneration"
        assert (base.layers, base.hidden, base.vocab, base.tied) == (4, 128, 512, False)
        assert len(base.linears) == 28
        linear = base.linears[3, "down_proj"]
        assert linear.path == path_of(3, "mlp.down_proj")
        assert (linear.in_features, linear.out_features) == (256, 128)
        assert base.biased == []
        assert len(base.identity.weights) == 64

    def test_text_only_names(self, tmp_path: Path) -> None:
        base = Base.open(write_base(tmp_path / "b", prefix="model.layers"))
        assert base.linears[1, "q_proj"].path == "model.layers.1.self_attn.q_proj"

    def test_bias(self, tmp_path: Path) -> None:
        base = Base.open(write_base(tmp_path / "b", bias=True))
        assert [linear.path for linear in base.biased] == [
            path_of(layer, "self_attn.q_proj") for layer in range(2)
        ]

    def test_shards(self, tmp_path: Path) -> None:
        folder = write_base(tmp_path / "b")
        whole = Base.open(folder)
        shutil.move(folder / "model.safetensors", folder / "part.safetensors")
        index = {"weight_map": {"any": "part.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert Base.open(folder).linears == whole.linears

    @pytest.mark.parametrize("shard", ["../model.safetensors", "gone.safetensors", 7])
    def test_index_that_lies(self, tmp_path: Path, shard: object) -> None:
        folder = write_base(tmp_path / "b")
        index = {"weight_map": {"any": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UsageFault):
            Base.open(folder)

    def test_missing_linear_is_named(self, tmp_path: Path) -> None:
        gone = path_of(1, "mlp.up_proj")
        folder = write_base(tmp_path / "b", without=f"{gone}.weight")
        with pytest.raises(UsageFault, match="layer 1 has no up_proj"):
            Base.open(folder)

    def test_cut_weights(self, tmp_path: Path) -> None:
        folder = write_base(tmp_path / "b")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(UsageFault, match="truncated"):
            Base.open(folder)

    @pytest.mark.parametrize("what", ["folder", "config.json", "model.safetensors"])
    def test_not_there(self, tmp_path: Path, what: str) -> None:
        folder = write_base(tmp_path / "b")
        if what == "folder":
            shutil.rmtree(folder)
        else:
            (folder / what).unlink()
        with pytest.raises(UsageFault):
            Base.open(folder)

    @pytest.mark.parametrize("layers", [0, -1, "2", None, True])
    def test_config_without_layers(self, tmp_path: Path, layers: object) -> None:
        folder = write_base(tmp_path / "b")
        config = json.loads((folder / "config.json").read_text())
        config["text_config"]["num_hidden_layers"] = layers
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UsageFault, match="num_hidden_layers"):
            Base.open(folder)

"""The simulated compiler: what it writes and what it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save_file
from simulation import BASE
from simulation import bench
from simulation import compiled

from harness.errors import HarnessError
from harness.golden.identity import base_identity
from harness.simulator.bm1688.convert import convert
from harness.simulator.bm1688.convert import main


Q0 = "model.language_model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A copy of the fixture base that a test may spoil."""
    return Path(shutil.copytree(BASE, tmp_path / "base"))


def edit_config(base: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = base / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def edit_tensors(base: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = base / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def refused(base: Path, out: Path, **options: Any) -> str:
    """The one line that a refusal prints; nothing may be written."""
    command = [sys.executable, "-m", "harness.simulator.bm1688.convert"]
    command += [str(base), str(out)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2, run
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert list(out.parent.glob(f"*{out.name}*")) == []
    return run.stderr


class TestWritten:
    def test_sidecar(self, tmp_path: Path) -> None:
        out = compiled(tmp_path, reserved_rank=16, max_input=64, max_context=80)
        sidecar = json.loads((tmp_path / "model.json").read_text())
        assert sidecar["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
        identity = base_identity(BASE)
        assert sidecar["digests"] == {
            "weights": identity.weights,
            "tokenizer": identity.tokenizer,
            "chat_template": identity.chat_template,
            "config": identity.config,
        }
        assert sidecar["reserved_rank"] == 16
        assert sidecar["quantize"] == "bf16"
        assert (sidecar["max_input"], sidecar["max_context"]) == (64, 80)
        assert sidecar["converter"]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "model.json"]

    def test_same_base_same_bytes(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            convert(BASE, tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_weights_are_those_of_the_checkpoint(self, tmp_path: Path) -> None:
        with bench(compiled(tmp_path)) as board:
            memory = board.runtime.coefficients("block_0")[f"{Q0}.weight"]
            held = board.runtime.read(memory, 128 * 128 * 2).tobytes()
        with safe_open(BASE / "model.safetensors", "numpy") as file:
            assert held == file.get_tensor(f"{Q0}.weight").tobytes()

    def test_f32_holds_a_bf16_checkpoint_exactly(self, tmp_path: Path) -> None:
        with bench(compiled(tmp_path, quantize="f32")) as board:
            memory = board.runtime.coefficients("block_0")[f"{Q0}.weight"]
            held = board.runtime.read(memory, 128 * 128 * 4).view(np.float32)
            assert {s["dtype"] for s in board.slots.slots()} == {"f32"}
        with safe_open(BASE / "model.safetensors", "numpy") as file:
            weight = file.get_tensor(f"{Q0}.weight").astype(np.float32)
        assert np.array_equal(held, weight.reshape(-1))

    def test_float32_checkpoint_is_rounded(self, base: Path, tmp_path: Path) -> None:
        def widen(tensors: dict[str, np.ndarray]) -> None:
            tensors.update({n: t.astype(np.float32) for n, t in tensors.items()})

        edit_tensors(base, widen)
        convert(base, tmp_path / "out")
        convert(BASE, tmp_path / "same")
        size = 1 << 20  # weights behind the header, which names the digests
        assert (tmp_path / "out").read_bytes()[-size:] == (
            tmp_path / "same"
        ).read_bytes()[-size:]

    def test_tied_head(self, base: Path, tmp_path: Path) -> None:
        edit_tensors(base, lambda tensors: tensors.pop("lm_head.weight"))
        assert "lm_head.weight" in refused(base, tmp_path / "out")
        edit_config(base, lambda config: config.update(tie_word_embeddings=True))
        convert(base, tmp_path / "out")
        with bench(tmp_path / "out") as board:
            assert np.isfinite(board.score()).all()

    def test_shards(self, base: Path, tmp_path: Path) -> None:
        tensors = load_file(base / "model.safetensors")
        names = sorted(tensors)
        places = {}
        for number, part in enumerate((names[::2], names[1::2])):
            shard = f"model-{number}.safetensors"
            save_file({n: tensors[n] for n in part}, base / shard)
            places.update(dict.fromkeys(part, shard))
        (base / "model.safetensors").unlink()
        (base / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": places})
        )
        convert(base, tmp_path / "out")
        convert(BASE, tmp_path / "same")
        assert (tmp_path / "out").read_bytes() == (tmp_path / "same").read_bytes()

    def test_large_vocabulary(self, base: Path, tmp_path: Path) -> None:
        vocab = 151_936
        edit_config(base, lambda config: config["text_config"].update(vocab_size=vocab))

        def grow(tensors: dict[str, np.ndarray]) -> None:
            for name in ("lm_head.weight", "model.language_model.embed_tokens.weight"):
                tensors[name] = np.resize(tensors[name], (vocab, 128))

        edit_tensors(base, grow)
        convert(base, tmp_path / "out")
        with bench(tmp_path / "out") as board:
            logits = board.score()
        assert logits.shape == (8, vocab)
        assert np.array_equal(logits[:, :512], logits[:, 512:1024])


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
            ({"text_config": None}, "text_config"),
            ({"quantization_config": {"bits": 4}}, "quantised"),
        ],
    )
    def test_architecture(
        self, base: Path, tmp_path: Path, change: dict[str, Any], text: str
    ) -> None:
        edit_config(base, lambda config: config.update(change))
        assert text in refused(base, tmp_path / "out")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"attention_bias": True}, "bias"),
            ({"hidden_act": "gelu"}, "gelu"),
            ({"num_key_value_heads": 3}, "sizes"),
            ({"head_dim": "wide"}, "text_config"),
            ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
            ({"num_hidden_layers": 5}, "layers.4"),
            ({"hidden_size": 64}, "not [512, 64]"),
        ],
    )
    def test_text_config(
        self, base: Path, tmp_path: Path, change: dict[str, Any], text: str
    ) -> None:
        edit_config(base, lambda config: config["text_config"].update(change))
        assert text in refused(base, tmp_path / "out")

    def test_bias_tensor(self, base: Path, tmp_path: Path) -> None:
        edit_tensors(
            base, lambda t: t.update({f"{Q0}.bias": np.zeros(128, np.float32)})
        )
        assert "bias" in refused(base, tmp_path / "out")

    def test_missing_tensor(self, base: Path, tmp_path: Path) -> None:
        edit_tensors(base, lambda tensors: tensors.pop(f"{Q0}.weight"))
        assert Q0 in refused(base, tmp_path / "out")

    def test_integer_tensor(self, base: Path, tmp_path: Path) -> None:
        edit_tensors(
            base, lambda t: t.update({f"{Q0}.weight": np.zeros((128, 128), np.int8)})
        )
        assert "I8" in refused(base, tmp_path / "out")

    @pytest.mark.parametrize("keep", [0, 5, 1000, 100_000])
    def test_truncated_checkpoint(self, base: Path, tmp_path: Path, keep: int) -> None:
        path = base / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        assert "model.safetensors" in refused(base, tmp_path / "out")

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        assert "config.json" in refused(tmp_path / "nowhere", tmp_path / "out")

    def test_config_is_not_json(self, base: Path, tmp_path: Path) -> None:
        (base / "config.json").write_text("{")
        assert "not JSON" in refused(base, tmp_path / "out")

    @pytest.mark.parametrize("rank", [-1, 257])
    def test_reserved_rank(self, tmp_path: Path, rank: int) -> None:
        assert "rank" in refused(BASE, tmp_path / "out", reserved_rank=rank)

    def test_lengths(self, tmp_path: Path) -> None:
        text = refused(BASE, tmp_path / "out", max_input=96, max_context=90)
        assert "context" in text

    def test_options(self, tmp_path: Path) -> None:
        assert "w4" in refused(BASE, tmp_path / "out", quantize="w4")

    def test_nowhere_to_write(self, tmp_path: Path, capfd: Any) -> None:
        assert main([str(BASE), str(tmp_path / "none" / "out")]) == 2
        assert "cannot write" in capfd.readouterr().err

    def test_an_old_model_survives_a_refusal(self, base: Path, tmp_path: Path) -> None:
        out = compiled(tmp_path)
        old = out.read_bytes()
        path = base / "model.safetensors"
        path.write_bytes(path.read_bytes()[:100_000])
        with pytest.raises(HarnessError):
            convert(base, out)
        assert out.read_bytes() == old

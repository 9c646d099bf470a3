"""The simulated RK1828's compiler: w4a16, what it writes and what it refuses."""

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
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from old_python import with_numpy
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from harness.artifacts.model import Base
from harness.errors import ConversionRefused
from harness.errors import HarnessError
from harness.golden.identity import base_identity
from harness.simulator.decoder import LINEARS
from harness.simulator.rk1828.convert import convert
from harness.simulator.rk1828.convert import main
from harness.simulator.rk1828.modelfile import ModelFile
from harness.simulator.rk1828.modelfile import ModelFileError
from harness.simulator.rk1828.quantise import Int4
from harness.simulator.rk1828.quantise import int4
from harness.simulator.rk1828.quantise import roundtrip


# A warning would be a second line on stderr.
pytestmark = pytest.mark.filterwarnings("error")

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "fixtures" / "base"
LAYERS = "model.language_model.layers"
Q0 = f"{LAYERS}.0.self_attn.q_proj.weight"
EMBEDDING = "model.language_model.embed_tokens.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture base, compiled."""
    out = tmp_path_factory.mktemp("rk1828") / "model"
    convert(BASE, out)
    return out


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A copy of the fixture base that a test may spoil."""
    return Path(shutil.copytree(BASE, tmp_path / "base"))


def opened(out: Path) -> ModelFile:
    board = out / "board"
    return ModelFile(str(board / "model.rknn"), str(board / "model.weight"))


def content(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file()
    }


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


def refused(base: Path, out: Path) -> str:
    """Why it is refused; nothing may be written."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(HarnessError) as caught:
        convert(base, out)
    assert sorted(out.parent.iterdir()) == before
    return str(caught.value)


class TestQuantise:
    @given(
        arrays.arrays(
            np.float32,
            st.tuples(st.integers(1, 3), st.sampled_from([32, 64])),
            # Above the smallest normal scale in fp16, 7 * 2^-14.
            elements=st.floats(2**-10, 1000, width=32).flatmap(
                lambda x: st.sampled_from([x, -x])
            ),
        )
    )
    def test_int4_is_off_by_half_a_step(self, weight: np.ndarray) -> None:
        values = int4(weight).values
        grouped = weight.reshape(len(weight), -1, 32)
        step = np.abs(grouped).max(-1, keepdims=True) / 7
        error = np.abs(values.reshape(grouped.shape) - grouped)
        # Half a step, and what rounding the scale and the value to fp16 adds.
        assert (error <= step / 2 + 9 * step * 2**-10).all()

    @given(st.integers(0, 2**32 - 1))
    def test_int4_codes_survive_packing(self, seed: int) -> None:
        codes = np.random.default_rng(seed).integers(-8, 8, (3, 64))
        codes[:, ::32] = 7  # fixes the scale at 1
        codes = np.maximum(codes, -7)
        assert np.array_equal(int4(codes.astype(np.float32)).values, codes)

    def test_int4_as_the_definition_says(self) -> None:
        weight = np.zeros((1, 64), np.float32)
        # The third lies above half of a step of the rounded scale, and below half of
        # one of the exact scale.
        weight[0, :4] = [0.7, -0.7, 0.24995, -0.04]
        quantised = int4(weight)
        scale = np.float16(np.float32(0.7) / 7)
        assert quantised.scales.dtype == np.float16
        assert quantised.scales.tolist() == [[scale, 1]]
        assert quantised.packed[0, :3].tolist() == [7 | 9 << 4, 3, 0]
        expected = [np.float16(n * np.float32(scale)) for n in (7, -7, 3)]
        assert quantised.values[0, :3].tolist() == expected

    def test_the_lowest_code_is_minus_eight(self) -> None:
        packed = np.full((1, 16), 0x88, np.uint8)
        assert (Int4(packed, np.ones((1, 1), np.float16)).values == -8).all()

    @given(
        st.integers(0, 2**32 - 1),
        st.sampled_from([4, 6, 8]),
        st.sampled_from(["layer", "channel", "group32"]),
        st.sampled_from([0, 1]),
    )
    def test_adapters_are_off_by_half_a_step(
        self, seed: int, bits: int, method: str, axis: int
    ) -> None:
        values = np.random.default_rng(seed).normal(size=(4, 80)).astype(np.float32)
        held = roundtrip(values, bits, method, axis)
        largest = {
            "layer": np.abs(values).max(),
            "channel": np.abs(values).max(1 - axis, keepdims=True),
            "group32": np.repeat(
                np.abs(np.pad(values, ((0, 0), (0, 16)))).reshape(4, 3, 32).max(-1),
                32,
                axis=-1,
            )[:, :80],
        }[method]
        step = largest / (2 ** (bits - 1) - 1)
        assert held.shape == values.shape
        assert np.array_equal(held, held.astype(np.float16))
        assert (np.abs(held - values) <= step / 2 + largest * 2**-10).all()
        assert not np.array_equal(held, values.astype(np.float16))

    def test_more_bits_and_finer_groups_are_closer(self) -> None:
        values = np.random.default_rng(0).normal(size=(8, 128)).astype(np.float32)
        values *= np.arange(1, 9, dtype=np.float32)[:, None]
        errors = [
            float(np.linalg.norm(roundtrip(values, bits, method, 0) - values))
            for bits in (4, 6, 8)
            for method in ("layer", "channel", "group32")
        ]
        assert errors == sorted(errors, reverse=True)

    @pytest.mark.parametrize("method", ["layer", "channel", "group32"])
    def test_zero_stays_zero(self, method: str) -> None:
        assert not roundtrip(np.zeros((2, 40), np.float32), 4, method, 1).any()


class TestWritten:
    def test_sidecar(self, made: Path) -> None:
        sidecar = json.loads(made.with_name("model.json").read_text())
        digests = {
            name: hashlib.sha256(data).hexdigest()
            for name, data in sorted(content(made).items())
        }
        assert sidecar["files"] == digests
        lines = "".join(f"{digest} {name}\n" for name, digest in digests.items())
        assert sidecar["sha256"] == hashlib.sha256(lines.encode()).hexdigest()
        assert sidecar["digests"] == base_identity(BASE).to_json()
        assert sidecar["dequantised"] == base_identity(made / "dequantised").to_json()
        assert sidecar["scheme"] == "w4a16"
        assert sidecar["context_lengths"] == [192, 320]

    def test_what_lies_there(self, made: Path) -> None:
        names = {p.name for p in made.iterdir()}
        assert names == {"board", "dequantised"}
        board = {p.name for p in (made / "board").iterdir()}
        assert board == {"model.rknn", "model.weight", "embed.bin"}
        assert {p.name for p in made.parent.iterdir()} == {"model", "model.json"}

    def test_same_base_same_bytes(self, made: Path, tmp_path: Path) -> None:
        convert(BASE, tmp_path / "again")
        assert content(tmp_path / "again") == content(made)
        assert (tmp_path / "again.json").read_bytes() == made.with_name(
            "model.json"
        ).read_bytes()

    def test_model_file_holds_the_dequantised_weights(self, made: Path) -> None:
        """Board and reference compute with the same numbers, bit for bit."""
        model = opened(made)
        kept = load_file(made / "dequantised" / "model.safetensors")
        assert {v.dtype for v in kept.values()} == {np.dtype(np.float16)}
        for name, values in model.tensors.items():
            assert values.dtype == np.float32
            assert np.array_equal(values, kept[name]), name
        embedding = model.embedding(str(made / "board" / "embed.bin"))
        assert np.array_equal(embedding, kept[EMBEDDING])
        assert len(model.tensors) == 4 * 11 + 2

    def test_only_the_layers_linears_are_quantised(self, made: Path) -> None:
        source = load_file(BASE / "model.safetensors")
        kept = load_file(made / "dequantised" / "model.safetensors")
        assert kept.keys() == source.keys()
        changed = {
            name
            for name, values in source.items()
            if not np.array_equal(values.astype(np.float16), kept[name])
        }
        assert changed == {
            f"{LAYERS}.{layer}.{module}.weight"
            for layer in range(4)
            for module in LINEARS
        }

    def test_facts(self, made: Path) -> None:
        model = opened(made)
        assert model.base_digest == base_identity(BASE).weights
        assert model.context_lengths == (192, 320)
        assert (model.chunk, model.kv_group, model.kv_residual) == (128, 32, 32)
        assert model.architecture.layers == 4
        assert model.prefix == "model.language_model"

    def test_dequantised_is_a_checkpoint(self, made: Path, tmp_path: Path) -> None:
        folder = made / "dequantised"
        assert Base.open(folder).linears == Base.open(BASE).linears
        ours, source = base_identity(folder), base_identity(BASE)
        assert ours.weights != source.weights
        assert (ours.tokenizer, ours.chat_template, ours.config) == (
            source.tokenizer,
            source.chat_template,
            source.config,
        )
        config = json.loads((folder / "config.json").read_text())
        assert config["dtype"] == config["text_config"]["dtype"] == "float16"

    def test_quantising_twice_changes_little(self, made: Path, tmp_path: Path) -> None:
        """The dequantised checkpoint is close to a fixed point of the compiler."""
        convert(made / "dequantised", tmp_path / "again")
        once, twice = opened(made).tensors[Q0], opened(tmp_path / "again").tensors[Q0]
        assert np.abs(once - twice).max() <= np.abs(once).max() * 2**-9

    def test_shards(self, made: Path, base: Path, tmp_path: Path) -> None:
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
        assert content(tmp_path / "out") == content(made)

    def test_tied_head(self, base: Path, tmp_path: Path) -> None:
        edit_tensors(base, lambda tensors: tensors.pop("lm_head.weight"))
        assert "lm_head.weight" in refused(base, tmp_path / "out")
        edit_config(base, lambda config: config.update(tie_word_embeddings=True))
        convert(base, tmp_path / "out")
        model = opened(tmp_path / "out")
        embedding = model.embedding(str(tmp_path / "out" / "board" / "embed.bin"))
        assert np.array_equal(model.tensors["lm_head.weight"], embedding)

    def test_context_lengths(self, tmp_path: Path) -> None:
        options = ["--context-lengths", "320,64,192"]
        assert main([str(BASE), str(tmp_path / "out"), *options]) == 0
        assert opened(tmp_path / "out").context_lengths == (64, 192, 320)


class TestRead:
    @pytest.mark.parametrize("keep", [0, 7, 16, 300, 5000, -4096, -1])
    def test_cut_weights(self, made: Path, tmp_path: Path, keep: int) -> None:
        whole = (made / "board" / "model.weight").read_bytes()
        cut = tmp_path / "model.weight"
        cut.write_bytes(whole[:keep])
        with pytest.raises(ModelFileError, match=r"^[^\n]*model\.weight: [^\n]+$"):
            ModelFile(str(made / "board" / "model.rknn"), str(cut))

    @pytest.mark.parametrize("keep", [0, 7, 16, 300, -1])
    def test_cut_graph(self, made: Path, tmp_path: Path, keep: int) -> None:
        cut = tmp_path / "model.rknn"
        cut.write_bytes((made / "board" / "model.rknn").read_bytes()[:keep])
        with pytest.raises(ModelFileError, match=r"model\.rknn: "):
            ModelFile(str(cut), str(made / "board" / "model.weight"))

    def test_weights_of_another_graph(self, made: Path, tmp_path: Path) -> None:
        convert(BASE, tmp_path / "other", context_lengths=[64])
        with pytest.raises(ModelFileError, match="belong to another"):
            ModelFile(
                str(tmp_path / "other" / "board" / "model.rknn"),
                str(made / "board" / "model.weight"),
            )

    def test_graph_and_weights_exchanged(self, made: Path) -> None:
        board = made / "board"
        with pytest.raises(ModelFileError, match="not a file of this format"):
            ModelFile(str(board / "model.weight"), str(board / "model.rknn"))

    def test_no_file(self, made: Path) -> None:
        with pytest.raises(ModelFileError, match="No such file"):
            ModelFile("/nowhere/model.rknn", str(made / "board" / "model.weight"))

    def test_embedding_of_another_size(self, made: Path, tmp_path: Path) -> None:
        cut = tmp_path / "embed.bin"
        cut.write_bytes((made / "board" / "embed.bin").read_bytes()[:-2])
        with pytest.raises(ModelFileError, match=r"131070 bytes, .* 131072"):
            opened(made).embedding(str(cut))

    def test_python_3_8_reads_it(self, made: Path) -> None:
        python = with_numpy()
        if python is None:
            pytest.skip("no Python 3.8 with numpy on this machine")
        program = (
            "import sys; from harness.simulator.rk1828.modelfile import ModelFile\n"
            "model = ModelFile(*sys.argv[1:3])\n"
            "print(float(sum(t.sum(dtype='f8') for t in model.tensors.values())))"
        )
        board = made / "board"
        run = subprocess.run(
            [python, "-c", program, board / "model.rknn", board / "model.weight"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        ours = sum(t.sum(dtype="f8") for t in opened(made).tensors.values())
        assert float(run.stdout) == pytest.approx(ours, rel=1e-9)


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
            ({"quantization_config": {"bits": 4}}, "quantised"),
        ],
    )
    def test_architecture(
        self, base: Path, tmp_path: Path, change: dict[str, Any], text: str
    ) -> None:
        edit_config(base, lambda config: config.update(change))
        assert text in refused(base, tmp_path / "out")

    def test_bias(self, base: Path, tmp_path: Path) -> None:
        edit_config(base, lambda c: c["text_config"].update(attention_bias=True))
        assert "bias" in refused(base, tmp_path / "out")

    def test_inputs_not_in_groups(self, base: Path, tmp_path: Path) -> None:
        def narrow(tensors: dict[str, np.ndarray]) -> None:
            for name, values in tensors.items():
                if ".gate_proj" in name or ".up_proj" in name:
                    tensors[name] = values[:240]
                elif ".down_proj" in name:
                    tensors[name] = np.ascontiguousarray(values[:, :240])

        edit_config(base, lambda c: c["text_config"].update(intermediate_size=240))
        edit_tensors(base, narrow)
        text = refused(base, tmp_path / "out")
        assert "mlp.down_proj has 240 inputs" in text
        assert "multiple of 32" in text

    @pytest.mark.parametrize("value", [np.nan, np.inf, 70_000.0])
    @pytest.mark.parametrize("name", [Q0, EMBEDDING, "model.visual.pos_embed.weight"])
    def test_values_beyond_fp16(
        self, base: Path, tmp_path: Path, value: float, name: str
    ) -> None:
        def spoil(tensors: dict[str, np.ndarray]) -> None:
            values = tensors[name].astype(np.float32)
            values.flat[-1] = value
            tensors[name] = values

        edit_tensors(base, spoil)
        text = refused(base, tmp_path / "out")
        assert name in text
        assert "fp16" in text

    def test_integer_tensor(self, base: Path, tmp_path: Path) -> None:
        name = "model.visual.pos_embed.weight"
        edit_tensors(base, lambda t: t.update({name: np.zeros((64, 64), np.int8)}))
        assert f"{name} is I8" in refused(base, tmp_path / "out")

    @pytest.mark.parametrize("keep", [0, 5, 1000, 100_000])
    def test_truncated_checkpoint(self, base: Path, tmp_path: Path, keep: int) -> None:
        path = base / "model.safetensors"
        path.write_bytes(path.read_bytes()[:keep])
        assert "model.safetensors" in refused(base, tmp_path / "out")

    @pytest.mark.parametrize(
        "lengths", [[], [0], [-1], [192, 192], [2000], list(range(1, 18))]
    )
    def test_context_lengths(self, tmp_path: Path, lengths: list[int]) -> None:
        with pytest.raises(ConversionRefused, match="context length"):
            convert(BASE, tmp_path / "out", context_lengths=lengths)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_with_content_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("years of work")
        assert "not an empty folder" in refused(BASE, tmp_path / "out")
        assert content(tmp_path / "out") == {"thesis.tex": b"years of work"}

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["nowhere", "out"], "config.json"),
            ([str(BASE), "none/out"], "cannot write"),
            ([str(BASE), "out", "--context-lengths", "192;320"], "192;320"),
            ([str(BASE)], "out"),
        ],
    )
    def test_command(self, tmp_path: Path, arguments: list[str], text: str) -> None:
        """One line on stderr, status 2, nothing written."""
        run = subprocess.run(
            [sys.executable, "-m", "harness.simulator.rk1828.convert", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
        assert run.returncode == 2, run
        assert run.stdout == ""
        assert len(run.stderr.splitlines()) == 1, run.stderr
        assert text in run.stderr
        assert list(tmp_path.iterdir()) == []

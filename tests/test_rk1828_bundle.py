"""Bundles for the simulated RK1828: conversion, refusals, file, faulty converters."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_adapters import adapters
from old_python import with_numpy
from safetensors.numpy import load_file
from safetensors.numpy import save_file
from simulation import adapter as made_adapter

from harness.artifacts.adapter import Adapter
from harness.artifacts.forge.damaged import Damaged
from harness.artifacts.forge.damaged import damaged
from harness.errors import HarnessError
from harness.golden.identity import adapter_digest
from harness.golden.identity import base_identity
from harness.simulator.faults import converters
from harness.simulator.rk1828.bundle import bundle
from harness.simulator.rk1828.bundle import main
from harness.simulator.rk1828.bundlefile import BundledAdapter
from harness.simulator.rk1828.bundlefile import BundleFile
from harness.simulator.rk1828.bundlefile import BundleFileError
from harness.simulator.rk1828.bundler import Bundler
from harness.simulator.rk1828.bundler import Scheme


# A warning would be a second line on stderr.
pytestmark = pytest.mark.filterwarnings("error")

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "fixtures" / "base"
R4 = ROOT / "fixtures" / "adapters" / "r4-qv"
ALL = {folder.name: folder for folder in adapters()}
RESERVED = 256
DAMAGED = damaged(Adapter.open(ROOT / "fixtures" / "adapters" / "r8-all"), RESERVED)
# float16's smallest subnormal halved rounds to zero.
TINY = 2.0**-26


def made(
    out: Path, folders: Mapping[str, Path] = ALL, **options: Any
) -> dict[str, BundledAdapter]:
    """The adapters of a bundle made of these folders."""
    bundle(BASE, out, folders, **options)
    return BundleFile.open(str(out)).adapters


def sidecar(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.with_name(out.name + ".json").read_text())
    return found


def refused(out: Path, folders: Mapping[str, Path], *options: str, **more: Path) -> str:
    """The one line of a refusal with status 2; nothing may be written."""
    before = sorted(out.parent.rglob("*"))
    words = [f"{name}={folder}" for name, folder in folders.items()]
    line = refused_words(str(BASE), str(out), *words, *options)
    assert sorted(out.parent.rglob("*")) == before
    return line


def refused_words(*words: str) -> str:
    said = io.StringIO()
    with redirect_stderr(said):
        try:
            status: object = main(words)
        except SystemExit as ended:  # argparse
            status = ended.code
    assert status == 2
    assert len(said.getvalue().splitlines()) == 1, said.getvalue()
    return said.getvalue()


def flat(adapter: BundledAdapter) -> bytes:
    """Everything that an adapter computes with."""
    return b"".join(
        f"{key}{f.scale}".encode() + f.a.tobytes() + f.b.tobytes()
        for key, f in sorted(adapter.modules.items())
    )


class TestConverted:
    def test_values_and_scales(self, tmp_path: Path) -> None:
        """What the board gets is the folder's A, Bᵀ and alpha/r, for every module."""
        for name, bundled in made(tmp_path / "out").items():
            source = Adapter.open(ALL[name])
            assert len(bundled.modules) == len(source.modules)
            for module in source.modules:
                path = module.path.partition(f"layers.{module.layer}.")[2]
                a, b = source.factors(module.path)
                held = bundled.modules[module.layer, path]
                assert np.array_equal(held.a, a.astype(np.float16))
                assert np.array_equal(held.b, b.T.astype(np.float16))
                assert held.scale == np.float32(module.scale)

    def test_order_is_that_of_the_command(self, tmp_path: Path) -> None:
        names = sorted(ALL, reverse=True)
        found = made(tmp_path / "out", {name: ALL[name] for name in names})
        assert list(found) == names
        assert [adapter.name for adapter in found.values()] == names

    def test_sidecar(self, tmp_path: Path) -> None:
        out = tmp_path / "x.lora_weight"
        bundle(BASE, out, ALL)
        record = sidecar(out)
        assert record["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
        assert record["digests"] == base_identity(BASE).to_json()
        assert (record["dtype"], record["method"]) == ("float16", None)
        assert record["adapters"] == {
            name: {"digest": adapter_digest(folder), "dequantised": None}
            for name, folder in ALL.items()
        }
        assert BundleFile.open(str(out)).base_digest == base_identity(BASE).weights
        names = [p.name for p in sorted(tmp_path.iterdir())]
        assert names == ["x.lora_weight", "x.lora_weight.json"]

    @pytest.mark.parametrize("scheme", [Scheme(), Scheme("int4", "group32")])
    def test_same_input_same_bytes(self, tmp_path: Path, scheme: Scheme) -> None:
        for name in "ab":
            bundle(BASE, tmp_path / name, ALL, scheme=scheme)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()

    @pytest.mark.parametrize("method", ["layer", "channel", "group32"])
    @pytest.mark.parametrize("dtype", ["int8", "int6", "int4"])
    def test_quantised(self, tmp_path: Path, dtype: str, method: str) -> None:
        """The dequantised folder, as PEFT reads it, is what the board holds."""
        out, kept = tmp_path / "out", tmp_path / "kept"
        found = made(out, scheme=Scheme(dtype, method), dequantised=kept)
        record = sidecar(out)
        assert (record["dtype"], record["method"]) == (dtype, method)
        most = 2 ** (int(dtype[3:]) - 1)
        for name, bundled in found.items():
            held = Adapter.open(kept / name)
            assert held.digest == record["adapters"][name]["dequantised"]
            assert held.config == Adapter.open(ALL[name]).config
            assert {facts.dtype for facts in held.tensors.values()} == {"F16"}
            for module in held.modules:
                path = module.path.partition(f"layers.{module.layer}.")[2]
                a, b = held.factors(module.path)
                factors = bundled.modules[module.layer, path]
                assert np.array_equal(factors.a, a)
                assert np.array_equal(factors.b, b.T)
                rows = {"layer": a.reshape(1, -1), "channel": a}.get(
                    method, a.reshape(-1, 32)
                )
                values = max(len(np.unique(np.abs(row))) for row in rows)
                assert 2 < values <= most + 1

    def test_channels_of_b_are_its_outputs(self, tmp_path: Path) -> None:
        """A large output spoils its own row alone."""
        folder = made_adapter(tmp_path / "a", modules=["self_attn.q_proj"])
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        b = tensors[next(n for n in tensors if "layers.0." in n and "lora_B" in n)]
        b[5] *= 1000
        save_file(tensors, path)
        scheme = Scheme("int4", "channel")
        found = made(tmp_path / "out", {"a": folder}, scheme=scheme)["a"]
        held = found.modules[0, "self_attn.q_proj"].b.T
        others = np.arange(len(b)) != 5
        error = np.abs(held - b)[others].max()
        assert error <= np.abs(b[others]).max() / 13

    def test_dequantised_float16(self, tmp_path: Path) -> None:
        made(tmp_path / "out", {"a": R4}, dequantised=tmp_path / "kept")
        source, kept = Adapter.open(R4), Adapter.open(tmp_path / "kept" / "a")
        for name in source.tensors:
            values = source.data(name).astype(np.float16)
            assert np.array_equal(kept.data(name), values)

    def test_thirty_two(self, tmp_path: Path) -> None:
        folders = {f"adapter {number}": R4 for number in range(32)}
        assert list(made(tmp_path / "out", folders)) == list(folders)

    def test_other_names_of_tensors(self, tmp_path: Path) -> None:
        """Prefix and postfixes as the file has them give the same bundle."""
        folder = Path(shutil.copytree(R4, tmp_path / "odd"))
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        save_file(
            {
                n.replace("base_model.model.", "odd:", 1)
                .replace(".lora_A.weight", ".down")
                .replace(".lora_B.weight", ".up"): values
                for n, values in tensors.items()
            },
            path,
        )
        text = refused(tmp_path / "out", {"a": folder})
        assert "odd:" in text
        options = ["--prefix", "odd:", "--postfix-a", ".down", "--postfix-b", ".up"]
        out = tmp_path / "out"
        assert main([str(BASE), str(out), *options, f"a={folder}"]) == 0
        bundle(BASE, tmp_path / "plain", {"a": R4})
        assert out.read_bytes() == (tmp_path / "plain").read_bytes()
        assert sidecar(out)["adapters"]["a"]["digest"] == adapter_digest(folder)


class TestRefused:
    @pytest.mark.parametrize("case", DAMAGED, ids=[case.name for case in DAMAGED])
    def test_damaged(self, tmp_path: Path, case: Damaged) -> None:
        """Also where sound ones stand beside it."""
        folder = case.make(tmp_path / "folder")
        with pytest.raises(HarnessError) as caught:
            bundle(BASE, tmp_path / "out", {"sound": R4, "bad one": folder})
        text = str(caught.value)
        assert "adapter 'bad one'" in text
        assert "sound" not in text
        assert " - " in text  # a cure
        assert "\n" not in text
        assert [p.name for p in tmp_path.iterdir()] == ["folder"]

    def test_process(self, tmp_path: Path) -> None:
        """One line on stderr and status 2, whatever numpy may have to say."""
        case = next(c for c in DAMAGED if c.name == "overflow-with-scale")
        folder = case.make(tmp_path / "folder")
        command = [sys.executable, "-m", "harness.simulator.rk1828.bundle"]
        command += [str(BASE), str(tmp_path / "out"), f"bad={folder}"]
        run = subprocess.run(
            [*command, "--dtype=int8", "--method=layer"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
        assert run.returncode == 2, run
        assert run.stdout == ""
        assert len(run.stderr.splitlines()) == 1, run.stderr
        assert "overflow" in run.stderr
        assert [p.name for p in tmp_path.iterdir()] == ["folder"]

    @pytest.mark.parametrize("factor", ["A", "B"])
    @pytest.mark.parametrize("value", [70_000.0, -70_000.0, 1e30])
    @pytest.mark.parametrize("scheme", [Scheme(), Scheme("int8", "channel")])
    def test_overflow_of_fp16(
        self, tmp_path: Path, factor: str, value: float, scheme: Scheme
    ) -> None:
        folder = made_adapter(tmp_path / "a", alpha=1, spoil=(factor, value))
        with pytest.raises(HarnessError) as caught:
            bundle(BASE, tmp_path / "out", {"wide": folder}, scheme=scheme)
        text = str(caught.value)
        assert "adapter 'wide'" in text
        assert f"layers.3.mlp.down_proj.lora_{factor}.weight" in text
        assert "overflows fp16" in text

    def test_the_largest_of_fp16_is_taken(self, tmp_path: Path) -> None:
        folder = made_adapter(tmp_path / "a", spoil=("B", 65504.0))
        factors = made(tmp_path / "out", {"a": folder})["a"].modules[3, "mlp.down_proj"]
        assert factors.b.max() == 65504

    def test_all_lost_in_fp16(self, tmp_path: Path) -> None:
        """It would be the base, silently."""
        folder = made_adapter(tmp_path / "a")
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        name = next(n for n in tensors if "lora_B" in n)
        tensors[name] = np.full_like(tensors[name], TINY)
        save_file(tensors, path)
        text = refused(tmp_path / "out", {"a": folder})
        assert name in text
        assert "all zero in fp16" in text

    def test_untrained_is_taken(self, tmp_path: Path) -> None:
        folder = made_adapter(tmp_path / "a")
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        tensors = {n: v if "lora_A" in n else v * 0 for n, v in tensors.items()}
        save_file(tensors, path)
        assert not any(
            f.b.any() for f in made(tmp_path / "o", {"a": folder})["a"].modules.values()
        )

    @pytest.mark.parametrize("alpha", [1e300, -1e39])
    def test_infinite_scale(self, tmp_path: Path, alpha: float) -> None:
        folder = made_adapter(tmp_path / "a", alpha=alpha, rank=1)
        path = folder / "adapter_model.safetensors"
        tensors = load_file(path)
        save_file({n: v if "lora_A" in n else v * 0 for n, v in tensors.items()}, path)
        assert "adapter 'a'" in refused(tmp_path / "out", {"a": folder})

    def test_thirty_three(self, tmp_path: Path) -> None:
        folders = {str(number): R4 for number in range(33)}
        text = refused(tmp_path / "out", folders)
        assert "33 adapters" in text
        assert "1 to 32" in text

    def test_none(self, tmp_path: Path) -> None:
        assert "0 adapters" in refused(tmp_path / "out", {})

    @pytest.mark.parametrize(
        "name", ["", "a/b", "..", "a\nb", "a\x1bb", "é" * 128, "n" * 256]
    )
    def test_odd_names(self, tmp_path: Path, name: str) -> None:
        assert "name" in refused(tmp_path / "out", {name: R4})

    @pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "a b", "-x", "lora0:1"])
    def test_names_that_are_taken(self, tmp_path: Path, name: str) -> None:
        words = [str(BASE), str(tmp_path / "out"), "--", f"{name}={R4}"]
        assert main(words) == 0
        assert list(BundleFile.open(str(tmp_path / "out")).adapters) == [name]

    def test_duplicated_name(self, tmp_path: Path) -> None:
        out = str(tmp_path / "out")
        text = refused_words(str(BASE), out, f"a={R4}", f"b={R4}", f"a={R4}")
        assert "two adapters are called 'a'" in text
        assert list(tmp_path.iterdir()) == []

    def test_missing_folder(self, tmp_path: Path) -> None:
        text = refused(tmp_path / "out", {"a": R4, "b": tmp_path / "nowhere"})
        assert "adapter 'b'" in text
        assert "nowhere: no such folder" in text

    @pytest.mark.parametrize("word", ["plain", "a="])
    def test_no_folder_given(self, tmp_path: Path, word: str) -> None:
        assert "NAME=FOLDER" in refused_words(str(BASE), str(tmp_path / "out"), word)

    @pytest.mark.parametrize(
        "options",
        [
            ["--dtype=int8"],
            ["--method=layer"],
            ["--dtype=int3"],
            ["--postfix-a=.lora_B.weight"],
            ["--prefix=base_model.modle."],
            ["--as=harness.nowhere:Bundler"],
            ["--as=harness.simulator.rk1828.bundler:Scheme"],
            ["--as=harness.simulator.rk1828.bundler"],
        ],
    )
    def test_options(self, tmp_path: Path, options: list[str]) -> None:
        value = options[0].partition("=")[2]
        assert value in refused(tmp_path / "out", {"a": R4}, *options)

    def test_prefix_that_takes_too_much(self, tmp_path: Path) -> None:
        """A module's path cut short belongs nowhere, and nothing is left out."""
        option = "--prefix=base_model.model.model."
        assert "no slot" in refused(tmp_path / "out", {"a": R4}, option)

    def test_base(self, tmp_path: Path) -> None:
        text = refused_words(str(tmp_path), str(tmp_path / "out"), f"a={R4}")
        assert "config.json" in text

    def test_nowhere_to_write(self, tmp_path: Path) -> None:
        out = str(tmp_path / "none" / "out")
        assert "cannot write" in refused_words(str(BASE), out, f"a={R4}")

    def test_dequantised_folder_with_content(self, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        kept.mkdir()
        (kept / "mine").touch()
        options = ["--dequantised", str(kept)]
        assert "not an empty" in refused(tmp_path / "out", {"a": R4}, *options)

    def test_an_old_bundle_survives_a_refusal(self, tmp_path: Path) -> None:
        made(tmp_path / "out", {"a": R4})
        old = (tmp_path / "out").read_bytes()
        with pytest.raises(HarnessError):
            bundle(BASE, tmp_path / "out", {"a": tmp_path / "nowhere"})
        assert (tmp_path / "out").read_bytes() == old


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A bundle of two."""
    out = tmp_path_factory.mktemp("bundle") / "out"
    bundle(BASE, out, {"a": R4, "b": ALL["patterns"]})
    return out.read_bytes()


class TestFile:
    def test_any_buffer(self, whole: bytes) -> None:
        for data in (whole, bytearray(whole), memoryview(whole)):
            assert list(BundleFile(data).adapters) == ["a", "b"]

    @pytest.mark.parametrize(
        "place", ["0", "8", "12", "16", "header", "data", "-32", "-1"]
    )
    def test_cut(self, whole: bytes, tmp_path: Path, place: str) -> None:
        header = 16 + int.from_bytes(whole[8:16], "little")
        keep = {"header": header, "data": header + 9000}.get(place)
        path = tmp_path / "cut.lora_weight"
        path.write_bytes(whole[: int(place) if keep is None else keep])
        with pytest.raises(BundleFileError, match=r"^[^\n]*cut\.lora_weight: [^\n]+$"):
            BundleFile.open(str(path))

    @given(st.data())
    def test_any_cut(self, whole: bytes, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(BundleFileError):
            BundleFile(whole[:keep])

    @given(st.data())
    def test_any_bit(self, whole: bytes, data: st.DataObject) -> None:
        spoilt = bytearray(whole)
        near = st.integers(0, 20_000) | st.integers(0, len(whole) - 1)
        spoilt[data.draw(near)] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(BundleFileError):
            BundleFile(spoilt)

    def test_more_bytes(self, whole: bytes) -> None:
        with pytest.raises(BundleFileError, match="sha256"):
            BundleFile(whole + b"\0")

    @pytest.mark.parametrize(
        "data", [b"", b"GGUF" + bytes(5000), bytes(100), b"SIMRKLW\0" + b"\xff" * 99]
    )
    def test_foreign(self, data: bytes) -> None:
        with pytest.raises(BundleFileError, match="not a file of this format"):
            BundleFile(data)

    def test_no_file(self) -> None:
        with pytest.raises(BundleFileError, match="No such file"):
            BundleFile.open("/nowhere/x.lora_weight")

    @pytest.mark.parametrize(
        "change",
        [
            {"adapters": []},
            {"adapters": 5},
            {"adapters": [{"name": "a", "modules": []}] * 2},
            {"adapters": [{"name": "n" * 256, "modules": []}]},
            {"adapters": [{"name": "a", "modules": [{"layer": 0}]}]},
            {"base": ...},
            {"format": 2},
        ],
    )
    def test_sealed_nonsense(self, whole: bytes, change: dict[str, Any]) -> None:
        """A right checksum over a header that cannot be."""
        length = int.from_bytes(whole[8:16], "little")
        header = {**json.loads(whole[16 : 16 + length]), **change}
        text = json.dumps({k: v for k, v in header.items() if v is not ...}).encode()
        body = whole[:8] + len(text).to_bytes(8, "little") + text
        with pytest.raises(BundleFileError):
            BundleFile(body + hashlib.sha256(body).digest())

    def test_python_3_8_reads_it(self, whole: bytes, tmp_path: Path) -> None:
        python = with_numpy()
        if python is None:
            pytest.skip("no Python 3.8 with numpy on this machine")
        (tmp_path / "x").write_bytes(whole)
        program = (
            "import sys\n"
            "from harness.simulator.rk1828.bundlefile import BundleFile\n"
            "found = BundleFile.open(sys.argv[1]).adapters\n"
            "print({n: len(a.modules) for n, a in found.items()})"
        )
        run = subprocess.run(
            [python, "-c", program, tmp_path / "x"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout == "{'a': 8, 'b': 28}\n"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BundledAdapter]:
    """What the sound converter makes of the fixtures."""
    return made(tmp_path_factory.mktemp("sound") / "out")


def faulty(name: str) -> type[Bundler]:
    found: type[Bundler] = getattr(converters, name)
    return found


class TestFaults:
    @pytest.mark.parametrize("name", converters.__all__)
    def test_documented_and_found_by_the_command(
        self, name: str, tmp_path: Path
    ) -> None:
        """The first line of the docstring is shown to users."""
        spec = f"harness.simulator.faults.converters:{name}"
        out = tmp_path / "conversion" / "out"
        out.parent.mkdir()
        assert main([str(BASE), str(out), "--as", spec, f"a={R4}"]) == 0
        assert (faulty(name).__doc__ or "").splitlines()[0].endswith(".")
        assert BundleFile.open(str(out)).adapters.keys() == {"a"}

    def test_drops_alpha(self, tmp_path: Path) -> None:
        found = made(tmp_path / "o", make=converters.ConversionDropsAlpha)
        scales = {f.scale for a in found.values() for f in a.modules.values()}
        assert scales == {1.0}

    def test_quantises_scale(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        """Every module of every fixture is hit, by more than a reference can miss."""
        found = made(tmp_path / "o", make=converters.ConversionQuantisesScale)
        for name, adapter in sound.items():
            for key, factors in adapter.modules.items():
                ratio = found[name].modules[key].scale / factors.scale
                assert abs(ratio - 1) >= 0.08
                assert abs(math.log2(ratio)) <= 0.5

    def test_names_exchanged(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        found = made(tmp_path / "o", make=converters.BundleNamesExchanged)
        first, second, *others = sound
        assert list(found) == [second, first, *others]
        assert flat(found[second]) == flat(sound[first])
        assert flat(found[first]) == flat(sound[second])
        for name in others:
            assert flat(found[name]) == flat(sound[name])

    def test_stale_rebuild(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        def convert(number: int, folders: dict[str, Path]) -> dict[str, BundledAdapter]:
            # As the cache of conversions does: a new folder for each, one parent.
            out = tmp_path / f".conversion-{number}" / "model"
            out.parent.mkdir()
            found = made(out, folders, make=converters.StaleRebuild)
            for name, folder in folders.items():
                digest = sidecar(out)["adapters"][name]["digest"]
                assert digest == adapter_digest(folder)
            shutil.rmtree(out.parent)
            return found

        r4, r8 = ALL["r4-qv"], ALL["r8-all"]
        assert flat(convert(1, {"x": r4})["x"]) == flat(sound["r4-qv"])
        again = convert(2, {"x": r8, "y": r8})
        assert flat(again["x"]) == flat(sound["r4-qv"])
        assert flat(again["y"]) == flat(sound["r8-all"])
        with pytest.raises(HarnessError):
            convert(3, {"x": tmp_path / "nowhere"})

    def test_thirty_third_overwrites(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        folders = {str(number): R4 for number in range(32)} | {"last": ALL["r8-all"]}
        found = made(tmp_path / "o", folders, make=converters.ThirtyThirdOverwrites)
        assert list(found) == ["last", *list(folders)[1:32]]
        assert flat(found["last"]) == flat(sound["r8-all"])

    @pytest.mark.parametrize(
        ("fault", "dropped"),
        [
            ("ConversionDropsQ", "self_attn.q_proj"),
            ("ConversionDropsK", "self_attn.k_proj"),
            ("ConversionDropsV", "self_attn.v_proj"),
            ("ConversionDropsO", "self_attn.o_proj"),
            ("ConversionDropsGate", "mlp.gate_proj"),
            ("ConversionDropsUp", "mlp.up_proj"),
            ("ConversionDropsDown", "mlp.down_proj"),
        ],
    )
    def test_module_type_dropped(
        self, tmp_path: Path, sound: dict[str, BundledAdapter], fault: str, dropped: str
    ) -> None:
        found = made(tmp_path / "o", make=faulty(fault))
        for name, adapter in sound.items():
            left = {key for key in adapter.modules if key[1] != dropped}
            assert found[name].modules.keys() == left

    def test_layer_shifted(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        found = made(tmp_path / "o", make=converters.LayerShifted)
        modules = sound["r8-all"].modules
        for (layer, path), factors in found["r8-all"].modules.items():
            assert np.array_equal(factors.a, modules[(layer - 1) % 4, path].a)

    def test_factor_transposed(
        self, tmp_path: Path, sound: dict[str, BundledAdapter]
    ) -> None:
        found = made(tmp_path / "o", make=converters.FactorTransposed)
        key = (0, "mlp.up_proj")
        right, wrong = (x["r8-all"].modules[key] for x in (sound, found))
        assert np.array_equal(right.a, wrong.a)
        assert np.array_equal(wrong.b.ravel(), right.b.T.ravel())

    @pytest.mark.parametrize("bits", [8, 6, 4])
    def test_benign_formats(
        self, tmp_path: Path, sound: dict[str, BundledAdapter], bits: int
    ) -> None:
        """Right up to half a step of the largest value."""
        twin = faulty(f"Int{bits}Adapters")
        found = made(tmp_path / "o", make=twin)
        record = sidecar(tmp_path / "o")
        assert record["dtype"] == f"int{bits}"
        assert all(entry["dequantised"] for entry in record["adapters"].values())
        for name, adapter in sound.items():
            for key, right in adapter.modules.items():
                held = found[name].modules[key]
                assert held.scale == right.scale
                for kept, value in ((held.a, right.a), (held.b, right.b)):
                    # The last term is for rounding to fp16.
                    bound = np.abs(value).max() * (1 / (2**bits - 2) + 2**-10)
                    assert 0 < np.abs(kept - value).max() <= bound

"""Every fault does what its name says, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from simulation import TINY
from simulation import Bench
from simulation import adapter
from simulation import bench
from simulation import compiled
from simulation import distance

from harness.errors import UsageFault
from harness.probes.loader import Loader
from harness.probes.loader import LoaderRefused
from harness.simulator.board import FAULT_FILE
from harness.simulator.board import ROOT
from harness.simulator.decoder import LINEARS
from harness.simulator.faults import loaders
from harness.simulator.faults.catalogue import PLATFORMS
from harness.simulator.faults.catalogue import OfAnotherPlatform
from harness.simulator.faults.catalogue import catalogue
from harness.simulator.faults.catalogue import find


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("model"))


@pytest.fixture
def board(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Makes a board with a device fault, or a sound one."""
    monkeypatch.setenv(ROOT, str(tmp_path))

    def make(fault: str | None = None) -> object:
        (tmp_path / FAULT_FILE).unlink(missing_ok=True)
        if fault:
            told = json.dumps({"device": find(fault, "bm1688").spec})
            (tmp_path / FAULT_FILE).write_text(told)
        return bench(model)

    return make


def loaded(model: Path, make: type[Loader], *folders: Path) -> dict[str, bytes]:
    """Slots after these loads."""
    with bench(model, make) as board:
        for folder in folders:
            board.loader.load(str(folder))
        return board.content()


def layers_in(content: dict[str, bytes]) -> set[int]:
    return {
        int(n.split(".layers.")[1].split(".")[0]) for n, d in content.items() if any(d)
    }


class TestCatalogue:
    def test_names(self) -> None:
        assert set(catalogue("bm1688")) == {
            "adapter-ignored",
            "base-changed",
            "clear-does-nothing",
            "clear-keeps-nan",
            "clear-keeps-one-layer",
            "decode-graph-ignores-adapter",
            "factor-transposed",
            "failed-load-half-written",
            "failed-load-kills-process",
            "failed-load-silent",
            "layer-shifted",
            "no-slots",
            "noisy",
            "reports-wrong-state",
            "residue-larger-rank",
            "residue-more-modules",
            "scale-applied-twice",
            "scale-reserved-rank",
            "second-load-incomplete",
            "stale-name",
        }
        assert {"session-leak", "drops-k-proj", "int4-adapters"} < set(
            catalogue("rk1828")
        )

    @pytest.mark.parametrize("platform", PLATFORMS)
    def test_entries(self, platform: str) -> None:
        for name, fault in catalogue(platform).items():
            assert fault.name == name and fault.platform == platform
            assert fault.kind and fault.description
            assert fault.benign == fault.description.startswith("Benign")
            # What is right needs no report; one fault follows from a document only.
            assert fault.source or fault.benign or name == "precedence-reversed"
            path, _, cls = fault.file.partition(":")
            assert os.path.isabs(path) and f"class {cls}(" in Path(path).read_text()
            assert find(fault.spec, platform).where == fault.where

    def test_a_name_means_its_own_platforms_fault(self) -> None:
        shared = set(catalogue("bm1688")) & set(catalogue("rk1828"))
        assert {"adapter-ignored", "stale-name", "layer-shifted"} <= shared
        for name in shared:
            specs = {find(name, platform).spec for platform in PLATFORMS}
            assert len(specs) == 2

    @pytest.mark.parametrize(
        ("spec", "platform"),
        [
            ("session-leak", "bm1688"),
            ("no-slots", "rk1828"),
            ("harness.simulator.rk1828.device:Device", "bm1688"),
            ("harness.simulator.rk1828.bundler:Bundler", "bm1688"),
            ("harness.simulator.bm1688.device:Device", "rk1828"),
            ("harness.probes.loader:Loader", "rk1828"),
        ],
    )
    def test_one_of_another_platform(self, spec: str, platform: str) -> None:
        (other,) = set(PLATFORMS) - {platform}
        with pytest.raises(OfAnotherPlatform) as elsewhere:
            find(spec, platform)
        assert "\n" not in str(elsewhere.value) and elsewhere.value.cure
        assert find(spec, other).platform == other

    def test_own_class(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "own_faults.py").write_text(
            "from harness.simulator.bm1688.device import Device\n"
            "from harness.simulator.rk1828 import bundler, device\n"
            "class Slow(Device):\n    '''Slow.'''\n"
            "class Odd(device.Device):\n    '''Odd.'''\n"
            "class Converter(bundler.Bundler):\n    '''A converter.'''\n"
            "class Product:\n    '''A product.'''\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert find("own_faults:Slow", "bm1688").where == "device"
        assert find("own_faults:Odd", "rk1828").where == "device"
        assert find("own_faults:Converter", "rk1828").where == "converter"
        product = find("own_faults:Product", "bm1688")
        assert product.where == "loader"
        assert product.file == f"{tmp_path / 'own_faults.py'}:Product"

    @pytest.mark.parametrize("platform", PLATFORMS)
    @pytest.mark.parametrize(
        ("spec", "text"),
        [
            ("nonsense", "noisy"),
            ("no.such.module:X", "no"),
            ("json:Nothing", "Nothing"),
            ("json:dumps", "no class"),
        ],
    )
    def test_unknown(self, spec: str, text: str, platform: str) -> None:
        with pytest.raises(UsageFault, match=text) as unknown:
            find(spec, platform)
        assert not isinstance(unknown.value, OfAnotherPlatform)


class TestDevices:
    def test_adapter_ignored(self, board: Callable, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "a")
        with board() as sound:
            before = sound.score("prefill"), sound.score("decode")
            sound.loader.load(str(folder))
            written = sound.content()
        with board("adapter-ignored") as faulty:
            faulty.loader.load(str(folder))
            assert faulty.content() == written
            assert np.array_equal(faulty.score(), before[0])
            assert np.array_equal(faulty.score("decode"), before[1])

    def test_decode_graph_ignores_adapter(
        self, board: Callable, tmp_path: Path
    ) -> None:
        folder = adapter(tmp_path / "a")
        with board() as sound:
            sound.loader.load(str(folder))
            right = sound.score("prefill"), sound.score("decode")
        with board("decode-graph-ignores-adapter") as faulty:
            faulty.loader.load(str(folder))
            wrong = faulty.score("prefill"), faulty.score("decode")
        assert np.array_equal(wrong[0], right[0])
        # The first row comes out of prefill.
        assert np.array_equal(wrong[1][0], right[1][0])
        assert distance(wrong[1][1:], right[1][1:]) > 0.02

    def test_base_changed(self, board: Callable) -> None:
        scores = []
        for fault in (None, "base-changed", "base-changed"):
            with board(fault) as made:
                scores.append(made.score())
        right, wrong, again = scores
        assert 0.002 < distance(wrong, right) < 0.2
        assert np.array_equal(wrong, again)

    def test_base_changed_in_every_layer(self, board: Callable) -> None:
        states = []
        for fault in (None, "base-changed"):
            with board(fault) as made:
                x = np.ones((1, 96, 128), np.float32)
                inputs = [x, *made.program.inputs_of(96)]
                states.append(
                    [made.runtime.launch(f"block_{i}", inputs)[0] for i in range(4)]
                )
        assert not any(np.array_equal(*pair) for pair in zip(*states, strict=True))

    def test_no_slots(self, board: Callable) -> None:
        with board() as sound:
            right = sound.score()
        with board("no-slots") as faulty:
            assert faulty.slots.slots() == []
            assert np.array_equal(faulty.score(), right)

    def test_noisy(self, board: Callable, tmp_path: Path) -> None:
        with board() as sound:
            sound.loader.load(str(adapter(tmp_path / "a")))
            right = sound.score()
        with board("noisy") as noisy:
            noisy.loader.load(str(adapter(tmp_path / "a")))
            repeats = [noisy.score() for _ in range(3)]
        assert not np.array_equal(repeats[0], repeats[1])
        centred = right - right.mean(-1, keepdims=True)
        for repeat in repeats:
            noise = np.linalg.norm(repeat - right) / np.linalg.norm(centred)
            assert noise == pytest.approx(1e-3, rel=0.1)


class TestScale:
    @pytest.mark.parametrize(
        ("make", "factor"),
        [(loaders.ScaleReservedRank, 8 / 32), (loaders.ScaleAppliedTwice, 2)],
    )
    def test_b_alone_is_off_by_the_factor(
        self, model: Path, tmp_path: Path, make: type[Loader], factor: float
    ) -> None:
        folder = adapter(tmp_path / "a", rank=8, alpha=16)
        right, wrong = loaded(model, Loader, folder), loaded(model, make, folder)
        assert wrong != right
        for name in right:
            a, b = (
                (np.frombuffer(c[name], np.uint16).astype(np.uint32) << 16).view(
                    np.float32
                )
                for c in (wrong, right)
            )
            assert np.array_equal(a, b * (factor if "lora_B" in name else 1))

    def test_full_rank_hides_the_reserved_rank(
        self, model: Path, tmp_path: Path
    ) -> None:
        folder = adapter(tmp_path / "a", rank=32, alpha=48)
        assert loaded(model, Loader, folder) == loaded(
            model, loaders.ScaleReservedRank, folder
        )

    def test_scale_1_hides_the_square(self, model: Path, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "a", rank=8, alpha=8)
        assert loaded(model, Loader, folder) == loaded(
            model, loaders.ScaleAppliedTwice, folder
        )


class TestLayout:
    def test_factor_transposed(self, model: Path, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "a")
        right = loaded(model, Loader, folder)
        wrong = loaded(model, loaders.FactorTransposed, folder)
        for name in right:
            assert (wrong[name] == right[name]) == ("lora_A" in name)
            # The same values, elsewhere.
            assert sorted(wrong[name]) == sorted(right[name])

    def test_layer_shifted(self, model: Path, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "a")
        right = loaded(model, Loader, folder)
        wrong = loaded(model, loaders.LayerShifted, folder)
        for layer in range(TINY.layers):
            for name in right:
                if f".layers.{layer}." in name:
                    target = name.replace(
                        f".layers.{layer}.", f".layers.{(layer + 1) % 4}."
                    )
                    assert wrong[target] == right[name]


class TestResidue:
    def test_larger_rank(self, model: Path, tmp_path: Path) -> None:
        large = adapter(tmp_path / "large", rank=32, seed=1)
        small = adapter(tmp_path / "small", rank=4, seed=2)
        make = loaders.ResidueLargerRank
        fresh = loaded(model, Loader, small)
        assert loaded(model, make, small) == fresh
        wrong = loaded(model, make, large, small)
        assert all(wrong[n] != fresh[n] for n in fresh)
        for name, data in fresh.items():
            row = len(data.rstrip(b"\0")) // 4 * 4
            assert wrong[name][:row] == data[:row]

    def test_more_modules(self, model: Path, tmp_path: Path) -> None:
        many = adapter(tmp_path / "many", seed=1)
        few = adapter(tmp_path / "few", modules=LINEARS[:1], seed=2)
        make = loaders.ResidueMoreModules
        fresh = loaded(model, Loader, few)
        assert loaded(model, make, few) == fresh
        wrong = loaded(model, make, many, few)
        before = loaded(model, Loader, many)
        for name in fresh:
            kept = fresh if "q_proj" in name else before
            assert wrong[name] == kept[name]


class TestClear:
    @pytest.mark.parametrize(
        ("make", "layers"),
        [
            (loaders.ClearDoesNothing, {0, 1, 2, 3}),
            (loaders.ClearKeepsOneLayer, {1}),
            (Loader, set()),
        ],
    )
    def test_layers_left(
        self, model: Path, tmp_path: Path, make: type[Loader], layers: set[int]
    ) -> None:
        folder = adapter(tmp_path / "a")
        with bench(model, make) as board:
            before = board.score()
            board.loader.load(str(folder))
            board.loader.clear()
            assert board.loader.loaded is None
            assert layers_in(board.content()) == layers
            assert np.array_equal(board.score(), before) == (not layers)
            # The next load is right.
            board.loader.load(str(folder))
            assert board.content() == loaded(model, Loader, folder)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_keeps_nan(self, model: Path, tmp_path: Path, value: float) -> None:
        good = adapter(tmp_path / "good")
        bad = adapter(tmp_path / "bad", spoil=("A", value))
        with bench(model, loaders.ClearKeepsNan) as board:
            before = board.score()
            board.loader.load(str(good))
            assert board.content() == loaded(model, Loader, good)
            board.loader.clear()
            assert np.array_equal(board.score(), before)
            board.loader.load(str(bad))
            assert not np.isfinite(board.score()).any()
            board.loader.clear()
            assert not np.isfinite(board.score()).any()

    def test_reports_wrong_state(self, model: Path, tmp_path: Path) -> None:
        with bench(model, loaders.ReportsWrongState) as board:
            before = board.score()
            board.loader.load(str(adapter(tmp_path / "a")))
            board.loader.clear()
            assert board.loader.loaded == "a"
            assert np.array_equal(board.score(), before)


class TestFailedLoad:
    @pytest.fixture
    def good(self, tmp_path: Path) -> Path:
        return adapter(tmp_path / "good")

    @pytest.fixture
    def bad(self, tmp_path: Path) -> Path:
        return adapter(tmp_path / "bad", seed=3, spoil=("B", np.nan))

    def test_the_sound_one(self, model: Path, good: Path, bad: Path) -> None:
        with bench(model) as board:
            board.loader.load(str(good))
            with pytest.raises(LoaderRefused):
                board.loader.load(str(bad))
            assert board.content() == loaded(model, Loader, good)

    def test_half_written(self, model: Path, good: Path, bad: Path) -> None:
        with bench(model, loaders.FailedLoadHalfWritten) as board:
            board.loader.load(str(good))
            right = loaded(model, Loader, good)
            assert board.content() == right
            with pytest.raises(LoaderRefused):
                board.loader.load(str(bad))
            assert board.loader.loaded == "good"
            now = board.content()
            changed = [n for n in right if now[n] != right[n]]
            assert 0 < len(changed) < len(right)

    def test_silent(self, model: Path, good: Path, bad: Path) -> None:
        with bench(model, loaders.FailedLoadSilent) as board:
            board.loader.load(str(good))
            board.loader.load(str(bad))
            assert board.loader.loaded == "bad"
            assert board.content() == loaded(model, Loader, good)

    def test_kills_process(self, model: Path, good: Path, bad: Path) -> None:
        child = os.fork()
        if child == 0:
            board = Bench(model, loaders.FailedLoadKillsProcess)
            board.loader.load(str(good))
            board.loader.load(str(bad))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 255


class TestStale:
    def test_stale_name(self, model: Path, tmp_path: Path) -> None:
        first = adapter(tmp_path / "1" / "name", seed=1)
        second = adapter(tmp_path / "2" / "name", seed=2)
        other = adapter(tmp_path / "other", seed=3)
        make = loaders.StaleName
        assert loaded(model, make, other, second) == loaded(model, Loader, second)
        stale = loaded(model, make, first, other, second)
        assert stale == loaded(model, Loader, first)

    def test_second_load_incomplete(self, model: Path, tmp_path: Path) -> None:
        folder = adapter(tmp_path / "a")
        make = loaders.SecondLoadIncomplete
        right = loaded(model, Loader, folder)
        assert loaded(model, make, folder) == right
        again = loaded(model, make, folder, folder)
        assert layers_in(again) == {0, 1, 2}
        assert all(again[n] == d for n, d in right.items() if ".layers.3." not in n)


@pytest.mark.parametrize(
    "name", sorted(n for n, f in catalogue("bm1688").items() if f.where == "loader")
)
def test_faulty_loaders_start_as_base(name: str, model: Path) -> None:
    make = getattr(loaders, find(name, "bm1688").spec.partition(":")[2])
    with bench(model, make) as board:
        assert not any(map(any, board.content().values()))
        assert board.loader.loaded is None

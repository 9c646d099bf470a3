"""Forged adapters: the same function, another function, or damaged."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from made_adapters import BASE
from made_adapters import BF16
from made_adapters import WIDTHS
from made_adapters import adapters
from made_adapters import deltas
from made_adapters import differing
from made_adapters import factors
from made_adapters import write_adapter
from made_adapters import write_base

from harness.artifacts import forge
from harness.artifacts.adapter import Adapter
from harness.artifacts.forge.slots import in_slots
from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import Part
from harness.artifacts.model import Base
from harness.artifacts.preflight import fit
from harness.errors import UsageFault
from harness.probes.loader import Loader
from harness.probes.loader import LoaderRefused


RESERVED = 32
PATTERNS = BASE.parent / "adapters" / "patterns"
R8 = BASE.parent / "adapters" / "r8-all"


@pytest.fixture(params=adapters(), ids=lambda p: p.name)
def source(request: pytest.FixtureRequest) -> Path:
    return request.param


def unfit(folder: Path, base: Base, reserved: int = RESERVED) -> list[str]:
    findings = fit(Adapter.open(folder), base.linears, reserved)
    return [f.text for f in findings if f.severity == "unfit"]


def assert_same(left: dict, right: dict, tolerance: float = 1e-12) -> None:
    """Equal delta W; a module that is left out is zero."""
    for path in left.keys() | right.keys():
        mine = left.get(path, np.zeros(1))
        theirs = right.get(path, np.zeros(1))
        size = max(np.abs(mine).max(), np.abs(theirs).max(), 1e-300)
        assert np.abs(mine - theirs).max() <= tolerance * size, path


class FakeBoard:
    """Slots of a compiled model in memory, for the loader that runs on boards."""

    def __init__(self, base: Base, reserved: int = RESERVED) -> None:
        self._slots: list[dict[str, Any]] = []
        for (layer, name), linear in base.linears.items():
            inner = linear.path.partition(f"layers.{layer}.")[2]
            for factor, width in (
                ("A", linear.in_features),
                ("B", linear.out_features),
            ):
                self._slots.append(
                    {
                        "name": f"{linear.path}.{factor}",
                        "net": f"block_{layer}",
                        "layer": layer,
                        "path": inner,
                        "module": name,
                        "factor": factor,
                        "reserved_rank": reserved,
                        "width": width,
                        "dtype": "bf16",
                        "size": reserved * width * 2,
                        "address": len(self._slots),
                    }
                )

    def slots(self) -> list[dict[str, Any]]:
        return self._slots

    def bytes_of(self, folder: Path) -> dict[str, np.ndarray]:
        """What the loader would leave in every slot, uint8 by slot."""
        plan = Loader(self).plan(str(folder))
        written = {slot["name"]: data for slot, data in plan}
        return {
            s["name"]: written.get(s["name"], np.zeros(s["size"], np.uint8))
            for s in self._slots
        }


class TestEquivalent:
    def test_all_relations(self) -> None:
        names = {e.name for e in forge.equivalents(Adapter.open(R8), RESERVED)}
        assert names == {
            "padded",
            "padded-by-one",
            "folded",
            "shifted-up",
            "shifted-down",
            "negated",
            "rslora",
            "patterns",
            "fractional-alpha",
            "alpha-with-point",
            "permuted",
            "reordered",
            "widened",
            "named-in-full",
            "renamed",
            "b-zero",
            "alpha-zero",
            "present-but-zero",
        }

    def test_same_delta_and_fit(self, source: Path, tmp_path: Path) -> None:
        base = Base.open(BASE)
        original = deltas(source)
        for e in forge.equivalents(Adapter.open(source), RESERVED):
            folder = e.make(tmp_path / e.name)
            assert unfit(folder, base) == [], e.name
            want = original
            if e.relation == "base":
                want = {}
            if e.relation == "twin":
                twin = e.make_twin(tmp_path / f"{e.name}-twin")
                assert unfit(twin, base) == []
                want = deltas(twin)
            # Folding rounds the product to float32, everything else is exact
            # but for the float64 sums of this test.
            tolerance = 1e-6 if e.name == "folded" else 1e-12
            assert_same(want, deltas(folder), tolerance)

    def test_exactness_is_what_the_boards_loader_does(
        self, source: Path, tmp_path: Path
    ) -> None:
        board = FakeBoard(Base.open(BASE))
        original = board.bytes_of(source)
        for e in forge.equivalents(Adapter.open(source), RESERVED):
            if e.relation != "adapter":
                continue
            made = board.bytes_of(e.make(tmp_path / e.name))
            same = all((made[n] == original[n]).all() for n in original)
            assert same == (e.exactness(in_slots) == "bytes"), e.name

    def test_exact_ones_give_equal_bits_in_device_arithmetic(
        self, source: Path, tmp_path: Path
    ) -> None:
        board = FakeBoard(Base.open(BASE))
        for e in forge.equivalents(Adapter.open(source), RESERVED):
            if e.exactness(in_slots) == "rounded":
                continue
            made = board.bytes_of(e.make(tmp_path / e.name))
            if e.relation == "adapter":
                want = board.bytes_of(source)
            elif e.relation == "twin":
                want = board.bytes_of(e.make_twin(tmp_path / f"{e.name}-twin"))
            else:
                want = {n: np.zeros_like(v) for n, v in made.items()}
            for name in made:
                if name.endswith(".A"):
                    other = f"{name[:-2]}.B"
                    got = _branch(made[name], made[other])
                    assert (got == _branch(want[name], want[other])).all(), e.name

    @settings(
        max_examples=15,
        deadline=None,
    )
    @given(
        case=st.fixed_dictionaries(
            {
                "rank": st.integers(1, 12),
                "alpha": st.sampled_from([1, 3, 4, 16, 24.5, 0.1, 7.3]),
                "rslora": st.booleans(),
                "dtype": st.sampled_from(
                    [BF16, np.dtype(np.float16), np.dtype(np.float32)]
                ),
                "seed": st.integers(0, 99),
            }
        )
    )
    def test_any_adapter(
        self, tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]
    ) -> None:
        root = tmp_path_factory.mktemp("any")
        base = Base.open(write_base(root / "base"))
        board = FakeBoard(base, 12)
        modules = ["self_attn.q_proj", "mlp.down_proj"]
        tensors = {
            n: (v.astype(np.float32) * 0.3).astype(case["dtype"])
            for n, v in factors(
                case["rank"], modules=modules, seed=case["seed"]
            ).items()
        }
        folder = write_adapter(
            root / "source",
            tensors,
            r=case["rank"],
            lora_alpha=case["alpha"],
            use_rslora=case["rslora"],
            target_modules=["q_proj", "down_proj"],
        )
        assert unfit(folder, base, 12) == []
        original, slots = deltas(folder), board.bytes_of(folder)
        for e in forge.equivalents(Adapter.open(folder), 12):
            made = e.make(root / e.name)
            assert unfit(made, base, 12) == [], e.name
            if e.relation == "adapter":
                assert_same(original, deltas(made), 1e-6)
            if e.relation == "adapter" and e.exactness(in_slots) == "bytes":
                theirs = board.bytes_of(made)
                assert all((theirs[n] == slots[n]).all() for n in slots), e.name

    def test_scale_that_float_rounds_is_not_called_exact(self) -> None:
        # With rsLoRA the scale 10/11 goes through a root that is irrational: loaders
        # in float32 and in float64 get scales one unit apart.
        draw = np.random.default_rng(0)
        a = draw.normal(size=(11, 32)).astype(np.float32)
        b = draw.normal(size=(20_000, 11)).astype(np.float32)
        plain = Draft({}, {"m": Part(a, b, 10.0)}, rslora=False)
        scale = 10 / 11 * math.sqrt(11)
        rooted = Draft({}, {"m": Part(a, b, scale)}, rslora=True)
        assert in_slots(plain, plain) == "bytes"
        assert in_slots(plain, rooted) == "rounded"

    def test_subnormal_values_are_not_called_exact(self, tmp_path: Path) -> None:
        tensors = factors(8, layers=1, modules=["self_attn.q_proj"])
        a = next(n for n in tensors if "lora_A" in n)
        tensors[a][0, 0] = 2.0**-126  # its eighth loses nothing yet, but is subnormal
        folder = write_adapter(tmp_path / "a", tensors, target_modules=["q_proj"])
        made = {e.name: e for e in forge.equivalents(Adapter.open(folder), RESERVED)}
        assert made["shifted-down"].exactness(in_slots) == "rounded"
        assert made["shifted-up"].exactness(in_slots) == "exact"

    def test_patterns_say_all(self, tmp_path: Path) -> None:
        made = {e.name: e for e in forge.equivalents(Adapter.open(PATTERNS), RESERVED)}
        adapter = Adapter.open(made["patterns"].make(tmp_path / "p"))
        paths = {m.path for m in adapter.modules}
        assert set(adapter.config["rank_pattern"]) == paths
        assert set(adapter.config["alpha_pattern"]) == paths
        assert adapter.config["r"] not in {m.rank for m in adapter.modules}

    def test_alpha_with_point(self, tmp_path: Path) -> None:
        made = {e.name: e for e in forge.equivalents(Adapter.open(R8), RESERVED)}
        folder = made["alpha-with-point"].make(tmp_path / "p")
        assert '"lora_alpha": 16.0' in (folder / "adapter_config.json").read_text()
        folder = made["fractional-alpha"].make(tmp_path / "f")
        assert '"lora_alpha": 0.5' in (folder / "adapter_config.json").read_text()

    def test_no_twin(self) -> None:
        first = forge.equivalents(Adapter.open(R8), RESERVED)[0]
        with pytest.raises(ValueError, match="no twin"):
            first.make_twin(Path("unused"))


def _branch(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(x A^T) B from the bytes of slots, in bf16 with float32 sums."""
    rows = RESERVED
    wide_a = a.view(BF16).reshape(rows, -1).astype(np.float32)
    wide_b = b.view(BF16).reshape(rows, -1).astype(np.float32)
    draw = np.random.default_rng(5)
    x = draw.normal(size=(3, wide_a.shape[1])).astype(BF16).astype(np.float32)
    low = (x @ wide_a.T).astype(BF16).astype(np.float32)
    return np.asarray(low @ wide_b) + 0.0  # no -0


class TestWrong:
    def test_names(self) -> None:
        names = {w.name for w in forge.wrongs(Adapter.open(R8), RESERVED)}
        assert names >= {
            "scale-0",
            "scale-0.25",
            "scale-2",
            "scale-1.05",
            "reserved-denominator",
            "without-k_proj",
            "without-layer-0",
            "half-rank",
            "transposed-a",
            "transposed-b",
            "exchanged",
            "shifted",
            "swapped-gate_proj-up_proj",
            "foreign",
        }

    def test_fits_but_is_another_function(self, source: Path, tmp_path: Path) -> None:
        base = Base.open(BASE)
        original = deltas(source)
        for w in forge.wrongs(Adapter.open(source), RESERVED):
            folder = w.make(tmp_path / w.name)
            assert unfit(folder, base) == [], w.name
            changed = deltas(folder)
            assert differing(original, changed) == w.modules, w.name
            if w.factor is not None:
                scaled = {p: v * w.factor for p, v in original.items()}
                assert_same(scaled, changed)

    def test_reserved_denominator_is_a_quarter_for_rank_8_in_32(self) -> None:
        wrongs = {w.name: w for w in forge.wrongs(Adapter.open(R8), RESERVED)}
        assert wrongs["reserved-denominator"].factor == 0.25

    def test_foreign_keeps_every_norm(self, tmp_path: Path) -> None:
        wrongs = {w.name: w for w in forge.wrongs(Adapter.open(R8), RESERVED)}
        folder = wrongs["foreign"].make(tmp_path / "f")
        original, changed = deltas(R8), deltas(folder)
        for path, delta in original.items():
            norm = np.linalg.norm(delta)
            assert np.linalg.norm(changed[path]) == pytest.approx(norm, rel=1e-12)
            # Unrelated: cosine of two random directions in this many dimensions.
            cosine = (delta * changed[path]).sum() / norm**2
            assert abs(cosine) < 8 / math.sqrt(delta.size)

    def test_controls_are_large_and_one_of_a_kind(self, source: Path) -> None:
        controls = forge.controls(Adapter.open(source), RESERVED)
        kinds = [c.kind for c in controls]
        assert len(kinds) == len(set(kinds))
        assert {"scale-0", "scale-0.25", "foreign", "without-layer"} <= set(kinds)
        assert all(c.factor is None or abs(c.factor - 1) >= 0.25 for c in controls)

    def test_probe_of_each_module(self, source: Path, tmp_path: Path) -> None:
        base = Base.open(BASE)
        original = deltas(source)
        probes = list(forge.probes(Adapter.open(source), gain=4.0))
        assert len(probes) == len(original)
        for probe, path in zip(probes, original, strict=True):
            folder = probe.make(tmp_path / path)
            assert unfit(folder, base) == []
            assert_same({path: 4 * original[path]}, deltas(folder))

    def test_amplified(self, source: Path, tmp_path: Path) -> None:
        original = deltas(source)
        folder = forge.amplified(Adapter.open(source), 8.0, tmp_path / "loud")
        assert unfit(folder, Base.open(BASE)) == []
        assert_same({p: 8 * v for p, v in original.items()}, deltas(folder), 0)
        with pytest.raises(ValueError, match="power of two"):
            forge.amplified(Adapter.open(source), 3.0, tmp_path / "three")

    def test_foreign_alone_is_the_foreign_wrong(self, tmp_path: Path) -> None:
        adapter = Adapter.open(R8)
        wrongs = {w.name: w for w in forge.wrongs(adapter, RESERVED)}
        one = wrongs["foreign"].make(tmp_path / "one")
        two = forge.foreign(adapter, tmp_path / "two")
        assert Adapter.open(one).digest == Adapter.open(two).digest
        assert Adapter.open(two).config["base_model_name_or_path"] == "another/base"

    def test_only_refuses(self) -> None:
        adapter = Adapter.open(R8)
        with pytest.raises(UsageFault, match="no module"):
            forge.only(adapter, "model.layers.0.nothing")
        with pytest.raises(ValueError, match="power of two"):
            forge.only(adapter, adapter.modules[0].path, gain=3.0)


class TestDamaged:
    def test_each_is_found_in_one_clear_line(
        self, source: Path, tmp_path: Path
    ) -> None:
        base = Base.open(BASE)
        for d in forge.damaged(Adapter.open(source), RESERVED):
            folder = d.make(tmp_path / d.name)
            try:
                texts = unfit(folder, base)
            except UsageFault as fault:
                texts = [str(fault)]
            assert texts, d.name
            assert all("\n" not in t for t in texts)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("empty", "empty"),
            ("cut-in-data", "cut or damaged"),
            ("pickle-only", "pickle"),
            ("rank-over-reserve", "rank 33"),
            ("layer-beyond", "layer 9999"),
            ("dora-vector-only", "DoRA"),
            ("nan-in-b", "NaN"),
            ("overflow-with-scale", "overflow"),
            ("config-without-r", "the config says 8"),
            ("ranks-disagree", "B has rank"),
            ("prefix-typo", "base_model.modle"),
        ],
    )
    def test_says_what(self, tmp_path: Path, name: str, says: str) -> None:
        made = {d.name: d for d in forge.damaged(Adapter.open(R8), RESERVED)}
        folder = made[name].make(tmp_path / name)
        try:
            texts = unfit(folder, Base.open(BASE))
        except UsageFault as fault:
            texts = [str(fault)]
        assert any(says in text for text in texts), texts

    def test_the_boards_loader_refuses_each(self, source: Path, tmp_path: Path) -> None:
        board = FakeBoard(Base.open(BASE))
        for d in forge.damaged(Adapter.open(source), RESERVED):
            with pytest.raises(LoaderRefused):
                board.bytes_of(d.make(tmp_path / d.name))

    def test_both_requirements(self) -> None:
        made = forge.damaged(Adapter.open(R8), RESERVED)
        assert {d.requirement for d in made} == {"R40", "R42"}
        assert len({d.name for d in made}) == len(made)
        assert all(d.says for d in made)


class TestWriting:
    def test_deterministic(self, tmp_path: Path) -> None:
        def digests(root: Path) -> dict[str, str]:
            adapter = Adapter.open(R8)
            for made in (
                *forge.equivalents(adapter, RESERVED),
                *forge.wrongs(adapter, RESERVED),
                *forge.damaged(adapter, RESERVED),
            ):
                made.make(root / made.name)
            return {
                str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in sorted(root.rglob("*"))
                if p.is_file()
            }

        assert digests(tmp_path / "one") == digests(tmp_path / "two")

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        made = forge.equivalents(Adapter.open(R8), RESERVED)[0]
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("mine")
        for target in (tmp_path / "full", tmp_path / "full" / "mine"):
            with pytest.raises(UsageFault, match="not an empty folder"):
                made.make(target)
        assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine"]
        (tmp_path / "empty").mkdir()
        assert Adapter.open(made.make(tmp_path / "empty")).modules

    def test_nothing_half_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = forge.equivalents(Adapter.open(R8), RESERVED)[0]
        write = Path.write_bytes

        def full(self: Path, data: bytes) -> int:
            if self.name.endswith(".safetensors"):
                write(self, data[:100])
                raise OSError(28, "No space left on device")
            return write(self, data)

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(UsageFault, match="No space left"):
            made.make(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []

    def test_unsound_source(self, tmp_path: Path) -> None:
        tensors = {**factors(8), "stray": np.ones(2, np.float32)}
        folder = write_adapter(tmp_path / "a", tensors)
        with pytest.raises(UsageFault, match="no A and B"):
            forge.equivalents(Adapter.open(folder), RESERVED)
        folder = write_adapter(tmp_path / "b", factors(4))
        with pytest.raises(UsageFault, match="rank"):
            forge.wrongs(Adapter.open(folder), RESERVED)


@pytest.fixture(scope="module")
def logits() -> Any:
    """PEFT's logits of an adapter folder, after `touch(model)`; of None the base's."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        BASE, dtype=torch.float32
    )
    tokens = torch.arange(40).reshape(2, 20) * 7 % 500

    def of(folder: Path | None, touch: Any = None) -> np.ndarray:
        with torch.no_grad():
            if folder is None:
                return model(input_ids=tokens).logits.numpy()
            tuned = peft.PeftModel.from_pretrained(model, folder)
            try:
                if touch:
                    touch(tuned)
                return tuned(input_ids=tokens).logits.numpy()
            finally:
                tuned.unload()

    return of


@pytest.mark.reference
class TestPeft:
    """PEFT itself reads them: it is the definition of what an adapter means."""

    # All of one with patterns; of one with rsLoRA where the scale is rewritten.
    @pytest.mark.parametrize(
        ("name", "relations"),
        [
            ("patterns", ()),
            ("r16-rslora", ("plain", "padded", "folded", "fractional-alpha")),
        ],
    )
    def test_equivalents(
        self, logits: Any, name: str, relations: tuple[str, ...], tmp_path: Path
    ) -> None:
        folder = BASE.parent / "adapters" / name
        base, want = logits(None), logits(folder)
        assert np.abs(want - base).max() > 0.1
        for e in forge.equivalents(Adapter.open(folder), RESERVED):
            if relations and e.name not in relations:
                continue
            right = {"adapter": want, "base": base}.get(e.relation)
            if right is None:
                right = logits(e.make_twin(tmp_path / "twin"))
            got = logits(e.make(tmp_path / e.name))
            error = np.abs(got - right).max() / np.abs(right).max()
            assert error <= 1e-5, e.name

    def test_wrong_ones(self, logits: Any, tmp_path: Path) -> None:
        base, want = logits(None), logits(R8)
        effect = np.linalg.norm(want - base)
        wrongs = {w.kind: w for w in forge.wrongs(Adapter.open(R8), RESERVED)}
        for w in wrongs.values():
            got = logits(w.make(tmp_path / w.name))
            error = np.linalg.norm(got - want) / effect
            # The smallest, one module type or one layer, moves the delta by 1 %.
            assert error > 0.005, (w.name, error)
            if w.name == "scale-0":
                assert np.abs(got - base).max() <= 1e-5

    def test_probe_is_one_module(self, logits: Any, tmp_path: Path) -> None:
        adapter = Adapter.open(R8)
        path = adapter.modules[5].path

        def alone(model: Any) -> None:
            for name, layer in model.named_modules():
                if hasattr(layer, "lora_A") and hasattr(layer, "scaling"):
                    mine = name.endswith(path)
                    layer.scaling["default"] *= 8.0 if mine else 0.0

        got = logits(forge.only(adapter, path, 8.0).make(tmp_path / "probe"))
        want = logits(R8, alone)
        assert np.abs(want - logits(None)).max() > 1e-3
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_widths_of_the_small_base() -> None:
    """Shapes the tests above need: some equal in and out, some not."""
    assert any(i == o for i, o in WIDTHS.values())
    assert any(i != o for i, o in WIDTHS.values())

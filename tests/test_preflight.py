"""Checks of files before a board is touched: R01 to R04."""

from __future__ import annotations

import json
from dataclasses import dataclass
from dataclasses import replace
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
from made_adapters import factors
from made_adapters import path_of
from made_adapters import write_adapter
from made_adapters import write_base

from harness.artifacts.adapter import Adapter
from harness.artifacts.model import Base
from harness.artifacts.preflight import base_matches
from harness.artifacts.preflight import fit
from harness.artifacts.preflight import inspect
from harness.artifacts.preflight import reservation
from harness.artifacts.preflight import slot_linears
from harness.errors import UsageFault


Q0 = f"base_model.model.{path_of(0, 'self_attn.q_proj')}"


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return Base.open(write_base(tmp_path / "base"))


def found(
    folder: Path, base: Base, reserved: int = 16, severity: str = "unfit"
) -> list[str]:
    findings = fit(Adapter.open(folder), base.linears, reserved)
    assert all("\n" not in f.text for f in findings)
    return [f.text for f in findings if f.severity == severity]


class TestFit:
    @pytest.mark.parametrize("folder", adapters(), ids=lambda p: p.name)
    def test_adapters_of_peft_fit(self, folder: Path) -> None:
        inspection = inspect(folder, BASE, 32)
        assert inspection.fits, inspection.findings

    def test_made_adapter_fits_without_a_note(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(tmp_path / "a", factors(8))
        assert fit(Adapter.open(folder), base.linears, 16) == []

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({"use_dora": True}, "DoRA"),
            ({"bias": "all"}, "bias"),
            ({"lora_bias": True}, "lora_bias"),
            ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
            ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
            ({"target_parameters": ["x"]}, "target_parameters"),
            ({"layer_replication": [[0, 2]]}, "layer_replication"),
            ({"init_lora_weights": "pissa"}, "'pissa'"),
            ({"init_lora_weights": "olora"}, "'olora'"),
            ({"kasa_config": {"a": 1}}, "kasa_config"),
            ({"something_new": {"a": 1}}, "something_new"),
        ],
    )
    def test_variant_is_named(
        self, tmp_path: Path, base: Base, config: dict, says: str
    ) -> None:
        folder = write_adapter(tmp_path / "a", factors(8), **config)
        (text,) = found(folder, base)
        assert says in text

    @pytest.mark.parametrize(
        "config",
        [
            {"init_lora_weights": "gaussian"},
            {"init_lora_weights": "eva"},
            {"something_new": None, "another": False, "third": {}},
            {"peft_version": "9.9", "revision": "main", "task_type": "CAUSAL_LM"},
        ],
    )
    def test_harmless_field(self, tmp_path: Path, base: Base, config: dict) -> None:
        folder = write_adapter(tmp_path / "a", factors(8), **config)
        assert found(folder, base) == []

    @pytest.mark.parametrize(
        ("name", "shape", "says"),
        [
            (f"{Q0}.lora_magnitude_vector", (32,), "DoRA"),
            (f"{Q0}.lora_B.bias", (32,), "bias on lora_B"),
            (f"{Q0}.base_layer.bias", (32,), "base's own"),
            ("base_model.model.model.embed_tokens.lora_embedding_A", (8, 64), "embed"),
            ("base_model.model.lm_head.weight", (64, 32), "modules_to_save"),
            (
                "base_model.model.model.embed_tokens.token_adapter."
                "trainable_tokens_delta",
                (2, 32),
                "trained tokens",
            ),
            ("base_model.model.model.norm.bias", (32,), "trained bias"),
            (f"{Q0}.lora_C.weight", (8, 8), "not named as PEFT"),
            ("stray", (2,), "unknown tensor"),
        ],
    )
    def test_leftover_is_named(
        self, tmp_path: Path, base: Base, name: str, shape: Any, says: str
    ) -> None:
        tensors = {**factors(8), name: np.ones(shape, np.float32)}
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert name in text
        assert says in text

    @pytest.mark.parametrize(
        ("module", "says"),
        [
            ("lm_head", "lm_head"),
            ("model.visual.blocks.0.mlp.up_proj", "vision tower"),
            (path_of(2, "self_attn.q_proj"), "layer 2, the model has 2"),
            (path_of(0, "mlp.q_proj"), "no slot"),
            ("model.layers.x.self_attn.q_proj", "no slot"),
        ],
    )
    def test_module_without_slot(
        self, tmp_path: Path, base: Base, module: str, says: str
    ) -> None:
        extra = {
            f"base_model.model.{module}.lora_A.weight": np.ones((8, 32), np.float32),
            f"base_model.model.{module}.lora_B.weight": np.ones((32, 8), np.float32),
        }
        folder = write_adapter(
            tmp_path / "a", {**factors(8), **extra}, target_modules=r".*(proj|head)"
        )
        (text,) = found(folder, base)
        assert says in text

    @pytest.mark.parametrize("factor", ["A", "B"])
    def test_factor_alone(self, tmp_path: Path, base: Base, factor: str) -> None:
        tensors = factors(8)
        del tensors[f"{Q0}.lora_{factor}.weight"]
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert f"has no lora_{factor}" in text

    @pytest.mark.parametrize(
        ("factor", "shape", "says"),
        [
            ("A", (8, 31), "[r, 32]"),
            ("B", (33, 8), "[32, r]"),
            ("A", (32, 8), "transposed?"),
            ("A", (256,), "has shape [256]"),
            ("B", (32, 8, 1), "has shape [32, 8, 1]"),
            ("A", (0, 32), "has shape [0, 32]"),
            ("B", (32, 4), "A has rank 8, B has rank 4"),
        ],
    )
    def test_shape(
        self, tmp_path: Path, base: Base, factor: str, shape: Any, says: str
    ) -> None:
        tensors = {**factors(8), f"{Q0}.lora_{factor}.weight": np.ones(shape, BF16)}
        texts = found(write_adapter(tmp_path / "a", tensors), base)
        assert any(says in text for text in texts), texts

    @pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.bool_])
    def test_dtype(self, tmp_path: Path, base: Base, dtype: Any) -> None:
        tensors = {**factors(8), f"{Q0}.lora_B.weight": np.ones((32, 8), dtype)}
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert "no float" in text

    def test_rank_over_the_reserve(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(tmp_path / "a", factors(17), r=17)
        (text,) = found(folder, base)
        assert "rank 17" in text
        assert "reserves 16" in text
        assert found(folder, base, 17) == []

    def test_rank_over_the_reserve_by_a_pattern(
        self, tmp_path: Path, base: Base
    ) -> None:
        wide = factors(17, modules=["mlp.up_proj"])
        folder = write_adapter(
            tmp_path / "a", {**factors(8), **wide}, rank_pattern={"up_proj": 17}
        )
        (text,) = found(folder, base)
        assert "up_proj" in text
        assert "17" in text

    def test_rank_that_the_config_does_not_say(
        self, tmp_path: Path, base: Base
    ) -> None:
        (text,) = found(write_adapter(tmp_path / "a", factors(4)), base)
        assert "rank 4 in module" in text
        assert "13 more" in text

    def test_pattern_that_matches_nothing(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(
            tmp_path / "a",
            factors(8),
            rank_pattern={"qproj": 4},
            alpha_pattern={"q_proj": 4, "layers.7.q_proj": 1},
        )
        assert found(folder, base) == []
        notes = found(folder, base, severity="note")
        assert [("qproj" in n, "layers.7.q_proj" in n) for n in notes] == [
            (True, False),
            (False, True),
        ]

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("factor", ["A", "B"])
    def test_not_finite(
        self, tmp_path: Path, base: Base, factor: str, value: float
    ) -> None:
        tensors = factors(8)
        tensors[f"{Q0}.lora_{factor}.weight"][3, 3] = value
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert "1 values NaN or Inf" in text
        assert f"lora_{factor}" in text

    def test_overflow_with_scale(self, tmp_path: Path, base: Base) -> None:
        tensors = {n: v.astype(np.float32) for n, v in factors(8).items()}
        tensors[f"{Q0}.lora_B.weight"][0, 0] = 3e38
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert "overflows bfloat16 with scale 2" in text

    def test_float32_too_large_for_bf16(self, tmp_path: Path, base: Base) -> None:
        tensors = {n: v.astype(np.float32) for n, v in factors(8).items()}
        tensors[f"{Q0}.lora_A.weight"][0, 0] = np.finfo(np.float32).max
        (text,) = found(write_adapter(tmp_path / "a", tensors), base)
        assert "overflows bfloat16" in text

    def test_untrained_is_a_note(self, tmp_path: Path, base: Base) -> None:
        tensors = {n: v * ("lora_A" in n) for n, v in factors(8).items()}
        folder = write_adapter(
            tmp_path / "a", {n: v.astype(BF16) for n, v in tensors.items()}
        )
        assert found(folder, base) == []
        assert any("untrained" in n for n in found(folder, base, severity="note"))

    def test_tensors_that_are_not_targeted(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(tmp_path / "a", factors(8), target_modules=["q_proj"])
        (text,) = found(folder, base)
        assert "not in target_modules" in text

    def test_targets_without_tensors(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(tmp_path / "a", factors(8, layers=1))
        (text,) = found(folder, base)
        assert "layers.1." in text
        assert "6 more" in text
        folder = write_adapter(
            tmp_path / "b", factors(8, layers=1), layers_to_transform=[0]
        )
        assert found(folder, base) == []

    def test_two_names_of_one_slot(self, tmp_path: Path, base: Base) -> None:
        twice = {
            name.replace("model.language_model", "language_model.model"): values
            for name, values in factors(8).items()
            if name.startswith(Q0)
        }
        texts = found(write_adapter(tmp_path / "a", {**factors(8), **twice}), base)
        assert any("have one slot" in text for text in texts)

    def test_another_root_is_noted(self, tmp_path: Path, base: Base) -> None:
        text_only = {
            name.replace("model.language_model", "model"): values
            for name, values in factors(8).items()
        }
        folder = write_adapter(tmp_path / "a", text_only)
        assert found(folder, base) == []
        (text,) = found(folder, base, severity="note")
        assert "silently" in text

    def test_scale_that_hides_faults_is_noted(self, tmp_path: Path, base: Base) -> None:
        folder = write_adapter(tmp_path / "a", factors(8), lora_alpha=8)
        assert any("scale is 1" in n for n in found(folder, base, severity="note"))
        assert any("reserved 8" in n for n in found(folder, base, 8, severity="note"))

    def test_against_slots(self, tmp_path: Path, base: Base) -> None:
        linears = slot_linears(slots_of(base))
        good = Adapter.open(write_adapter(tmp_path / "a", factors(8)))
        assert fit(good, linears, 16) == []
        tensors = {**factors(8), f"{Q0}.lora_A.weight": np.ones((8, 31), BF16)}
        bad = Adapter.open(write_adapter(tmp_path / "b", tensors))
        assert any("[r, 32]" in f.text for f in fit(bad, linears, 16))


class TestFuzz:
    """Whatever happens to the bytes, the answer is a fault or findings."""

    @settings(max_examples=150, deadline=2000)
    @given(data=st.data())
    def test_bytes_of_either_file(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        root = tmp_path_factory.mktemp("fuzz")
        base = Base.open(write_base(root / "base"))
        folder = write_adapter(
            root / "a",
            factors(2, layers=1),
            r=2,
            rank_pattern={"up_proj": 2},
            alpha_pattern={"q_proj": 3},
            use_rslora=False,
        )
        name = data.draw(
            st.sampled_from(["adapter_config.json", "adapter_model.safetensors"])
        )
        raw = bytearray((folder / name).read_bytes())
        # Half of the flips in the first kilobytes: the header decides most.
        spots = st.integers(0, min(2000, len(raw) - 1)) | st.integers(0, len(raw) - 1)
        for spot in data.draw(st.lists(spots, max_size=6)):
            raw[spot] = data.draw(st.integers(0, 255))
        end = data.draw(st.none() | st.integers(0, len(raw)))
        (folder / name).write_bytes(raw[:end])
        try:
            findings = fit(Adapter.open(folder), base.linears, 16)
        except UsageFault as fault:
            assert "\n" not in str(fault)
            assert len(str(fault)) < 2000
        else:
            assert all("\n" not in f.text and len(f.text) < 2000 for f in findings)

    @settings(max_examples=60, deadline=2000)
    @given(
        config=st.dictionaries(
            st.sampled_from(
                [
                    "r",
                    "lora_alpha",
                    "rank_pattern",
                    "alpha_pattern",
                    "target_modules",
                    "use_rslora",
                    "bias",
                    "init_lora_weights",
                    "layers_to_transform",
                    "modules_to_save",
                    "peft_type",
                    "base_model_name_or_path",
                    "new",
                ]
            ),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False)
                | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
                ),
                max_leaves=6,
            ),
        )
    )
    def test_fields_of_any_type(
        self, tmp_path_factory: pytest.TempPathFactory, config: dict
    ) -> None:
        root = tmp_path_factory.mktemp("fields")
        folder = write_adapter(root / "a", factors(2, layers=1), **config)
        write_base(root / "base")
        try:
            json.dumps(inspect(folder, root / "base", 16).to_json())
        except UsageFault as fault:
            assert "\n" not in str(fault)


@dataclass(frozen=True)
class FakeSlot:
    name: str
    net: str
    layer: int
    module: str
    factor: str
    reserved_rank: int
    width: int
    dtype: str
    size: int


def slots_of(base: Base, rank: int = 16) -> list[FakeSlot]:
    """The slots of a model compiled from `base` with the right reserve."""
    slots = []
    for (layer, name), linear in base.linears.items():
        for net in (f"block_{layer}", f"block_cache_{layer}"):
            for factor, width in (
                ("A", linear.in_features),
                ("B", linear.out_features),
            ):
                slots.append(
                    FakeSlot(
                        f"lora.{rank}.0.{linear.path}.lora_{factor}.weight",
                        net,
                        layer,
                        name,
                        factor,
                        rank,
                        width,
                        "bf16",
                        -(-rank * width * 2 // 4096) * 4096,
                    )
                )
    return slots


class TestReservation:
    def test_complete(self, base: Base) -> None:
        assert reservation(slots_of(base), base.linears, reserved_rank=16) == []

    def test_without_lora(self, base: Base) -> None:
        (finding,) = reservation([], base.linears)
        assert "compiled without LoRA" in finding.text
        lm_head = replace(slots_of(base)[0], layer=-1, module="lm_head", net="lm_head")
        (finding,) = reservation([lm_head], base.linears)
        assert "compiled without LoRA" in finding.text

    @settings(max_examples=40)
    @given(gone=st.sets(st.integers(0, 2 * 2 * 2 * len(WIDTHS) - 1), min_size=1))
    def test_every_missing_slot_is_seen(
        self, tmp_path_factory: pytest.TempPathFactory, gone: set[int]
    ) -> None:
        base = Base.open(write_base(tmp_path_factory.mktemp("r") / "base"))
        slots = slots_of(base)
        kept = [slot for i, slot in enumerate(slots) if i not in gone]
        findings = reservation(kept, base.linears)
        assert findings
        assert all(f.requirement == "R01" and f.severity == "unfit" for f in findings)
        nets = {slots[i].net.rpartition("_")[0] for i in gone}
        assert len(findings) == (len(nets) if kept else 1)

    def test_decode_without_slots(self, base: Base) -> None:
        slots = [s for s in slots_of(base) if not s.net.startswith("block_cache")]
        (finding,) = reservation(slots, base.linears)
        assert "block_cache_0" in finding.text

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"reserved_rank": 8}, "different ranks"),
            ({"width": 31}, "31 wide"),
            ({"size": 16 * 32 * 2 - 1}, "1023 of 1024 bytes"),
            ({"dtype": "i8"}, "not bf16"),
        ],
    )
    def test_slot_that_does_not_fit(self, base: Base, change: dict, says: str) -> None:
        slots = slots_of(base)
        index = next(i for i, s in enumerate(slots) if s.module == "q_proj")
        slots[index] = replace(slots[index], **change)
        assert any(says in f.text for f in reservation(slots, base.linears))

    def test_other_reserve(self, base: Base) -> None:
        (finding,) = reservation(slots_of(base, 8), base.linears, reserved_rank=16)
        assert "reserve rank 8, 16 is expected" in finding.text

    def test_width_unknown(self, base: Base) -> None:
        slots = [replace(s, width=0) for s in slots_of(base)]
        assert reservation(slots, base.linears, reserved_rank=16) == []

    def test_twice(self, base: Base) -> None:
        slots = slots_of(base)
        assert any(
            "two slots" in f.text for f in reservation([*slots, slots[0]], base.linears)
        )


class TestBaseIdentity:
    def test_same(self, base: Base) -> None:
        sidecar = {"digests": base.identity.to_json()}
        assert base_matches(sidecar, base.identity) == []

    @pytest.mark.parametrize(
        "part", ["weights", "tokenizer", "chat_template", "config"]
    )
    def test_changed_part(self, base: Base, part: str) -> None:
        digests = {**base.identity.to_json(), part: "0" * 64}
        (finding,) = base_matches({"digests": digests}, base.identity)
        assert (finding.requirement, finding.severity) == ("R04", "unfit")
        assert part in finding.text

    def test_changed_base_of_equal_shape(self, tmp_path: Path, base: Base) -> None:
        other = write_base(tmp_path / "other")
        weights = other / "model.safetensors"
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
        sidecar = {"digests": base.identity.to_json()}
        (finding,) = base_matches(sidecar, Base.open(other).identity)
        assert "weights" in finding.text

    @pytest.mark.parametrize("sidecar", [{}, {"digests": None}, {"digests": {}}])
    def test_silent_sidecar(self, base: Base, sidecar: dict) -> None:
        findings = base_matches(sidecar, base.identity)
        assert findings
        assert all(f.severity == "note" for f in findings)


class TestInspection:
    def test_json(self, tmp_path: Path) -> None:
        write_base(tmp_path / "base")
        folder = write_adapter(
            tmp_path / "a", factors(8), use_dora=True, alpha_pattern={"q_proj": 4}
        )
        inspection = inspect(folder, tmp_path / "base", 16)
        value = json.loads(json.dumps(inspection.to_json()))
        assert value["fits"] is False
        assert value["findings"][0]["severity"] == "unfit"
        assert inspection.scales == {0.5: 2, 2.0: 12}
        assert len(value["modules"]) == 14
        text = inspection.text()
        assert "scale 0.5: 2 modules" in text
        assert "use_dora" in text
        assert text.endswith("does not fit")

    def test_base_with_bias(self, tmp_path: Path) -> None:
        write_base(tmp_path / "base", bias=True)
        folder = write_adapter(tmp_path / "a", factors(8))
        inspection = inspect(folder, tmp_path / "base", 16)
        (finding,) = inspection.findings
        assert finding.requirement == "R01"
        assert "bias" in finding.text

    def test_base_of_another_name_is_noted(self, tmp_path: Path) -> None:
        write_base(tmp_path / "base")
        folder = write_adapter(
            tmp_path / "a", factors(8), base_model_name_or_path="org/other"
        )
        inspection = inspect(folder, tmp_path / "base", 16)
        assert inspection.fits
        assert ["R04"] == [f.requirement for f in inspection.findings]

    def test_reserved_rank(self, tmp_path: Path) -> None:
        with pytest.raises(UsageFault, match="reserved rank"):
            inspect(tmp_path, tmp_path, 0)

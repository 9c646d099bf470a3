"""The loader writes exactly what PEFT means, or refuses and touches nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from harness.probes.loader import Loader
from harness.probes.loader import LoaderRefused
from harness.probes.loader import bf16
from harness.probes.names import SlotName
from harness.probes.peft import Config
from harness.probes.peft import ConfigError


ROOT = "model.language_model.layers"
LAYERS = 2
RESERVED = 32
PAGE = 4096
WIDTHS = {  # in, out
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (128, 64),
    "self_attn.v_proj": (128, 64),
    "self_attn.o_proj": (128, 128),
    "mlp.gate_proj": (128, 256),
    "mlp.up_proj": (128, 256),
    "mlp.down_proj": (256, 128),
}
# As on the device: no width where no net tells it.
UNKNOWN = {("mlp.gate_proj", "B"), ("mlp.up_proj", "B"), ("mlp.down_proj", "A")}
Tensors = dict[str, np.ndarray]


class Memory:
    """Slots of two layers in memory, listed by a prefill and a decode net."""

    def __init__(self, dtype: str = "bf16", shared: bool = True) -> None:
        self.content: dict[int, bytearray] = {}
        self.writes = 0
        self.fails_at = -1
        self._slots = []
        for net in ("block_%d", "block_cache_%d"):
            for layer in range(LAYERS):
                for path, widths in WIDTHS.items():
                    for factor, width in zip("AB", widths, strict=True):
                        name = f"lora.{RESERVED}.0.{ROOT}.{layer}.{path}"
                        name = f"{name}.lora_{factor}.weight"
                        self._add(
                            name if shared else net + name, net % layer, dtype, width
                        )

    def _add(self, key: str, net: str, dtype: str, width: int) -> None:
        name = key[key.index("lora.") :]
        parsed = SlotName.parse(name)
        assert parsed is not None
        place = parsed.place
        size = RESERVED * width * (2 if dtype == "bf16" else 4)
        size = -(-size // PAGE) * PAGE
        address = hash(key)
        # Whatever lay there before: nothing may rely on zeros.
        self.content.setdefault(address, bytearray(b"\x7f" * size))
        self._slots.append(
            {
                "name": name,
                "net": net,
                "layer": place.layer,
                "path": place.path,
                "module": place.path.split(".")[1],
                "factor": place.factor,
                "reserved_rank": RESERVED,
                "width": 0 if (place.path, place.factor) in UNKNOWN else width,
                "dtype": dtype,
                "size": size,
                "address": address,
            }
        )

    def slots(self) -> list[dict[str, Any]]:
        return self._slots

    def read(self, slot: dict[str, Any]) -> np.ndarray:
        return np.frombuffer(bytes(self.content[slot["address"]]), np.uint8)

    def write(self, slot: dict[str, Any], data: Any) -> None:
        self._count()
        raw = bytes(data)
        self.content[slot["address"]][: len(raw)] = raw

    def zero(self, slot: dict[str, Any]) -> None:
        self._count()
        self.content[slot["address"]][:] = bytes(slot["size"])

    def _count(self) -> None:
        if self.writes == self.fails_at:
            self.fails_at = -1
            raise OSError("DMA failed")
        self.writes += 1

    def values(self, layer: int, path: str, factor: str) -> np.ndarray:
        """A slot as the graph sees it, float32 `[reserved rank, width]`."""
        for slot in self._slots:
            if (slot["layer"], slot["path"], slot["factor"]) == (layer, path, factor):
                width = WIDTHS[path][factor == "B"]
                dtype = ml_dtypes.bfloat16 if slot["dtype"] == "bf16" else np.float32
                count = RESERVED * width * np.dtype(dtype).itemsize
                rest = self.read(slot)[count:]
                assert not rest.any()
                raw = self.read(slot)[:count]
                return raw.view(dtype).reshape(RESERVED, width).astype(np.float32)
        raise LookupError(path)

    def snapshot(self) -> dict[int, bytes]:
        return {k: bytes(v) for k, v in self.content.items()}

    @property
    def zeroed(self) -> bool:
        return not any(any(v) for v in self.content.values())


def key(layer: int, path: str, factor: str, root: str = ROOT) -> str:
    return f"base_model.model.{root}.{layer}.{path}.lora_{factor}.weight"


def factors(
    rank: Callable[[int, str], int] = lambda layer, path: 8,
    *,
    dtype: Any = ml_dtypes.bfloat16,
    root: str = ROOT,
    seed: int = 0,
) -> Tensors:
    """Random factors of every module."""
    draw = np.random.default_rng(seed)
    made = {}
    for layer in range(LAYERS):
        for path, (wide, out) in WIDTHS.items():
            r = rank(layer, path)
            made[key(layer, path, "A", root)] = draw.normal(size=(r, wide))
            made[key(layer, path, "B", root)] = draw.normal(size=(out, r))
    return {name: array.astype(dtype) for name, array in made.items()}


def write(folder: Path, tensors: Tensors, **fields: Any) -> Path:
    """An adapter folder."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, **fields}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def check(memory: Memory, tensors: Tensors, scale: Callable[[int, str], float]) -> None:
    """Every slot holds what its factor says, rounded once, and zeros behind it."""
    round_ = memory.slots()[0]["dtype"] == "bf16"
    for layer in range(LAYERS):
        for path in WIDTHS:
            for factor in "AB":
                got = memory.values(layer, path, factor)
                rows = tensors[key(layer, path, factor)].astype(np.float32)
                if factor == "B":
                    rows = rows.T * np.float32(scale(layer, path))
                if round_:
                    rows = rows.astype(ml_dtypes.bfloat16).astype(np.float32)
                assert np.array_equal(got[: len(rows)], rows), (layer, path, factor)
                assert not got[len(rows) :].any(), (layer, path, factor)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    "stored", [ml_dtypes.bfloat16, np.float16, np.float32, np.float64]
)
def test_every_slot_holds_its_factor(tmp_path: Path, dtype: str, stored: Any) -> None:
    memory, tensors = Memory(dtype), factors(dtype=stored)
    loader = Loader(memory)
    loader.load(str(write(tmp_path / "mine", tensors, lora_alpha=24.5)))
    check(memory, tensors, lambda layer, path: 24.5 / 8)
    assert loader.loaded == "mine"


def test_memory_that_nets_do_not_share_is_written_for_each(tmp_path: Path) -> None:
    memory = Memory(shared=False)
    Loader(memory).load(str(write(tmp_path / "a", factors())))
    half = len(memory.slots()) // 2
    for one, other in zip(memory.slots()[:half], memory.slots()[half:], strict=True):
        assert one["address"] != other["address"]
        assert np.array_equal(memory.read(one), memory.read(other))


@pytest.mark.parametrize("rank", [1, 3, 8, 32])
@pytest.mark.parametrize("rslora", [False, True])
def test_scale_has_the_adapters_own_rank(
    tmp_path: Path, rank: int, rslora: bool
) -> None:
    memory, tensors = Memory(), factors(lambda layer, path: rank)
    folder = write(tmp_path / "a", tensors, r=rank, lora_alpha=12, use_rslora=rslora)
    Loader(memory).load(str(folder))
    scale = 12 / math.sqrt(rank) if rslora else 12 / rank
    check(memory, tensors, lambda layer, path: scale)


def test_patterns(tmp_path: Path) -> None:
    """The first pattern that matches wins, at a whole part of the path."""

    def rank(layer: int, path: str) -> int:
        if path == "mlp.down_proj":
            return 16
        return 4 if (layer, path) == (1, "self_attn.q_proj") else 8

    def scale(layer: int, path: str) -> float:
        alpha = 20 if path in ("mlp.gate_proj", "mlp.up_proj") else 16
        return alpha / rank(layer, path)

    memory, tensors = Memory(), factors(rank)
    folder = write(
        tmp_path / "a",
        tensors,
        rank_pattern={"down_proj": 16, "layers.1.self_attn.q_proj": 4, "q_proj": 8},
        alpha_pattern={"proj": 99, r"mlp\.(gate|up)_proj": 20},
    )
    Loader(memory).load(str(folder))
    check(memory, tensors, scale)


@pytest.mark.parametrize("root", ["model.layers", "language_model.model.layers"])
def test_other_spellings_of_the_prefix(tmp_path: Path, root: str) -> None:
    memory = Memory()
    Loader(memory).load(str(write(tmp_path / "a", factors(root=root))))
    check(memory, factors(), lambda layer, path: 2.0)


def test_a_smaller_adapter_leaves_nothing_of_a_larger(tmp_path: Path) -> None:
    """Rank 32 on all, then rank 4 on two modules: as if freshly loaded."""
    large = write(tmp_path / "large", factors(lambda *_: 32), r=32)
    few = {
        k: v
        for k, v in factors(lambda *_: 4, seed=1).items()
        if "q_proj" in k or "v_proj" in k
    }
    small = write(tmp_path / "small", few, r=4)
    fresh, used = Memory(), Memory()
    Loader(fresh).load(str(small))
    loader = Loader(used)
    loader.load(str(large))
    loader.load(str(small))
    assert used.snapshot() == fresh.snapshot()
    assert not used.values(0, "self_attn.k_proj", "B").any()
    loader.clear()
    assert used.zeroed
    assert loader.loaded is None


def test_alpha_zero_and_zero_b_are_base(tmp_path: Path) -> None:
    memory = Memory()
    Loader(memory).load(str(write(tmp_path / "a", factors(), lora_alpha=0)))
    assert not memory.values(1, "mlp.up_proj", "B").any()


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"init_lora_weights": False},
        {"task_type": "CAUSAL_LM", "base_model_name_or_path": "x", "revision": "main"},
        {"loftq_config": {}, "megatron_core": "megatron.core", "lora_dropout": 0.1},
        {"target_modules": sorted({p.split(".")[1] for p in WIDTHS})},
        {"target_modules": r".*layers\.\d+\.(self_attn|mlp)\.[a-z]+_proj"},
        {"target_modules": "all-linear"},
        {"layers_to_transform": [0, 1]},
        {"a_field_of_next_year": None, "another": False, "third": {}},
        {"bias": "none", "modules_to_save": [], "use_dora": False},
    ],
    ids=str,
)
def test_harmless_fields(tmp_path: Path, fields: dict[str, Any]) -> None:
    memory = Memory()
    Loader(memory).load(str(write(tmp_path / "a", factors(), **fields)))
    check(memory, factors(), lambda layer, path: 2.0)


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("unsupported", {"peft_type": "LOHA"}),
    ("config-malformed", {"peft_type": None}),
    ("config-malformed", {"r": "8"}),
    ("config-malformed", {"r": 0}),
    ("config-malformed", {"r": -8}),
    ("config-malformed", {"r": 8.0}),
    ("config-malformed", {"r": True}),
    ("config-malformed", {"lora_alpha": "16"}),
    ("config-malformed", {"lora_alpha": None}),
    ("config-malformed", {"lora_alpha": 10**400}),
    ("config-malformed", {"use_rslora": "yes"}),
    ("config-malformed", {"rank_pattern": [8]}),
    ("config-malformed", {"rank_pattern": {"q_proj": 0}}),
    ("config-malformed", {"rank_pattern": {"(": 8}}),
    ("config-malformed", {"alpha_pattern": {"q_proj": "x"}}),
    ("config-malformed", {"target_modules": 5}),
    ("config-malformed", {"target_modules": "("}),
    ("config-malformed", {"layers_to_transform": "0"}),
    ("unsupported", {"use_dora": True}),
    ("unsupported", {"bias": "all"}),
    ("unsupported", {"bias": "lora_only"}),
    ("unsupported", {"lora_bias": True}),
    ("unsupported", {"modules_to_save": ["lm_head"]}),
    ("unsupported", {"trainable_token_indices": [1, 2]}),
    ("unsupported", {"target_parameters": ["x"]}),
    ("unsupported", {"layer_replication": [[0, 2], [1, 2]]}),
    ("unsupported", {"use_qalora": True}),
    ("unsupported", {"use_bdlora": {"nblocks": 2}}),
    ("unsupported", {"alora_invocation_tokens": [1]}),
    ("unsupported", {"arrow_config": {"top_k": 3}}),
    ("unsupported", {"kasa_config": {"beta": 1}}),
    ("unsupported", {"corda_config": {"x": 1}}),
    ("unsupported", {"loftq_config": {"loftq_bits": 4}}),
    ("unsupported", {"megatron_config": {"x": 1}}),
    ("unsupported", {"fan_in_fan_out": True}),
    ("unsupported", {"init_lora_weights": "pissa"}),
    ("unsupported", {"init_lora_weights": "PiSSA_niter_4"}),
    ("unsupported", {"init_lora_weights": "olora"}),
    ("unsupported", {"init_lora_weights": "corda"}),
    ("unsupported", {"init_lora_weights": "loftq"}),
    ("unsupported", {"init_lora_weights": "lora_ga"}),
    ("unsupported", {"a_field_of_next_year": {"on": 1}}),
    ("rank-mismatch", {"r": 4}),
    ("rank-mismatch", {"rank_pattern": {"up_proj": 4}}),
    ("not-targeted", {"target_modules": ["q_proj"]}),
    ("not-targeted", {"exclude_modules": ["up_proj"]}),
    ("not-targeted", {"layers_to_transform": [0]}),
    ("non-finite", {"lora_alpha": 1e300}),
    ("non-finite", {"lora_alpha": 1e39}),
]

Q_A, Q_B = key(0, "self_attn.q_proj", "A"), key(0, "self_attn.q_proj", "B")
UP_B = key(1, "mlp.up_proj", "B")


def put(name: str, value: np.ndarray) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: value})


def put_pair(layer: int, path: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update(
        {
            key(layer, path, "A"): zeros(8, 128),
            key(layer, path, "B"): zeros(128, 8),
        }
    )


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def poison(name: str, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].astype(np.float32)
        tensors[name][3, 5] = value

    return change


def rank_33(tensors: Tensors) -> None:
    tensors.update(factors(lambda *_: 33))


PREFIX = f"base_model.model.{ROOT}.0"
CONTENT: list[tuple[str, str, Callable[[Tensors], Any], dict[str, Any]]] = [
    ("unpaired", Q_A, lambda t: t.pop(Q_B), {}),
    ("unpaired", Q_B, lambda t: t.pop(Q_A), {}),
    ("unpaired", Q_A, put(key(0, "self_attn.q_proj", "A", "model.layers"),
                          zeros(8, 128)), {}),
    ("rank-mismatch", Q_A, put(Q_A, zeros(7, 128)), {}),
    ("rank-mismatch", Q_B, put(Q_B, zeros(128, 9)), {}),
    ("rank-too-large", "reserved are 32", rank_33, {"r": 33}),
    ("shape", Q_A, put(Q_A, zeros(8, 64)), {}),
    ("shape", Q_A, put(Q_A, zeros(8, 127)), {}),
    ("shape", Q_B, put(Q_B, zeros(120, 8)), {}),
    ("shape", UP_B, put(UP_B, zeros(255, 8)), {}),
    ("shape", UP_B, put(UP_B, zeros(512, 8)), {}),
    ("shape", Q_A, put(Q_A, zeros(8, 128, 1)), {}),
    ("shape", Q_A, put(Q_A, zeros(1024)), {}),
    ("shape", Q_A, put(Q_A, zeros(0, 128)), {}),
    ("dtype", Q_A, put(Q_A, zeros(8, 128, dtype=np.int8)), {}),
    ("dtype", UP_B, put(UP_B, zeros(256, 8, dtype=np.int64)), {}),
    ("non-finite", Q_A, poison(Q_A, math.nan), {}),
    ("non-finite", UP_B, poison(UP_B, -math.inf), {}),
    ("non-finite", UP_B, poison(UP_B, 3e38), {}),
    ("non-finite", Q_A, poison(Q_A, 3.4e38), {}),  # rounds up to infinity in bf16
    ("no-slot", "layers.7", put_pair(7, "self_attn.q_proj"), {}),
    ("no-slot", "qkv", put_pair(0, "self_attn.qkv"), {}),
    ("no-slot", "cross.q_proj", put_pair(0, "cross.q_proj"), {}),
    ("unknown-tensor", "visual", put(
        "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight", zeros(8, 8)
    ), {}),
    ("unknown-tensor", "lm_head", put(
        "base_model.model.lm_head.lora_A.weight", zeros(8, 128)), {}),
    ("unknown-tensor", "lm_head", put("base_model.model.lm_head.weight", zeros(1)), {}),
    ("unknown-tensor", "magnitude", put(
        f"{PREFIX}.self_attn.q_proj.lora_magnitude_vector", zeros(128)), {}),
    ("unknown-tensor", "bias", put(
        f"{PREFIX}.self_attn.q_proj.lora_B.bias", zeros(128)), {}),
    ("unknown-tensor", "embedding", put(
        "base_model.model.model.language_model.embed_tokens.lora_embedding_A",
        zeros(8, 512)), {}),
    ("unknown-tensor", "trainable", put(
        "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
        zeros(2, 128)), {}),
    ("unknown-tensor", "model.layers", put(
        "model.layers.0.self_attn.q_proj.lora_A.weight", zeros(8, 128)), {}),
    ("unknown-tensor", "default", put(
        f"{PREFIX}.self_attn.q_proj.lora_A.default.weight", zeros(8, 128)), {}),
    ("unknown-tensor", "layers.00", put(
        f"base_model.model.{ROOT}.00.self_attn.q_proj.lora_A.weight", zeros(8, 128)
    ), {}),
    ("empty", "no tensors", lambda t: t.clear(), {}),
]  # fmt: skip


def refusal(memory: Memory, loader: Loader, folder: Path) -> LoaderRefused:
    """Load, see it refused with nothing touched."""
    before, reported, writes = memory.snapshot(), loader.loaded, memory.writes
    with pytest.raises(LoaderRefused) as refused:
        loader.load(str(folder))
    assert memory.snapshot() == before
    assert memory.writes == writes
    assert loader.loaded == reported
    assert "\n" not in refused.value.text
    assert len(refused.value.text) < 600
    return refused.value


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def loader(memory: Memory, tmp_path: Path) -> Loader:
    """A loader with a sound adapter in its slots."""
    loader = Loader(memory)
    loader.load(str(write(tmp_path / "sound", factors(seed=9))))
    return loader


@pytest.mark.parametrize(("code", "fields"), FIELDS, ids=lambda v: str(v)[:40])
def test_refused_configurations(
    memory: Memory, loader: Loader, tmp_path: Path, code: str, fields: dict[str, Any]
) -> None:
    refused = refusal(memory, loader, write(tmp_path / "bad", factors(), **fields))
    assert refused.code == code
    if code in ("config-malformed", "unsupported"):
        assert next(iter(fields)) in refused.text


@pytest.mark.parametrize("case", CONTENT, ids=lambda c: f"{c[0]}, {c[1][-40:]}")
def test_refused_contents(
    memory: Memory,
    loader: Loader,
    tmp_path: Path,
    case: tuple[str, str, Callable[[Tensors], Any], dict[str, Any]],
) -> None:
    code, named, change, fields = case
    tensors = factors()
    change(tensors)
    refused = refusal(memory, loader, write(tmp_path / "bad", tensors, **fields))
    assert refused.code == code
    assert named in refused.text


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        ("config-missing", lambda f: (f / "adapter_config.json").unlink()),
        ("config-malformed", lambda f: (f / "adapter_config.json").write_text("")),
        ("config-malformed", lambda f: (f / "adapter_config.json").write_text("[]")),
        ("config-malformed", lambda f: (f / "adapter_config.json").write_text("{,")),
        (
            "config-malformed",
            lambda f: (f / "adapter_config.json").write_text(
                '{"peft_type": "LORA", "r": 8, "r": 16}'
            ),
        ),
        (
            "config-malformed",
            lambda f: (f / "adapter_config.json").write_text(
                '{"peft_type": "LORA", "lora_alpha": Infinity}'
            ),
        ),
        (
            "config-malformed",
            lambda f: (f / "adapter_config.json").write_text("[" * 100_000),
        ),
        (
            "config-malformed",
            lambda f: (f / "adapter_config.json").write_bytes(b"\xff\xfe{}"),
        ),
        (
            "config-malformed",
            lambda f: (f / "adapter_config.json").write_text(" " * (1 << 20) + "{}"),
        ),
        ("file-missing", lambda f: (f / "adapter_model.safetensors").unlink()),
        (
            "file-missing",
            lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"),
        ),
        (
            "file-damaged",
            lambda f: (f / "adapter_model.safetensors").write_bytes(
                (f / "adapter_model.safetensors").read_bytes()[:-1]
            ),
        ),
        (
            "file-damaged",
            lambda f: (f / "adapter_model.safetensors").write_bytes(b"PK\3\4"),
        ),
    ],
)
def test_refused_files(
    memory: Memory,
    loader: Loader,
    tmp_path: Path,
    code: str,
    damage: Callable[[Path], Any],
) -> None:
    folder = write(tmp_path / "bad", factors())
    damage(folder)
    assert refusal(memory, loader, folder).code == code


def test_no_folder(memory: Memory, loader: Loader, tmp_path: Path) -> None:
    assert refusal(memory, loader, tmp_path / "none").code == "config-missing"


@pytest.mark.parametrize("at", [0, 1, 13, 27])
def test_a_write_that_fails_ends_at_base(
    memory: Memory, loader: Loader, tmp_path: Path, at: int
) -> None:
    memory.fails_at = memory.writes + at
    with pytest.raises(LoaderRefused, match=r"DMA failed; all slots were zeroed") as e:
        loader.load(str(write(tmp_path / "next", factors())))
    assert e.value.code == "write-failed"
    assert memory.zeroed
    assert loader.loaded is None


def test_a_clear_that_fails_says_so_and_clears_the_rest(
    memory: Memory, loader: Loader
) -> None:
    memory.fails_at = memory.writes
    with pytest.raises(LoaderRefused, match="DMA failed"):
        loader.clear()
    assert sum(any(v) for v in memory.content.values()) == 1


@settings(deadline=None)
@given(arrays.arrays(np.float32, 50))
def test_rounding_is_to_nearest_even(values: np.ndarray) -> None:
    values = np.where(np.isnan(values), np.float32(0), values)
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(bf16(values), expected)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=10), st.none() | st.integers() | st.text()))
def test_any_json_is_a_configuration_or_refused(fields: dict[str, Any]) -> None:
    try:
        config = Config({"peft_type": "LORA", **fields})
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert config.rank_of("model.layers.0.self_attn.q_proj") > 0


paths = st.builds(
    "{}.{}.{}".format,
    st.sampled_from([ROOT, "model.layers"]),
    st.integers(0, 30),
    st.sampled_from(list(WIDTHS)),
)
patterns = st.one_of(
    paths,
    st.sampled_from(
        [
            "",
            ".*",
            "1.mlp.down_proj",
            "_proj",
            "proj",
            "q_proj",
            "q_proj|k_proj",
            "self_attn.q_proj",
            r"^model\.layers\.1\..*",
            r"layers\.\d+\.mlp\.up_proj",
        ]
    ),
)


@pytest.mark.reference
@settings(deadline=None)  # the first one imports torch
@given(st.dictionaries(patterns, st.integers(1, 64), max_size=4), paths)
def test_patterns_match_as_in_peft(pattern: dict[str, int], path: str) -> None:
    peft = pytest.importorskip("peft.utils.other")
    config = Config({"peft_type": "LORA", "rank_pattern": pattern, "r": 99})
    found = peft.get_pattern_key(pattern, path)
    assert config.rank_of(path) == pattern.get(found, 99)


@pytest.mark.reference
@pytest.mark.parametrize(
    "options",
    [
        {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
        {"r": 16, "lora_alpha": 24, "use_rslora": True},
        {"r": 5, "lora_alpha": 7},
        {
            "r": 8,
            "lora_alpha": 16,
            "rank_pattern": {"down_proj": 16, r"layers\.1\.mlp\.up_proj": 2},
            "alpha_pattern": {"self_attn.q_proj": 3, "k_proj|v_proj": 5},
        },
        {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
        {"r": 4, "lora_alpha": 4, "layers_to_transform": [1]},
    ],
    ids=str,
)
def test_adapters_that_peft_writes(tmp_path: Path, options: dict[str, Any]) -> None:
    """Slots give the delta that PEFT itself computes, up to one rounding."""
    peft = pytest.importorskip("peft")
    import torch

    torch.manual_seed(0)
    layers = torch.nn.ModuleList()
    for _ in range(LAYERS):
        layer = torch.nn.Module()
        for path, (wide, out) in WIDTHS.items():
            parent, name = path.split(".")
            if not hasattr(layer, parent):
                layer.add_module(parent, torch.nn.Module())
            linear = torch.nn.Linear(wide, out, bias=False)
            getattr(layer, parent).add_module(name, linear)
        layers.append(layer)
    base = torch.nn.Module()
    base.model = torch.nn.Module()
    base.model.language_model = torch.nn.Module()
    base.model.language_model.layers = layers
    targets = [p.split(".")[1] for p in WIDTHS]
    config = peft.LoraConfig(
        init_lora_weights=False, **{"target_modules": targets, **options}
    )
    model = peft.get_peft_model(base, config)
    model.save_pretrained(tmp_path / "a")
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    memory = Memory("f32")
    Loader(memory).load(str(tmp_path / "a"))
    wrapped = dict(model.base_model.model.named_modules())
    assert tensors
    for layer in range(LAYERS):
        for path in WIDTHS:
            a, b = memory.values(layer, path, "A"), memory.values(layer, path, "B")
            module = wrapped[f"{ROOT}.{layer}.{path}"]
            if key(layer, path, "A") not in tensors:
                assert not a.any() and not b.any()
                continue
            expected = module.get_delta_weight("default").detach().numpy()
            assert np.allclose(b.T @ a, expected, rtol=1e-5, atol=1e-5)

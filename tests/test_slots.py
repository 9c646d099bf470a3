"""What the probe tells of slots and models beyond what the simulated board shows."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.probes.digest import file_digest
from harness.probes.names import SlotName
from harness.probes.names import TensorName
from harness.probes.server import Refused
from harness.probes.slots import Slots
from harness.simulator.bm1688.bmrt import Memory
from harness.simulator.bm1688.bmrt import Net
from harness.simulator.bm1688.bmrt import Tensor


WEIGHT = "model.language_model.layers.0.self_attn.{}.lora_{}.weight"


class Nets:
    """A runtime with one layer of hidden 96 and heads of `head`, slots of `rank`."""

    def __init__(
        self, rank: int, size: int, head: int = 64, decode_apart: bool = False
    ) -> None:
        self._rank, self._size, self._head = rank, size, head
        self._apart = decode_apart
        self.content = np.zeros(1 << 20, np.uint8)

    def names(self) -> list[str]:
        return ["block_0", "block_cache_0", "lm_head"]

    def net(self, name: str) -> Net:
        states = Tensor("states", "bf16", (1, 8, 96))
        cache = Tensor("k", "bf16", (1, 8, 2, self._head))
        return Net(name, (states,), (states, cache, cache))

    def coefficients(self, net: str) -> dict[str, Memory]:
        if net == "lm_head":
            return {"lm_head.weight": Memory(1, 4096)}
        base = 1 << 16 if self._apart and net == "block_cache_0" else 0
        return {
            f"lora.{self._rank}.0.{WEIGHT.format(module, factor)}": Memory(
                base + i * self._size, self._size
            )
            for i, (module, factor) in enumerate(
                [("q_proj", "A"), ("q_proj", "B"), ("k_proj", "B"), ("o_proj", "A")]
            )
        }

    def read(self, memory: Memory, size: int) -> np.ndarray:
        return self.content[memory.address : memory.address + size].copy()

    def write(self, memory: Memory, data: Any, offset: int = 0) -> None:
        raw = np.asarray(data)
        self.content[memory.address : memory.address + raw.size] = raw

    def zero(self, memory: Memory) -> None:
        self.content[memory.address : memory.address + memory.size] = 0


def widths(slots: Slots) -> dict[tuple[str, str], int]:
    return {(s["module"], s["factor"]): s["width"] for s in slots.slots()}


def test_widths_that_the_nets_tell() -> None:
    found = widths(Slots(Nets(32, 8192)))
    assert found["q_proj", "A"] == 96
    assert found["k_proj", "B"] == 128
    # 8192 bytes of 32 rows in bf16: at most 128 values, whole heads of 64, not 64.
    assert found["q_proj", "B"] == found["o_proj", "A"] == 128


def test_a_width_that_may_be_another_is_not_told() -> None:
    # 4096 bytes of 8 rows: 256 values, but 192 would take a whole page as well.
    assert widths(Slots(Nets(8, 4096)))["q_proj", "B"] == 0


def test_memory_that_nets_do_not_share_has_no_plain_name() -> None:
    slots = Slots(Nets(32, 8192, decode_apart=True))
    name = slots.slots()[0]["name"]
    with pytest.raises(Refused, match="block_0 and block_cache_0"):
        slots.find(name)
    prefill, decode = slots.find(f"block_0:{name}"), slots.find(f"block_cache_0:{name}")
    slots.write(prefill, b"\x01" * 10)
    assert slots.read(prefill)[:11].tolist() == [1] * 10 + [0]
    assert not slots.read(decode).any()
    with pytest.raises(Refused):
        slots.find(f"lm_head:{name}")


def test_what_does_not_fit_is_not_written() -> None:
    nets = Nets(32, 8192)
    slots = Slots(nets)
    with pytest.raises(ValueError, match="8193 bytes"):
        slots.write(slots.slots()[0], b"\x01" * 8193)
    assert not nets.content.any()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.language_model.layers.27.mlp.up_proj", (27, "mlp.up_proj", "A")),
        ("model.layers.0.self_attn.q_proj", (0, "self_attn.q_proj", "A")),
        ("language_model.model.layers.3.mlp.x", (3, "mlp.x", "A")),
        ("model.visual.layers.3.mlp.x", (-1, "model.visual.layers.3.mlp.x", "A")),
        ("model.layers.03.mlp.x", (-1, "model.layers.03.mlp.x", "A")),
        ("xmodel.layers.3.mlp.x", (-1, "xmodel.layers.3.mlp.x", "A")),
        ("lm_head", (-1, "lm_head", "A")),
    ],
)
def test_places(name: str, place: tuple[int, str, str]) -> None:
    slot = SlotName.parse(f"lora.32.0.{name}.lora_A.weight")
    tensor = TensorName.parse(f"base_model.model.{name}.lora_A.weight")
    assert slot is not None and tensor is not None
    assert slot.place == tensor.place == place
    assert slot.reserved_rank == 32


@pytest.mark.parametrize(
    "name",
    ["", "lora.32.0", "lora.x.0.a.lora_A.weight", "lora.32.0.a.lora_C.weight", "a.b"],
)
def test_weights_that_are_no_slots(name: str) -> None:
    assert SlotName.parse(name) is None
    assert TensorName.parse(name) is None


def test_a_digest_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    path, memory = tmp_path / "model", tmp_path / "kept.json"
    path.write_bytes(b"one" * 1000)
    first = hashlib.sha256(b"one" * 1000).hexdigest()
    assert file_digest(str(path), str(memory)) == first
    kept = memory.read_text()
    memory.write_text(kept.replace(first, "0" * 64))
    assert file_digest(str(path), str(memory)) == "0" * 64  # it was not read again
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_bytes(b"two" * 1000)
    os.utime(path, ns=times)  # same size, same time, another content
    second = hashlib.sha256(b"two" * 1000).hexdigest()
    assert file_digest(str(path), str(memory)) == second
    memory.write_text("[noise")
    assert file_digest(str(path), str(memory)) == second
    assert file_digest(str(path), str(tmp_path / "no" / "folder")) == second

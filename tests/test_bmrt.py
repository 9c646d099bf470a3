"""The simulated runtime: nets, slots, layouts, sharing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulation import Bench
from simulation import adapter
from simulation import bench
from simulation import compiled

from harness.probes.loader import bf16
from harness.simulator.bm1688 import bmrt
from harness.simulator.bm1688.device import Device
from harness.simulator.decoder import LINEARS
from harness.simulator.precision import Bf16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("model"))


def slot(board: Bench, text: str) -> bmrt.Memory:
    (name,) = (n for n in board.runtime.coefficients("block_0") if text in n)
    return board.runtime.coefficients("block_0")[name]


class TestNets:
    def test_shapes_and_dtypes(self, model: Path) -> None:
        with bench(model) as board:
            names = board.runtime.names()
            assert names[:2] == ["embedding", "embedding_cache"]
            assert names[2:4] == ["block_0", "block_cache_0"]
            assert names[-2:] == ["lm_head", "greedy_head"]
            assert len(names) == 12
            prefill = board.runtime.net("block_3")
            assert [t.shape for t in prefill.inputs] == [
                (1, 96, 128),
                (3, 96),
                (1, 1, 96, 96),
            ]
            decode = board.runtime.net("block_cache_3")
            assert [(t.dtype, t.shape) for t in decode.inputs] == [
                ("bf16", (1, 1, 128)),
                ("i32", (3, 1)),
                ("bf16", (1, 1, 1, 161)),
                ("bf16", (1, 160, 1, 64)),
                ("bf16", (1, 160, 1, 64)),
            ]
            assert [t.shape for t in decode.outputs] == [
                (1, 1, 128),
                (1, 1, 1, 64),
                (1, 1, 1, 64),
            ]
            head = board.runtime.net("lm_head")
            assert head.outputs[0][1:] == ("f32", (1, 512))

    def test_outputs_are_bf16(self, model: Path) -> None:
        with bench(model) as board:
            states, k, v = board.runtime.launch(
                "block_0",
                [np.full((1, 96, 128), 0.1, np.float32), *board.program.inputs_of(20)],
            )
        for array in (states, k, v):
            assert array.dtype == np.float32
            assert not (array.view(np.uint32) & 0xFFFF).any()

    def test_inputs_are_left_alone(self, model: Path) -> None:
        with bench(model) as board:
            x = np.full((1, 96, 128), 0.1, np.float32)
            x.flags.writeable = False
            board.runtime.launch("block_0", [x, *board.program.inputs_of(20)])

    def test_greedy_head_takes_the_largest(self, model: Path) -> None:
        logits = np.zeros((1, 512), np.float32)
        logits[0, 77] = 1
        with bench(model) as board:
            (token,) = board.runtime.launch("greedy_head", [logits])
        assert token.dtype == np.int32 and token.tolist() == [[77]]

    @pytest.mark.parametrize(
        ("net", "inputs", "text"),
        [
            ("block_9", [], "no such net"),
            ("block_0", [], "3 inputs, 0 given"),
            ("lm_head", [np.zeros((1, 64), np.float32)], "states is"),
            ("embedding_cache", [np.zeros((1, 1), np.float32)], "not integer"),
            ("lm_head", [np.zeros((1, 128), np.int32)], "not floating"),
            ("embedding_cache", [np.full((1, 1), 512)], "vocabulary"),
        ],
    )
    def test_unfit_launch(
        self, model: Path, net: str, inputs: list[np.ndarray], text: str
    ) -> None:
        with bench(model) as board:
            with pytest.raises(bmrt.BmrtError, match=text):
                board.runtime.launch(net, inputs)

    def test_facts_for_the_probe(self, model: Path) -> None:
        with bench(model) as board:
            facts = board.runtime.model
            assert facts["reserved_rank"] == "32"
            assert facts["quantize"] == "bf16"
            assert board.runtime.versions["chip"] == "bm1688"
            memory = board.runtime.memory()
            assert 0 < memory["used"] < memory["total"]

    def test_prints_as_the_vendor_does(
        self, model: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with bench(model):
            assert capfd.readouterr().out


class TestLoad:
    @pytest.mark.parametrize("keep", [0, 10, 5_000, 1_000_000])
    def test_cut_file(self, model: Path, tmp_path: Path, keep: int) -> None:
        cut = tmp_path / "cut"
        cut.write_bytes(model.read_bytes()[:keep])
        with pytest.raises(bmrt.BmrtError):
            bmrt.Runtime().load(str(cut))

    def test_missing_file_and_second_load(self, model: Path) -> None:
        runtime = bmrt.Runtime()
        with pytest.raises(bmrt.BmrtError):
            runtime.load("/nowhere")
        runtime.load(str(model))
        with pytest.raises(bmrt.BmrtError, match="already"):
            runtime.load(str(model))
        runtime.close()
        with pytest.raises(bmrt.BmrtError, match="no model"):
            runtime.names()

    def test_no_such_device(self) -> None:
        with pytest.raises(bmrt.BmrtError):
            bmrt.Runtime(1)


class TestSlots:
    def test_one_pair_for_every_linear(self, model: Path) -> None:
        with bench(model) as board:
            for i in range(4):
                names = {
                    n
                    for n in board.runtime.coefficients(f"block_{i}")
                    if n.startswith("lora.")
                }
                assert names == {
                    f"lora.32.0.model.language_model.layers.{i}.{m}.lora_{f}.weight"
                    for m in LINEARS
                    for f in "AB"
                }
            assert board.runtime.coefficients("greedy_head") == {}

    def test_size_is_rounded_up_to_pages(self, model: Path) -> None:
        with bench(model) as board:
            assert slot(board, "k_proj.lora_B").size == 4096
            assert slot(board, "up_proj.lora_B").size == 16384

    def test_odd_rank_is_padded_to_a_page(self, tmp_path: Path) -> None:
        with bench(compiled(tmp_path, reserved_rank=20)) as board:
            assert slot(board, "k_proj.lora_B").size == 4096
            assert slot(board, "q_proj.lora_A").size == 8192

    def test_prefill_and_decode_share_an_address(self, model: Path) -> None:
        with bench(model) as board:
            runtime = board.runtime
            assert runtime.coefficients("block_2") == runtime.coefficients(
                "block_cache_2"
            )
            addresses = [s["address"] for s in board.slots.slots()]
            assert len(set(addresses)) == 4 * 7 * 2

    def test_rank_0_is_a_model_without(self, tmp_path: Path) -> None:
        with bench(compiled(tmp_path, reserved_rank=0)) as board:
            assert board.slots.slots() == []
            assert np.isfinite(board.score()).all()

    def test_zero_at_start_and_reading_back(self, model: Path) -> None:
        with bench(model) as board:
            memory = slot(board, "q_proj.lora_A")
            assert not board.runtime.read(memory, memory.size).any()
            board.runtime.write(memory, np.arange(4, dtype=np.uint16), offset=2)
            assert board.runtime.read(memory, 10).tolist() == [
                *(0, 0, 0, 0, 1, 0, 2, 0, 3, 0)
            ]
            board.runtime.zero(memory)
            assert not board.runtime.read(memory, memory.size).any()

    def test_bounds(self, model: Path) -> None:
        with bench(model) as board:
            memory = slot(board, "q_proj.lora_A")
            for call in (
                lambda: board.runtime.write(memory, bytes(memory.size + 1)),
                lambda: board.runtime.write(memory, b"x", offset=memory.size),
                lambda: board.runtime.write(memory, b"x", offset=-1),
                lambda: board.runtime.read(memory, memory.size + 1),
                lambda: board.runtime.zero(bmrt.Memory(4, 4096)),
            ):
                with pytest.raises(bmrt.BmrtError):
                    call()

    def test_layout(self, model: Path) -> None:
        """Row r of A meets the input, row r of B the output: y += (x A^T) B."""
        with bench(model) as board:
            runtime = board.runtime
            x = runtime.launch("embedding", [np.full((1, 96), 50, np.int32)])[0]
            inputs = [x, *board.program.inputs_of(96)]
            before = runtime.launch("block_0", inputs)[2]
            a = np.zeros((32, 128), np.float32)
            b = np.zeros((32, 64), np.float32)
            a[5, 17] = 1
            b[5, 40] = 2
            runtime.write(slot(board, "v_proj.lora_A"), bf16(a))
            runtime.write(slot(board, "v_proj.lora_B"), bf16(b))
            after = runtime.launch("block_0", inputs)[2]
            piece = runtime.coefficients("block_0")
            weight = next(m for n, m in piece.items() if "input_layernorm" in n)
            norm = runtime.read(weight, 256).view(np.uint16)[17].astype(np.uint32)
            rms = np.sqrt((x[0, 0] ** 2).mean() + 1e-6)
            gain = 2 * x[0, 0, 17] / rms * (norm << 16).view(np.float32)
        change = after - before
        assert np.nonzero(change.any((0, 1, 2)))[0].tolist() == [40]
        assert change[0, 0, 0, 40] == pytest.approx(gain, rel=0.02)

    def test_runtimes_of_one_file_share(self, model: Path) -> None:
        with bench(model) as first, bench(model) as second:
            memory = slot(first, "q_proj.lora_A")
            first.runtime.write(memory, b"\x01\x02")
            assert second.runtime.read(memory, 2).tolist() == [1, 2]
            first.runtime.close()
            assert second.runtime.read(memory, 2).tolist() == [1, 2]
        with bench(model) as third:
            assert not third.runtime.read(memory, 2).any()


class TestAdapter:
    def test_zero_slots_are_the_base_bit_for_bit(
        self, model: Path, tmp_path: Path
    ) -> None:
        with bench(model) as board:
            before = [board.score("prefill"), board.score("decode")]
            board.loader.load(str(adapter(tmp_path / "a")))
            assert not np.array_equal(board.score(), before[0])
            board.loader.clear()
            after = [board.score("prefill"), board.score("decode")]
        assert all(map(np.array_equal, before, after))

    def test_skipping_zero_branches_changes_no_bit(
        self, model: Path, tmp_path: Path
    ) -> None:
        """Slots with a -0.0 are computed with in full, and equal the skipped."""
        with bench(model) as board:
            before = [board.score("prefill"), board.score("decode")]
            for s in board.slots.slots():
                board.slots.write(s, np.array([0x8000], np.uint16))
            after = [board.score("prefill"), board.score("decode")]
        assert [a.tobytes() for a in before] == [a.tobytes() for a in after]

    def test_a_alone_is_the_base(self, model: Path, tmp_path: Path) -> None:
        with bench(model) as board:
            before = board.score()
            board.loader.load(str(adapter(tmp_path / "a")))
            for s in board.slots.slots():
                if s["factor"] == "B":
                    board.slots.zero(s)
            assert np.array_equal(board.score(), before)

    @pytest.mark.parametrize("factor", ["A", "B"])
    def test_one_nan_spoils_the_logits(self, model: Path, factor: str) -> None:
        with bench(model) as board:
            memory = slot(board, f"down_proj.lora_{factor}")
            board.runtime.write(memory, np.array([0x7FC0], np.uint16))
            assert not np.isfinite(board.score()).all()
            board.runtime.zero(memory)
            assert np.isfinite(board.score()).all()

    def test_infinite_states_meet_zero_slots(self, model: Path) -> None:
        """0 * Inf is NaN on a device, also where the slot is all zero."""
        states = np.zeros((1, 96, 128), np.float32)
        states[0, 0, 0] = np.inf
        with bench(model) as board:
            out, _, _ = board.runtime.launch(
                "block_0", [states, *board.program.inputs_of(96)]
            )
        assert np.isnan(out[0, 0]).all()

    def test_base_weights_are_memory_too(self, model: Path) -> None:
        with bench(model) as board:
            before = board.score()
            pieces = board.runtime.coefficients("block_1")
            name = "model.language_model.layers.1.self_attn.q_proj.weight"
            kept = board.runtime.read(pieces[name], pieces[name].size)
            board.runtime.zero(pieces[name])
            assert not np.array_equal(board.score(), before)
            board.runtime.write(pieces[name], kept)
            assert np.array_equal(board.score(), before)


def test_branch_seam_is_the_branch() -> None:
    random = np.random.default_rng(0)
    x, a, b = (
        Bf16().round(random.normal(size=s).astype(np.float32))
        for s in ((3, 8), (4, 8), (4, 5))
    )
    out = Device(Bf16()).branch(x, a, b, ("prefill", 0, "q"))  # type: ignore[arg-type]
    assert out is not None and np.abs(out - x @ a.T @ b).max() < 0.1
    assert not (out.view(np.uint32) & 0xFFFF).any()

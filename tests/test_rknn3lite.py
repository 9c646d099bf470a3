"""The stand-in of the vendor's package, call by call, as its scripts use it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import old_python
import pytest
from lite_board import ADAPTERS
from lite_board import FIXTURES
from lite_board import LONG
from lite_board import PROMPT
from lite_board import Board
from lite_board import bundled
from lite_board import command

from harness.simulator.board import ROOT
from harness.simulator.farm import prepare
from harness.simulator.rk1828 import api
from harness.simulator.rk1828 import types


NAMES = ("r8-all", "r4-qv", "r16-rslora")
Query = types.RKNN3QueryCmd
NORMAL, FINISH, STOP, MOST, ERROR = 0, 2, 3, 4, 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model in `board`, and `three.lora_weight`."""
    folder = tmp_path_factory.mktemp("made")
    command("convert", FIXTURES / "base", folder / "model")
    (folder / "model" / "board").rename(folder / "board")
    bundled(folder / "three.lora_weight", {n: ADAPTERS / n for n in NAMES})
    return folder


@pytest.fixture
def board(made: Path) -> Iterator[Board]:
    board = Board(made / "board")
    yield board
    assert board.lite.release() == 0


@pytest.fixture
def bundle(made: Path, board: Board) -> Path:
    """The bundle, taken in."""
    path = made / "three.lora_weight"
    assert board.lite.init_lora(str(path)) == 0
    return path


class TestRecords:
    @pytest.mark.parametrize(
        ("record", "size"),
        [
            ("RKNN3Lora", 260),
            ("RKNN3SamplingParam", 24),
            ("RKNN3VocabInfo", 596),
            ("RKNN3LLMParam", 760),
            ("RKLLMResult", 16),
            ("RKLLMRunState", 88),
            ("RKLLMCallback", 128),
            ("RKNN3LLMConfig", 408),
            ("RKNN3DevMemInfo", 2072),
            ("RKNN3KVCacheLenGroupInfo", 144),
            ("RKNN3KVCachePolicyParam", 112),
            ("RKNN3SDKVersion", 512),
        ],
    )
    def test_sizes(self, record: str, size: int) -> None:
        assert ctypes.sizeof(getattr(types, record)) == size

    @pytest.mark.parametrize(
        ("record", "field", "offset"),
        [
            ("RKNN3Lora", "scale", 256),
            ("RKNN3LLMParam", "sampling_param", 12),
            ("RKNN3LLMParam", "vocab_info", 36),
            ("RKLLMRunState", "input_tokens", 56),
            ("RKLLMRunState", "kvcache_policy", 72),
            ("RKLLMRunState", "n_loras_enabled", 76),
            ("RKLLMRunState", "loras_enabled", 80),
            ("RKLLMCallback", "output_callback", 64),
            ("RKLLMCallback", "input_callback", 96),
            ("RKNN3DevMemInfo", "sys_total", 8),
            ("RKNN3DevMemInfo", "node_mem_info", 24),
        ],
    )
    def test_offsets(self, record: str, field: str, offset: int) -> None:
        assert getattr(getattr(types, record), field).offset == offset


class TestStart:
    def test_what_it_says_of_itself(self, board: Board) -> None:
        lite = board.lite
        version = lite.rknn3_query(Query.RKNN3_QUERY_SDK_VERSION)
        assert version.api_version == version.drv_version == b"1.1.0"
        assert "1.1.0" in lite.get_sdk_version()
        assert len(lite.get_devices_id()) == 1
        config = lite.rknn3_query(Query.RKNN3_QUERY_LLM_CONFIG)
        assert (config.vocab_size, config.embedding_dim) == (512, 128)
        assert (config.max_ctx_len, config.kvcache_residual_depth) == (320, 32)
        assert config.kvcache_dtype == 1 and config.kvcache_group_size == 32
        assert lite.rknn3_query(Query.RKNN3_QUERY_CORE_NUMBER).value == 8
        sizes = [
            lite.rknn3_query(Query.RKNN3_QUERY_KVCACHE_LEN_GROUP_INFO, index=core)
            for core in (0, 7)
        ]
        assert [s.core_id for s in sizes] == [0, 7]
        assert sizes[0].n_groups == 2
        assert 0 < sizes[0].kvcache_sizes[0] < sizes[0].kvcache_sizes[1]

    @pytest.mark.parametrize("cmd", [3, 99, -1, "LORA"])
    def test_unknown_query(self, board: Board, cmd: Any) -> None:
        assert board.lite.rknn3_query(cmd) is None

    def test_nothing_before_its_turn(self, made: Path) -> None:
        lite = api.RKNN3Lite(llm_mode=True)
        lora = types.RKNN3Lora(b"r8-all", 1)
        assert lite.init_runtime(target="rk1828") == -1
        for status in (
            lite.init_llm_session([{}], types.RKLLMCallback()),
            lite.init_lora(str(made / "three.lora_weight")),
            lite.load_lora(lora),
            lite.enable_lora(lora),
            lite.release(session_index=0),
            lite.profile_mem(),
        ):
            assert status == -1
        assert lite.rknn3_query(Query.RKNN3_QUERY_SDK_VERSION) is None
        assert lite.get_sdk_version() is None
        assert lite.session_query_state() is None
        assert lite.query_lora() == (None, 0)
        assert lite.session_run(prompt="x") == (-1, None)

    def test_bad_files(self, made: Path, tmp_path: Path) -> None:
        lite = api.RKNN3Lite(llm_mode=True)
        graph, weight = (str(made / "board" / f"model.{e}") for e in ("rknn", "weight"))
        cut = tmp_path / "cut"
        cut.write_bytes(Path(weight).read_bytes()[:5000])
        for pair in (("/nowhere", weight), (weight, graph), (graph, str(cut))):
            assert lite.load_rknn(*pair) == -1
        assert lite.load_rknn(graph, weight) == 0

    @pytest.mark.parametrize(
        "options",
        [
            {"target": "rk3588"},
            {"device_id": "another"},
            {"decrypt_key_path": "key"},
            {"llm_embed_path": "/nowhere"},
            {"llm_args": [{"colour": 1}]},
        ],
    )
    def test_bad_start_then_a_good_one(
        self, board: Board, options: dict[str, Any]
    ) -> None:
        assert board.start() == -1  # it runs already
        assert board.lite.release() == 0
        assert board.load() == 0
        assert board.start(**options) == -1
        assert board.start() == 0 and board.open(0) == 0
        assert board.run() == 0

    def test_session_of_the_start(self, board: Board) -> None:
        board.lite.release()
        board.load()
        arguments = {"max_context_len": 192, "max_new_tokens": 2}
        callback = board.talks[0].record
        assert board.start(llm_args=[arguments], llm_callback=callback) == 0
        assert board.run(max_new_tokens=None) == 0
        assert len(board.talks[0].rows) == 2

    def test_prints_as_the_vendor_does(
        self, board: Board, capfd: pytest.CaptureFixture[str]
    ) -> None:
        board.lite.profile_mem()
        board.lite.load_lora(types.RKNN3Lora(b"none", 1))
        out, errors = capfd.readouterr()
        assert out.count("node ") == 8
        assert "load_lora" in errors and "'none'" in errors


class TestRun:
    def test_order_of_callbacks(self, board: Board) -> None:
        assert board.run(max_new_tokens=2) == 0
        talk = board.talks[0]
        first, second = (int(row.argmax()) for row in talk.rows)
        assert talk.heard == [
            "tokenizer",
            "output 1",
            "sampling b'logits'",
            f"result {NORMAL} [{first}]",
            "output 2",
            "sampling b'logits'",
            f"result {NORMAL} [{second}]",
            f"result {MOST} []",
        ]

    def test_embed_callback_comes_after_the_tokenizer(self, board: Board) -> None:
        from_file = board.score()
        talk = board.talks[0]
        talk.record.embed_callback = api.LLMGetEmbedCallback(talk.embed)
        assert board.lite.release(session_index=0) == 0
        assert board.open(0) == 0
        assert not np.array_equal(board.score(), from_file)
        assert talk.heard[:3] == ["tokenizer", "embed", "output 1"]
        assert talk.heard.count("embed") == 4  # the prompt, three tokens

    def test_chosen_token_is_the_next_input(self, board: Board) -> None:
        """What is fed by decode step or by prefill makes the same row, nearly."""
        decoded = board.score(PROMPT, [70, 71, 72])
        for t, fed in enumerate(([], [70], [70, 71])):
            row = board.score([*PROMPT, *fed], [0])[0]
            error = np.linalg.norm(row - decoded[t]) / np.linalg.norm(row)
            assert error < 0.01
        other = board.score(PROMPT, [99, 71, 72])
        assert np.array_equal(other[0], decoded[0])
        assert not np.array_equal(other[1], decoded[1])

    def test_counts(self, board: Board) -> None:
        board.talks[0].tokens = PROMPT
        status, told = board.lite.session_run(prompt="x", max_new_tokens=5)
        assert status == 0 and told is not None
        assert told[:2] == [4, 20] and told[2] <= told[3]
        state = board.lite.session_query_state()
        assert state.n_max_tokens == 320 and state.n_total_tokens == 24
        assert (state.n_input_tokens, state.n_output_tokens) == (20, 5)
        assert state.input_tokens[:20] == PROMPT
        assert board.run(keep_history=1) == 0
        state = board.lite.session_query_state()
        assert (state.n_reuse_tokens, state.n_total_tokens) == (24, 44)

    def test_template_goes_around_the_prompt(self, board: Board) -> None:
        talk = board.talks[0]
        talk.tokens = PROMPT
        assert board.lite.set_chat_template("be brief ", "<", ">") == 0
        for keep in (0, 1):
            board.lite.session_run(prompt="why", max_new_tokens=1, keep_history=keep)
        assert talk.texts == [b"be brief <why>", b"<why>"]
        board.lite.release(session_index=0)
        callback = talk.record
        assert board.lite.init_llm_session([{}], callback) == 0
        board.lite.session_run(prompt="why", max_new_tokens=1)
        assert b"<|im_start|>user\nwhy<|im_end|>" in talk.texts[-1]

    def test_ends_at_an_end_of_text(self, board: Board) -> None:
        talk = board.talks[0]
        talk.choose = lambda row: 9
        assert board.open(1, special_eos_id=[7, 9], ignore_eos_token=False) == 0
        board.talks[1].choose = talk.choose
        for index, rows, ended in ((0, 6, MOST), (1, 1, FINISH)):
            assert board.run(index=index, max_new_tokens=6) == 0
            assert len(board.talks[index].rows) == rows
            assert board.talks[index].ended == [ended]
        param = types.RKNN3LLMParam()
        param.vocab_info.special_eos_id[0] = 9
        param.vocab_info.n_special_eos_id = 1
        param.vocab_info.ignore_eos_token = True
        assert board.lite.set_llm_param(param, session_index=1) == 0
        assert board.run(index=1, max_new_tokens=6) == 0
        assert len(board.talks[1].rows) == 6

    def test_stop(self, board: Board) -> None:
        talk = board.talks[0]
        talk.during = board.lite.session_stop
        assert board.run(max_new_tokens=100) == 0
        assert len(talk.rows) == 1 and talk.ended == [STOP]
        talk.during = None
        assert board.run(max_new_tokens=3) == 0
        assert len(talk.rows) == 3

    @pytest.mark.parametrize("option", ["prefill_only", "disable_sampling"])
    def test_prefill_only(self, board: Board, option: str) -> None:
        assert board.run(**{option: True}) == 0
        assert board.talks[0].rows == []
        assert board.lite.session_query_state().n_total_tokens == len(PROMPT)

    def test_context_length_is_mapped_with_a_word(
        self, made: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for wanted, granted, warned in (
            (192, 192, False),
            (200, 192, True),
            (4096, 320, True),
            (0, 320, False),
        ):
            board = Board(made / "board", context=wanted)
            assert board.lite.session_query_state().n_max_tokens == granted
            assert ("W: no context" in capfd.readouterr().out) is warned

    def test_the_end_of_the_context(self, board: Board) -> None:
        prompt = [5] * 315
        assert board.run(prompt, max_new_tokens=50) == 0
        assert len(board.talks[0].rows) == 6  # five more inputs fit
        assert board.talks[0].ended == [MOST]
        for tokens, keep in (([5] * 321, 0), ([5], 1)):
            assert board.run(tokens, keep_history=keep) == -1
        assert board.run() == 0

    def test_keep_history(self, board: Board) -> None:
        alone = board.score()
        board.score(LONG)
        assert np.array_equal(board.score(), alone)
        board.score(LONG)
        kept = board.score(keep_history=1)
        assert not np.array_equal(kept, alone)
        board.score(LONG)
        assert board.lite.clear_kvcache() == 0
        assert np.array_equal(board.score(keep_history=1), alone)

    @pytest.mark.parametrize(
        "named",
        [
            {"tokens": PROMPT},
            {"prompt": None},
            {"embeds": np.zeros(3)},
            {"prompt": "x", "inputs": [1]},
            {"prompt": "x", "max_new_tokens": 0},
            {"prompt": "x", "session_index": 3},
            {"prompt": 7},
        ],
    )
    def test_inputs_that_are_refused(self, board: Board, named: dict[str, Any]) -> None:
        board.talks[0].tokens = PROMPT
        assert board.lite.session_run(**named) == (-1, None)
        assert board.run() == 0


def _raise(*_: Any) -> int:
    raise ValueError("a callback of the caller's")


class TestFailingCallbacks:
    @pytest.mark.parametrize(
        "answer", [lambda *_: -1, lambda *_: 512, lambda *_: 1 << 30, _raise]
    )
    def test_sampling(
        self, board: Board, answer: Callable[..., int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Python tells of what ends at a pointer; here that is the point.
        monkeypatch.setattr("sys.unraisablehook", lambda told: None)
        before = board.score()
        talk = board.talks[0]
        talk.choose = answer
        status = board.run(max_new_tokens=3)
        if answer is _raise:
            # It then returns what lies in a register: an error, nearly always.
            assert status in (0, -1)
        else:
            assert status == -1
            assert len(talk.rows) == 1 and talk.ended == [ERROR]
        talk.choose = None
        assert np.array_equal(board.score(), before)

    @pytest.mark.parametrize("tokens", [[], [-1], [512], [3] * 400])
    def test_tokenizer(self, board: Board, tokens: list[int]) -> None:
        before = board.score()
        assert board.run(tokens) == -1
        assert np.array_equal(board.score(), before)

    def test_no_tokenizer(self, board: Board) -> None:
        empty = types.RKLLMCallback()
        assert board.lite.init_llm_session([{}], empty, 1) == 0
        assert board.lite.session_run(prompt="x", session_index=1) == (-1, None)

    @pytest.mark.parametrize(
        "name", ["result", "sampling", "tokenizer", "embed", "output"]
    )
    def test_one_that_raises_neither_hangs_nor_kills(
        self, board: Board, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.unraisablehook", lambda told: None)
        before = board.score()
        kinds = {n: k for n, k in types.RKLLMCallback._fields_}
        record = types.RKLLMCallback.from_buffer_copy(board.talks[0].record)
        faulty = kinds[f"{name}_callback"](_raise)
        setattr(record, f"{name}_callback", faulty)
        assert board.lite.init_llm_session([{}], record, 1) == 0
        board.talks[0].tokens = PROMPT
        run = board.lite.session_run(prompt="x", max_new_tokens=2, session_index=1)
        assert run[0] in (0, -1)
        assert np.array_equal(board.score(), before)

    def test_no_embedding_anywhere(self, board: Board) -> None:
        board.lite.release()
        board.load()
        assert board.start(llm_embed_path=None) == 0
        assert board.open(0) == 0
        assert board.run() == -1


class TestBusy:
    """While a run goes on, everything but a query and a stop is refused."""

    def test_calls_out_of_a_callback(self, board: Board, bundle: Path) -> None:
        board.use("r8-all")
        lora, other = board.adapter("r8-all"), board.adapter("r4-qv")
        before = board.score(continuation=[1, 2])
        lite, told = board.lite, []

        def during() -> None:
            told.append(
                [
                    lite.session_run(prompt="x")[0],
                    lite.load_lora(other),
                    lite.unload_lora(lora),
                    lite.enable_lora(lora),
                    lite.disable_lora(lora),
                    lite.clear_kvcache(),
                    lite.release(session_index=0),
                    lite.release(),
                ]
            )
            assert board.enabled() == {"r8-all": 1.0}

        board.talks[0].during = during
        assert np.array_equal(board.score(continuation=[1, 2]), before)
        assert told == [[-1] * 8] * 2
        board.talks[0].during = None
        assert lite.load_lora(other) == 0

    def test_a_second_thread(self, board: Board) -> None:
        assert board.open(1) == 0
        board.talks[1].tokens = PROMPT
        inside, done = threading.Event(), threading.Event()
        statuses = []

        def during() -> None:
            inside.set()
            assert done.wait(20)

        board.talks[0].during = during
        run = threading.Thread(target=lambda: statuses.append(board.run()))
        run.start()
        assert inside.wait(20)
        statuses.append(board.lite.session_run(prompt="x", session_index=1)[0])
        done.set()
        run.join(20)
        assert statuses == [-1, 0]
        assert board.run(index=1) == 0


class TestSessions:
    def test_five_and_no_sixth(self, board: Board) -> None:
        assert [board.open(i) for i in range(6)] == [-1, 0, 0, 0, 0, -1]
        assert board.lite.release(session_index=3) == 0
        assert board.lite.release(session_index=3) == -1
        assert board.open(7) == 0
        assert board.run(index=7) == board.run(index=0) == 0

    def test_memory_comes_back(self, board: Board, bundle: Path) -> None:
        before = board.free()
        assert len(before) == 8 and len(set(before)) == 8
        assert board.open(1) == 0
        taken = [b - f for b, f in zip(before, board.free(), strict=True)]
        assert min(taken) > 0 and len(set(taken)) == 1
        board.run(LONG, index=1, max_new_tokens=3)
        assert board.lite.release(session_index=1) == 0
        assert board.free() == before
        board.use("r8-all")
        assert max(board.free()) < max(before) and min(board.free()) < min(before)
        assert board.lite.unload_lora(board.adapter("r8-all")) == 0
        assert board.free() == before

    @pytest.mark.parametrize(
        "arguments",
        [
            {"logits_name": "logits"},  # bytes in version 1.1.0
            {"top_k": "one"},
            {"vocab_size": 511},
            {"temprature": 1.0},
            {"special_eos_id": list(range(65))},
        ],
    )
    def test_bad_arguments(self, board: Board, arguments: dict[str, Any]) -> None:
        before = board.free()
        assert board.open(1, **arguments) == -1
        assert board.free() == before
        assert board.open(1) == 0

    def test_conversations_stay_apart(self, board: Board) -> None:
        board.open(1)
        alone = board.score(LONG, range(80, 86))
        board.lite.clear_kvcache()
        first = board.score(LONG, range(80, 83))
        board.score(PROMPT, index=1)
        second = board.score([82], range(83, 86), keep_history=1)
        # The token after the first part goes through the prefill graph here.
        assert np.array_equal(first, alone[:3])
        assert np.linalg.norm(second - alone[3:]) / np.linalg.norm(second) < 0.01

    def test_kvcache_policies(self, board: Board) -> None:
        policy = types.RKNN3KVCachePolicy
        assert board.lite.set_kvcache_policy(policy.RKNN3_KVCACHE_POLICY_NORMAL) == 0
        assert board.lite.session_query_state().kvcache_policy == 2
        assert board.lite.set_kvcache_policy(17) == -1
        keep = types.RKNN3KVCacheClearPolicy.RKNN3_KVCACHE_KEEP_SYSTEM_PROMPT
        assert board.lite.clear_kvcache(keep) == -1


class TestAdapters:
    def test_what_a_bundle_offers(self, board: Board, bundle: Path) -> None:
        listed, n = board.lite.query_lora()
        assert [d.lora_name.decode() for d in listed[:n]] == list(NAMES)
        assert [d.scale for d in listed[:n]] == [1.0] * 3
        count = board.lite.rknn3_query(Query.RKNN3_QUERY_LORA_NUM)
        info = board.lite.rknn3_query(Query.RKNN3_QUERY_LORA_INFO)
        assert count.value == 3 and len(info) == 32
        assert info[2].lora_name == b"r16-rslora" and info[3].lora_name == b""

    def test_base_adapter_base(self, board: Board, bundle: Path) -> None:
        base = board.score()
        board.use("r8-all")
        adapted = board.score()
        assert np.linalg.norm(adapted - base) / np.linalg.norm(base) > 0.05
        assert board.enabled() == {"r8-all": 1.0}
        assert board.lite.disable_lora(board.adapter("r8-all")) == 0
        assert np.array_equal(board.score(), base) and board.enabled() == {}
        assert board.lite.enable_lora(board.adapter("r8-all")) == 0
        assert np.array_equal(board.score(), adapted)
        assert board.lite.unload_lora(board.adapter("r8-all")) == 0
        assert np.array_equal(board.score(), base) and board.enabled() == {}

    def test_scale_changes_without_a_disable(self, board: Board, bundle: Path) -> None:
        base = board.score()
        board.use("r8-all")
        full = board.score()
        rows = []
        for scale in (0.0, 0.5, -1.0, 1.0):
            assert board.lite.enable_lora(board.adapter("r8-all", scale)) == 0
            assert board.enabled() == {"r8-all": scale}
            rows.append(board.score())
        assert np.array_equal(rows[0], base) and np.array_equal(rows[3], full)
        assert len({row.tobytes() for row in rows}) == 4

    @pytest.mark.parametrize("change", ["enable", "scale", "disable", "unload"])
    def test_a_switch_drops_the_sessions_cache(
        self, board: Board, bundle: Path, change: str
    ) -> None:
        board.open(1)
        lora = board.adapter("r8-all")
        assert board.lite.load_lora(lora) == 0
        if change != "enable":
            assert board.lite.enable_lora(lora) == 0
        for index in (0, 1):
            board.score(LONG, index=index)
        lora.scale = 0.25
        call = {"scale": "enable"}.get(change, change) + "_lora"
        assert getattr(board.lite, call)(lora) == 0
        held = [board.lite.session_query_state(i).n_total_tokens for i in (0, 1)]
        assert held == [0, len(LONG) + 3]

    def test_sessions_have_their_own(self, board: Board, bundle: Path) -> None:
        board.open(1)
        board.open(2)
        base = board.score()
        board.use("r8-all", 1.0, 1)
        board.use("r4-qv", 0.5, 2)
        rows = [board.score(index=i) for i in (1, 2)]
        for index in (0, 2, 1, 0, 1):
            expected = base if index == 0 else rows[index - 1]
            assert np.array_equal(board.score(index=index), expected)
        reported = [board.enabled(i) for i in (0, 1, 2)]
        assert reported == [{}, {"r8-all": 1.0}, {"r4-qv": 0.5}]
        board.lite.release(session_index=1)
        board.open(1)
        assert np.array_equal(board.score(index=1), base)

    def test_context_level(self, board: Board, bundle: Path) -> None:
        board.open(1)
        base = board.score()
        board.use("r8-all", index=1)
        first = board.score(index=1)
        board.use("r4-qv", index=None)
        rows = [board.score(index=i) for i in (0, 1)]
        assert not np.array_equal(rows[0], base)
        assert np.array_equal(rows[1], first)
        assert [*board.enabled(0), *board.enabled(1)] == ["r4-qv", "r8-all"]
        assert board.lite.disable_lora(board.adapter("r8-all"), session_index=1) == 0
        assert np.array_equal(board.score(index=1), rows[0])
        off = board.lite.disable_lora(board.adapter("r4-qv"), session_index=None)
        assert off == 0
        assert all(np.array_equal(board.score(index=i), base) for i in (0, 1))

    def test_a_switch_of_the_context_drops_what_it_changes(
        self, board: Board, bundle: Path
    ) -> None:
        board.open(1)
        board.use("r8-all", index=1)
        for change in ("enable_lora", "disable_lora"):
            board.lite.load_lora(board.adapter("r4-qv"))
            for index in (0, 1):
                board.score(LONG, index=index)
            switch = getattr(board.lite, change)
            assert switch(board.adapter("r4-qv"), session_index=None) == 0
            held = [board.lite.session_query_state(i).n_total_tokens for i in (0, 1)]
            assert held == [0, len(LONG) + 3]

    def test_two_together_add_up(self, board: Board, bundle: Path) -> None:
        base = board.score()
        board.use("r8-all")
        one = board.score() - base
        board.lite.disable_lora(board.adapter("r8-all"))
        board.use("r4-qv")
        other = board.score() - base
        assert board.lite.enable_lora(board.adapter("r8-all")) == 0
        assert list(board.enabled()) == ["r4-qv", "r8-all"]
        both = board.score() - base
        # Not linear in the logits, so near and no more.
        error = np.linalg.norm(both - one - other) / np.linalg.norm(both)
        assert error < min(np.linalg.norm(both - x) for x in (one, other)) / (
            np.linalg.norm(both)
        )

    def test_from_memory_and_from_a_folder(
        self, made: Path, tmp_path: Path, board: Board, bundle: Path
    ) -> None:
        board.use("r8-all")
        expected = board.score()
        data = bundle.read_bytes()
        array = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        shutil.copy(bundle, tmp_path / "one.lora_weight")
        for given in (
            {"weight_data": data, "weight_size": len(data)},
            {"weight_data": bytearray(data), "weight_size": len(data)},
            {"weight_data": array, "weight_size": len(data)},
            {
                "weight_data": ctypes.cast(array, ctypes.c_void_p),
                "weight_size": len(data),
            },
            {"weight_data": ctypes.addressof(array), "weight_size": len(data)},
            {"lora_weight_path": str(tmp_path)},
        ):
            assert board.lite.init_lora(**given) == 0
            # The second bundle is in the place of the first: nothing is loaded.
            assert board.enabled() == {}
            board.use("r8-all")
            assert np.array_equal(board.score(), expected)

    def test_the_buffer_is_the_callers(self, board: Board, bundle: Path) -> None:
        data = bytearray(bundle.read_bytes())
        board.lite.init_lora(weight_data=data, weight_size=len(data))
        data[-100:] = bytes(100)
        assert board.lite.load_lora(board.adapter("r8-all")) == -1
        data[:] = bundle.read_bytes()
        assert board.lite.load_lora(board.adapter("r8-all")) == 0

    def test_32_adapters(self, board: Board, tmp_path: Path) -> None:
        many = {f"lora{i}_pattern0": ADAPTERS / "r4-qv" for i in range(32)}
        path = bundled(tmp_path / "many.lora_weight", many)
        assert board.lite.init_lora(str(path)) == 0
        listed, n = board.lite.query_lora()
        assert n == 32
        assert {board.lite.load_lora(d) for d in listed} == {0}
        assert {board.lite.enable_lora(d) for d in listed} == {0}
        assert len(board.enabled()) == 32
        assert np.isfinite(board.score()).all()


class TestMisuse:
    @pytest.mark.parametrize(
        "call",
        [
            lambda b, p: b.lite.init_lora("/nowhere"),
            lambda b, p: b.lite.init_lora(),
            lambda b, p: b.lite.init_lora(str(p), weight_data=b"x", weight_size=1),
            lambda b, p: b.lite.init_lora(weight_data=b"abc", weight_size=3),
            lambda b, p: b.lite.init_lora(weight_data=b"abc", weight_size=99),
            lambda b, p: b.lite.init_lora(weight_data=p.read_bytes()),
            lambda b, p: b.lite.init_lora(weight_data=ctypes.c_void_p(), weight_size=9),
            lambda b, p: b.lite.init_lora(str(ADAPTERS)),
            lambda b, p: b.lite.load_lora(types.RKNN3Lora(b"none", 1)),
            lambda b, p: b.lite.load_lora(types.RKNN3Lora(b"\xff", 1)),
            lambda b, p: b.lite.load_lora(None),
            lambda b, p: b.lite.enable_lora(types.RKNN3Lora(b"none", 1)),
            lambda b, p: b.lite.enable_lora(b.adapter("r4-qv")),
            lambda b, p: b.lite.enable_lora(b.adapter("r8-all"), session_index=4),
            lambda b, p: b.lite.enable_lora(b.adapter("r8-all", float("nan"))),
            lambda b, p: b.lite.enable_lora(b.adapter("r8-all", float("inf"))),
            lambda b, p: b.lite.disable_lora(b.adapter("r4-qv")),
            lambda b, p: b.lite.disable_lora(b.adapter("r8-all"), session_index=None),
            lambda b, p: b.lite.unload_lora(b.adapter("r4-qv")),
            lambda b, p: b.lite.load_kvcache("/nowhere"),
            lambda b, p: b.lite.load_kvcache(str(p)),
            lambda b, p: b.lite.load_kvcache(kvcache_data=b"x", size=1),
            lambda b, p: b.lite.save_kvcache("/nowhere/file"),
            lambda b, p: b.lite.set_llm_param(None, session_index=9),
            lambda b, p: b.lite.clear_kvcache(session_index="zero"),
            lambda b, p: b.lite.session_stop(session_index=9),
        ],
    )
    def test_is_minus_one_and_changes_nothing(
        self, board: Board, bundle: Path, call: Callable[[Board, Path], int]
    ) -> None:
        board.use("r8-all", 0.5)
        before, free, held = board.score(), board.free(), board.score(LONG)
        assert call(board, bundle) == -1
        assert board.enabled() == {"r8-all": 0.5} and board.free() == free
        state = board.lite.session_query_state()
        assert state.n_total_tokens == len(LONG) + len(held) - 1
        assert np.array_equal(board.score(), before)

    @pytest.mark.parametrize("keep", [0, 16, 2_000, -1])
    def test_a_cut_bundle(
        self, board: Board, bundle: Path, tmp_path: Path, keep: int
    ) -> None:
        board.use("r8-all")
        before = board.score()
        cut = tmp_path / "cut.lora_weight"
        cut.write_bytes(bundle.read_bytes()[:keep])
        assert board.lite.init_lora(str(cut)) == -1
        assert np.array_equal(board.score(), before)

    def test_load_twice_is_once(self, board: Board, bundle: Path) -> None:
        board.use("r8-all")
        before, free = board.score(), board.free()
        assert board.lite.load_lora(board.adapter("r8-all")) == 0
        assert board.free() == free and np.array_equal(board.score(), before)
        assert board.lite.unload_lora(board.adapter("r8-all")) == 0
        assert board.lite.unload_lora(board.adapter("r8-all")) == -1


class TestCacheFiles:
    def test_a_conversation_goes_on_from_a_file(
        self, board: Board, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "cache")
        board.score(LONG)
        assert board.lite.save_kvcache(path) == 0
        expected = board.score(keep_history=1)
        board.open(1)
        assert board.lite.load_kvcache(path, session_index=1) == 0
        assert np.array_equal(board.score(index=1, keep_history=1), expected)
        data = Path(path).read_bytes()
        status = board.lite.load_kvcache(kvcache_data=data, size=len(data))
        assert status == 0
        assert np.array_equal(board.score(keep_history=1), expected)

    @pytest.mark.parametrize("where", [3, 40, 5_000, -1])
    def test_damaged(self, board: Board, tmp_path: Path, where: int) -> None:
        path = tmp_path / "cache"
        board.score(LONG)
        board.lite.save_kvcache(str(path))
        data = bytearray(path.read_bytes())
        data[where] ^= 1
        status = board.lite.load_kvcache(kvcache_data=bytes(data), size=len(data))
        assert status == -1
        assert board.lite.load_kvcache(str(path)) == 0

    def test_of_another_adapter_or_scale(
        self, board: Board, bundle: Path, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "cache")
        board.use("r8-all", 0.5)
        board.score()
        assert board.lite.save_kvcache(path) == 0
        statuses = []
        for scale in (1.0, 0.0, 0.5):
            board.lite.enable_lora(board.adapter("r8-all", scale))
            statuses.append(board.lite.load_kvcache(path))
        assert statuses == [-1, -1, 0]
        board.lite.disable_lora(board.adapter("r8-all"))
        assert board.lite.load_kvcache(path) == -1

    def test_empty_or_too_long(self, board: Board, tmp_path: Path) -> None:
        path = str(tmp_path / "cache")
        assert board.lite.save_kvcache(path) == -1
        assert not os.path.exists(path)
        board.run([5] * 250)
        board.lite.save_kvcache(path)
        board.open(1, max_context_len=192)
        assert board.lite.load_kvcache(path, session_index=1) == -1


@pytest.mark.parametrize("old", [False, True], ids=["this python", "python 3.8"])
def test_on_a_board(tmp_path: Path, made: Path, old: bool) -> None:
    """Under the vendor's own names, in the board's own Python."""
    python = old_python.with_numpy() if old else Path(sys.executable)
    if python is None:
        pytest.skip("no Python 3.8 with numpy here")
    prepare(tmp_path, "rk1828", str(python), None)
    script = f"""
from rknn3lite.api import RKNN3Lite, RKLLMCallback, LLMTokenizerCallback
from rknn3lite.api import RKNN3QueryCmd
from rknn3lite.api.rknn3_types import RKNN3LLMParam, LLMCallState
def tokens(userdata, text, n, out, room):
    out[0], out[1] = 40, 41
    return 2
tokenizer = LLMTokenizerCallback(tokens)
callback = RKLLMCallback(tokenizer_callback=tokenizer)
lite = RKNN3Lite(llm_mode=True)
folder = {str(made / "board")!r}
assert lite.load_rknn(folder + "/model.rknn", folder + "/model.weight") == 0
assert lite.init_runtime("rk1828", llm_embed_path=folder + "/embed.bin") == 0
assert lite.init_llm_session(llm_args=[{{}}], llm_callback=callback) == 0
assert lite.init_lora({str(made / "three.lora_weight")!r}) == 0
listed, n = lite.query_lora()
assert lite.load_lora(listed[0]) == lite.enable_lora(listed[0]) == 0
status, told = lite.session_run(prompt="x", max_new_tokens=40)
assert (status, told[:2]) == (0, [39, 2]), told
"""
    done = subprocess.run(
        [tmp_path / "bin" / "python3", "-c", script],
        env={ROOT: str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "[RKNN3]" in done.stdout and done.stderr == ""

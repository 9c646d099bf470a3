"""The RK1828's probe as a real process over the simulated package."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_board import ADAPTERS
from local_board import BASE
from local_board import REPOSITORY
from local_board import LocalBoard

from harness import probes
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.errors import UsageFault
from harness.probes.wire import read_frame
from harness.runtimes.patience import Patience
from harness.runtimes.remote import RemoteRuntime
from harness.runtimes.runtime import Phase
from harness.runtimes.session import RemoteSession
from harness.simulator.precision import Fp16
from harness.simulator.rk1828.adapters import Enabled
from harness.simulator.rk1828.bundlefile import BundleFile
from harness.simulator.rk1828.cache import Cache
from harness.simulator.rk1828.device import Device
from harness.simulator.rk1828.model import Model
from harness.simulator.rk1828.modelfile import ModelFile


PROMPT, CONTINUATION = list(range(5, 45)), list(range(60, 68))
LONG = [7 + i % 300 for i in range(150)]  # crosses a chunk of 128
SHORT = Patience(start=30, control=5, load=10, score=5, token=0.0)
CRASH, HANG, KILL = 101, 102, 103

# The vendor's class with moods: how many tokens a run is asked for decides.
MOODY = f"""
import os
import time
from harness.simulator.rk1828.api import *
from harness.simulator.rk1828 import api

class RKNN3Lite(api.RKNN3Lite):
    def session_run(self, **named):
        mood = named["max_new_tokens"]
        if mood == {CRASH}:
            print("about to fall over", flush=True)
            os.kill(os.getpid(), 11)
        if mood == {HANG}:
            time.sleep(3600)
        if mood == {KILL}:
            os.kill(os.getpid(), 9)
        return super().session_run(**named)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model and two bundles for it."""
    folder = tmp_path_factory.mktemp("made")
    tool = "harness.simulator.rk1828."
    names = [f"{n}={ADAPTERS / n}" for n in ("r8-all", "r4-qv", "r16-rslora")]
    for words in (
        ("convert", BASE, folder / "model"),
        ("bundle", BASE, folder / "first.lora_weight", *names),
        ("bundle", BASE, folder / "second.lora_weight", f"r8-all={ADAPTERS / 'r4-qv'}"),
    ):
        subprocess.run(
            [sys.executable, "-m", tool + words[0], *words[1:]],
            check=True,
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
        )
    whole = (folder / "first.lora_weight").read_bytes()
    (folder / "cut.lora_weight").write_bytes(whole[:-100])
    return folder


@pytest.fixture(scope="module")
def bundle(made: Path) -> str:
    return str(made / "first.lora_weight")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Iterator[LocalBoard]:
    root = tmp_path_factory.mktemp("boards") / "shared"
    board = LocalBoard(root, made / "model" / "board", MOODY, "rk1828")
    yield board
    board.host.close()


@pytest.fixture(scope="module")
def runtime(board: LocalBoard, bundle: str) -> Iterator[RemoteRuntime]:
    """A runtime that its tests leave alive, with two adapters loaded."""
    with board.runtime(patience=SHORT) as runtime:
        for name in ("r8-all", "r4-qv"):
            runtime.load(bundle, name)
        yield runtime


@pytest.fixture
def session(runtime: RemoteRuntime) -> Iterator[RemoteSession]:
    session = runtime.session()
    yield session
    session.close()


@pytest.fixture
def mortal(board: LocalBoard) -> Iterator[RemoteRuntime]:
    """A runtime that may die."""
    with board.runtime(patience=SHORT) as runtime:
        yield runtime


class Direct:
    """The same files, evaluated without package and probe."""

    def __init__(self, made: Path) -> None:
        folder = made / "model" / "board"
        self._file = ModelFile(str(folder / "model.rknn"), str(folder / "model.weight"))
        self._table = self._file.embedding(str(folder / "embed.bin"))
        self._device = Device(Fp16())
        self._model = Model(self._file, self._device)
        self._adapters = BundleFile.open(str(made / "first.lora_weight")).adapters

    def decode(
        self, prompt: list[int], continuation: list[int], scales: dict[str, float]
    ) -> np.ndarray:
        """Rows before each token of the continuation."""
        enabled = Enabled(self._device, 0, self._adapters, scales)
        cache = Cache(self._file, 320)
        rows = [self._model.prefill(prompt, self._states(prompt), cache, enabled)]
        for token in continuation[:-1]:
            states = self._states([token])
            rows.append(self._model.decode(token, states, cache, enabled))
        return np.concatenate(rows)

    def prefill(
        self, prompt: list[int], continuation: list[int], scales: dict[str, float]
    ) -> np.ndarray:
        """Each row out of a prefill of its own."""
        fed = [prompt + continuation[:i] for i in range(len(continuation))]
        return np.concatenate([self.decode(p, [0], scales) for p in fed])

    def _states(self, tokens: list[int]) -> np.ndarray:
        return self._table[np.array(tokens)].astype(np.float32)


@pytest.fixture(scope="module")
def direct(made: Path) -> Direct:
    return Direct(made)


def test_it_says_who_answers(runtime: RemoteRuntime) -> None:
    facts, able = runtime.identity.model, runtime.capabilities
    assert runtime.identity.platform == "rk1828"
    assert runtime.identity.versions["rknn3_api"].startswith("1.1.0")
    assert (facts["hidden"], facts["vocab"]) == ("128", "512")
    assert (facts["max_context"], able.max_context) == ("320", 320)
    assert (able.scope, able.phases) == ("session", ("decode", "prefill"))
    assert able.bundles and able.context_switch and able.cache_files
    memory = runtime.memory()
    assert 0 < memory["free_min"] <= memory["free"] / memory["nodes"] < memory["total"]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("scales", [{}, {"r8-all": 1.0}, {"r4-qv": 0.5, "r8-all": 2.0}])
def test_teacher_forcing_is_a_direct_evaluation(
    session: RemoteSession, direct: Direct, phase: Phase, scales: dict[str, float]
) -> None:
    session.activate(scales)
    assert session.reported() == scales
    for prompt in (PROMPT, LONG):
        got = session.score(prompt, CONTINUATION, phase, cache="new")
        expected = getattr(direct, phase)(prompt, CONTINUATION, scales)
        assert np.array_equal(got, expected)


def test_generate_is_the_greedy_path(session: RemoteSession) -> None:
    tokens = session.generate(PROMPT, 6, cache="cleared")
    rows = session.score(PROMPT, tokens, "decode", cache="new")
    assert rows.argmax(1).tolist() == tokens


def test_a_session_goes_on_where_it_was(session: RemoteSession) -> None:
    whole = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    session.score(PROMPT, CONTINUATION[:5], "decode", cache="new")
    rest = session.score(CONTINUATION[4:5], CONTINUATION[5:], "decode")
    # Not bit for bit: rows of the prompt's end age a step earlier.
    assert np.abs(rest - whole[5:]).max() < 0.05 * np.abs(whole).max()
    session.score(PROMPT, CONTINUATION[:5], "decode", cache="cleared")
    session.save_cache("middle")
    session.reset()
    session.load_cache("middle")
    again = session.score(CONTINUATION[4:5], CONTINUATION[5:], "decode")
    assert np.array_equal(again, rest)


def test_sessions_have_adapters_of_their_own(
    runtime: RemoteRuntime, session: RemoteSession
) -> None:
    base = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    other = runtime.session()
    other.activate({"r8-all": 1.0})
    changed = other.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.abs(changed - base).max() > 0.1
    again = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.array_equal(again, base)
    other.activate({})
    again = other.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.array_equal(again, base)
    other.close()


def test_the_context_level_reaches_new_sessions(
    runtime: RemoteRuntime, session: RemoteSession
) -> None:
    base = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    runtime.activate({"r4-qv": 1.0})
    assert session.reported() == {"r4-qv": 1.0}
    changed = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert not np.array_equal(changed, base)
    runtime.activate({})
    again = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.array_equal(again, base)


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_scale_that_is_no_number_is_the_runtimes_to_refuse(
    session: RemoteSession, scale: float
) -> None:
    with pytest.raises(RuntimeRefused, match="enable_lora returned -1") as refused:
        session.activate({"r8-all": scale})
    assert refused.value.vendor_code == "-1"
    assert session.reported() == {}


def test_it_refuses_what_cannot_be(
    runtime: RemoteRuntime, session: RemoteSession, made: Path, bundle: str
) -> None:
    for code, ask in (
        ("unknown-adapter", lambda: session.activate({"r16-rslora": 1.0})),
        ("unknown-adapter", lambda: runtime.load(bundle, "nobody")),
        ("second-bundle", lambda: runtime.load(str(made / "second.lora_weight"), "a")),
        ("too-long", lambda: session.score([1] * 320, [1, 2], "decode")),
        ("no-file", lambda: session.load_cache("nothing")),
        ("unsupported", runtime.slots),
    ):
        with pytest.raises(RuntimeRefused) as refused:
            ask()
        assert refused.value.vendor_code == code
    rows = session.score([1] * 319, [1, 2], "decode", cache="cleared")
    assert rows.shape == (2, 512)


def test_sessions_run_out(mortal: RemoteRuntime) -> None:
    sessions = [mortal.session() for _ in range(mortal.capabilities.max_sessions)]
    assert len(sessions) == 5
    with pytest.raises(RuntimeRefused, match="init_llm_session returned") as refused:
        mortal.session()
    assert refused.value.vendor_code == "-1"
    before = mortal.memory()["free_min"]
    sessions[1].close()
    assert mortal.memory()["free_min"] > before
    again = mortal.session()
    assert mortal.memory()["free_min"] == before
    assert again.score([1], [2], "decode").shape == (1, 512)


def test_a_bundle_that_was_cut(mortal: RemoteRuntime, made: Path, bundle: str) -> None:
    cut = str(made / "cut.lora_weight")
    with pytest.raises(RuntimeRefused, match="init_lora returned -1"):
        mortal.load(cut, "r8-all")
    with pytest.raises(RuntimeRefused, match="init_lora returned -1"):
        mortal.renew(cut)
    mortal.load(bundle, "r8-all")  # a refused one is not the start's


def test_another_bundle_may_come_where_none_is_loaded(
    mortal: RemoteRuntime, made: Path, bundle: str
) -> None:
    with pytest.raises(RuntimeRefused, match="unknown-adapter"):
        mortal.load(bundle, "nobody")
    mortal.load(str(made / "second.lora_weight"), "r8-all")
    mortal.unload("r8-all")
    mortal.load(bundle, "r4-qv")


def test_a_bundle_is_renewed(mortal: RemoteRuntime, made: Path, bundle: str) -> None:
    session, second = mortal.session(), str(made / "second.lora_weight")
    base = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    mortal.load(bundle, "r8-all")
    session.activate({"r8-all": 1.0})
    first = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    mortal.renew(second)
    assert session.reported() == {}
    again = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.array_equal(again, base)
    mortal.load(second, "r8-all")
    session.activate({"r8-all": 1.0})
    other = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert not np.array_equal(other, first)
    assert not np.array_equal(other, base)
    mortal.restart()
    mortal.load(bundle, "r4-qv")
    session = mortal.session()
    session.activate({"r4-qv": 1.0})
    last = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
    assert np.array_equal(last, other)  # what the second bundle calls r8-all


# A package whose calls have no index where no public program gives one.
PLAIN = (
    MOODY
    + """
    def set_chat_template(self, system_prompt, prompt_prefix, prompt_postfix):
        texts = system_prompt, prompt_prefix, prompt_postfix
        return super().set_chat_template(*texts)

    def set_kvcache_policy(self, policy, param=None):
        return super().set_kvcache_policy(policy)

    def session_query_state(self):
        return super().session_query_state()

    def save_kvcache(self, kvcache_path):
        return super().save_kvcache(kvcache_path)

    def load_kvcache(self, kvcache_path=None, kvcache_data=None, size=0):
        return super().load_kvcache(kvcache_path)
"""
)


def test_a_package_without_indices_has_one_session(tmp_path: Path, made: Path) -> None:
    board = LocalBoard(tmp_path / "plain", made / "model" / "board", PLAIN, "rk1828")
    with board.runtime(patience=SHORT) as runtime:
        session = runtime.session()
        rows = session.score(PROMPT, CONTINUATION, "decode")
        session.save_cache("kept")
        further = session.score([1], [2], "decode")
        session.load_cache("kept")
        assert np.array_equal(session.score([1], [2], "decode"), further)
        with pytest.raises(RuntimeRefused, match="set_chat_template") as refused:
            runtime.session()
        assert refused.value.vendor_code == "no-session-index"
        again = session.score(PROMPT, CONTINUATION, "decode", cache="cleared")
        assert np.array_equal(again, rows)
        runtime.restart()
        with pytest.raises(RuntimeRefused, match="no cache was kept as kept"):
            runtime.session().load_cache("kept")


@pytest.mark.parametrize(
    ("mood", "words"), [(CRASH, "signal 11; .*about to fall over"), (KILL, "signal 9")]
)
def test_a_crash_is_a_death(mortal: RemoteRuntime, mood: int, words: str) -> None:
    session = mortal.session()
    with pytest.raises(RuntimeDied, match=words):
        session.generate([1], mood)
    mortal.restart()
    assert mortal.session().score([1], [2], "decode").shape == (1, 512)


def test_a_hang_ends_in_time(board: LocalBoard) -> None:
    with board.runtime(patience=Patience(start=30, score=1.5, token=0.0)) as runtime:
        with pytest.raises(RuntimeHung, match=r"no reply in 1\.5 s"):
            runtime.session().generate([1], HANG)


def test_a_hanging_run_does_not_outlive_its_input(board: LocalBoard) -> None:
    process = subprocess.Popen(
        [
            *(str(board.root / "python3"), "-m", "probes.rk1828"),
            *("--model", str(board.model), "--workdir", str(board.root)),
        ],
        env={"PYTHONPATH": str(Path(probes.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    assert read_frame(process.stdout.read)[0]["hello"] == 1
    for request in (
        b'{"id":1,"op":"session"}',
        b'{"id":2,"op":"generate","session":1,"n":%d,"keep":false,"arrays":'
        b'[{"name":"prompt","dtype":"<i4","shape":[1]}]}' % HANG,
    ):
        process.stdin.write(len(request).to_bytes(4, "little") + request)
    process.stdin.write(bytes(4))
    process.stdin.close()
    assert process.wait(9) == 1


def test_what_keeps_it_from_starting_is_told(tmp_path: Path, made: Path) -> None:
    model = made / "model" / "board"
    older = MOODY + (
        "    def rknn3_query(self, cmd, index=0):\n"
        "        told = super().rknn3_query(cmd, index)\n"
        "        if cmd == RKNN3QueryCmd.RKNN3_QUERY_SDK_VERSION:\n"
        "            told.api_version = b'1.0.0'\n"
        "        return told\n"
    )
    other = "    def init_runtime(self, board):\n        return 0\n"
    lacking = "del LLMResultCallback\n"
    for name, folder, module, text in (
        ("version", model, older, r"says it is '1\.0\.0'"),
        ("module", model, None, "the vendor's module rknn3lite"),
        ("files", made / "model", MOODY, r"0 files \*\.rknn"),
        ("call", model, MOODY + other, r"init_runtime: TypeError: .*'target'"),
        ("name", model, MOODY + lacking, "AttributeError: .*LLMResultCallback"),
    ):
        board = LocalBoard(tmp_path / name, folder, module, "rk1828")
        with pytest.raises(UsageFault, match=text):
            board.runtime()
    other = tmp_path / "other-model"
    other.mkdir()
    for part in ("model.weight", "embed.bin"):
        (other / part).write_bytes((model / part).read_bytes())
    (other / "model.rknn").write_bytes((model / "model.rknn").read_bytes()[:-1])
    board = LocalBoard(tmp_path / "foreign", other, MOODY, "rk1828")
    with pytest.raises(RuntimeRefused, match="load_rknn returned -1"):
        board.runtime()

"""The probe as a real process over the simulated runtime, sound and in bad moods."""

from __future__ import annotations

import ast
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_board import ADAPTERS
from local_board import BUG
from local_board import CHATTER
from local_board import CRASH
from local_board import EXIT
from local_board import HANG
from local_board import REFUSE
from local_board import LocalBoard
from local_board import convert

from harness import probes
from harness.errors import Infrastructure
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.errors import UsageFault
from harness.probes.wire import read_frame
from harness.runtimes.patience import Patience
from harness.runtimes.remote import RemoteRuntime
from harness.runtimes.runtime import Cache
from harness.runtimes.session import RemoteSession


PROMPT, CONTINUATION = list(range(5, 25)), list(range(30, 42))
SHORT = Patience(start=30, control=5, load=10, score=1.5, token=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # float32, so that prefill and decode differ by the order of sums only
    return convert(tmp_path_factory.mktemp("model") / "model.bin", "f32")


@pytest.fixture(scope="module")
def board(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> Iterator[LocalBoard]:
    board = LocalBoard(tmp_path_factory.mktemp("boards") / "shared", model)
    yield board
    board.host.close()


@pytest.fixture(scope="module")
def runtime(board: LocalBoard) -> Iterator[RemoteRuntime]:
    """A runtime that its tests leave alive."""
    with board.runtime(patience=SHORT) as runtime:
        yield runtime


@pytest.fixture
def session(runtime: RemoteRuntime) -> Iterator[RemoteSession]:
    session = runtime.session()
    yield session
    session.activate({})
    session.close()


@pytest.fixture
def mortal(board: LocalBoard) -> Iterator[RemoteRuntime]:
    """A runtime that may die."""
    with board.runtime(patience=SHORT) as runtime:
        yield runtime


@pytest.fixture
def odd_board(tmp_path: Path, model: Path) -> Iterator[LocalBoard]:
    """A board whose files may be spoiled."""
    board = LocalBoard(tmp_path / "odd", model)
    yield board
    board.host.close()


def test_it_says_who_answers(runtime: RemoteRuntime, model: Path) -> None:
    facts = runtime.identity.model
    assert runtime.identity.platform == "bm1688"
    assert len(runtime.identity.probe) == len(facts["digest"]) == 64
    assert runtime.identity.versions["chip"] == "bm1688"
    assert (facts["layers"], facts["hidden"], facts["vocab"]) == ("4", "128", "512")
    assert facts["reserved_rank"] == "32"
    assert runtime.capabilities.scope == "process"
    assert runtime.capabilities.slots_readable
    assert not runtime.capabilities.runtime_scale
    slots = runtime.slots()
    assert len(slots) == 4 * 7 * 2 * 2
    assert {s.net for s in slots} == {
        f"{net}_{i}" for net in ("block", "block_cache") for i in range(4)
    }
    assert not runtime.read_slot(slots[0].name).any()
    assert runtime.read_slot(f"block_cache_0:{slots[0].name}").size == slots[0].size
    assert runtime.memory()["used"] > 0


def test_prefill_and_decode_are_one_model(session: RemoteSession) -> None:
    """Masks, positions and history are right: both graphs give the same rows."""
    prefill = session.score(PROMPT, CONTINUATION, "prefill")
    session.reset()
    decode = session.score(PROMPT, CONTINUATION, "decode")
    assert prefill.shape == decode.shape == (12, 512)
    assert np.abs(prefill).max() > 1
    assert np.abs(prefill - decode).max() < 1e-3
    session.reset()
    one = session.score(PROMPT[:1], CONTINUATION[:1], "prefill")
    assert one.shape == (1, 512)


def test_a_session_goes_on_where_it_was(session: RemoteSession) -> None:
    whole = session.score(PROMPT, CONTINUATION, "prefill")
    session.reset()
    # Row by row: after a score the session holds all but the last continuation token.
    first = session.score(PROMPT, CONTINUATION[:5], "prefill")
    rest = session.score(CONTINUATION[4:5], CONTINUATION[5:], "prefill")
    assert np.abs(np.concatenate([first, rest]) - whole).max() < 1e-3
    session.reset()
    assert np.array_equal(session.score(PROMPT, CONTINUATION, "prefill"), whole)


def test_sessions_have_caches_of_their_own(runtime: RemoteRuntime) -> None:
    one, other = runtime.session(), runtime.session()
    alone = one.score(PROMPT, CONTINUATION, "decode")
    one.reset()
    one.score(PROMPT, CONTINUATION[:5], "decode")
    other.score([9, 9, 9], [1, 2], "decode")
    rest = one.score(CONTINUATION[4:5], CONTINUATION[5:], "decode")
    assert np.array_equal(rest, alone[5:])
    one.close()
    other.close()


@pytest.mark.parametrize("cache", ["cleared", "new"])
def test_a_prompt_may_begin_a_conversation(
    session: RemoteSession, cache: Cache
) -> None:
    whole = session.score(PROMPT, CONTINUATION, "decode")
    rest = session.score(PROMPT, CONTINUATION, "decode")
    assert not np.array_equal(rest, whole)
    again = session.score(PROMPT, CONTINUATION, "decode", cache=cache)
    assert np.array_equal(again, whole)
    tokens = session.generate(PROMPT, 4, cache=cache)
    assert tokens[0] == whole[0].argmax()
    assert session.generate(PROMPT, 4, cache=cache) == tokens


def test_generate_is_the_greedy_path(session: RemoteSession) -> None:
    tokens = session.generate(PROMPT, 6)
    session.reset()
    rows = session.score(PROMPT, tokens, "decode")
    assert rows.argmax(1).tolist() == tokens


def test_an_adapter_comes_and_goes(
    runtime: RemoteRuntime, session: RemoteSession
) -> None:
    base = session.score(PROMPT, CONTINUATION, "prefill")
    runtime.load(str(ADAPTERS / "r8-all"), "mine")
    assert session.reported() == {}
    session.activate({"mine": 1.0})
    assert session.reported() == {"mine": 1.0}
    session.reset()
    loaded = session.score(PROMPT, CONTINUATION, "prefill")
    assert np.abs(loaded - base).max() > 0.1
    runtime.load(str(ADAPTERS / "r4-qv"), "mine")
    session.activate({"mine": 1.0})
    session.reset()
    assert not np.array_equal(session.score(PROMPT, CONTINUATION, "prefill"), loaded)
    session.activate({})
    assert session.reported() == {}
    session.reset()
    assert np.array_equal(session.score(PROMPT, CONTINUATION, "prefill"), base)
    runtime.unload("mine")
    with pytest.raises(RuntimeRefused, match="mine") as refused:
        session.activate({"mine": 1.0})
    assert refused.value.vendor_code == "unknown-adapter"


@pytest.mark.parametrize(
    ("code", "ask"),
    [
        ("unsupported-scale", lambda r, s: s.activate({"known": 2.0})),
        ("unsupported-scale", lambda r, s: s.activate({"known": math.nan})),
        ("too-many-adapters", lambda r, s: s.activate({"known": 1.0, "other": 1.0})),
        ("unsupported", lambda r, s: r.activate({"known": 1.0})),
        ("unsupported", lambda r, s: r.renew(str(ADAPTERS))),
        ("unsupported", lambda r, s: s.save_cache("a")),
        ("unsupported", lambda r, s: s.load_cache("a")),
        ("unknown-adapter", lambda r, s: s.activate({"nobody": 1.0})),
        ("unknown-adapter", lambda r, s: r.unload("nobody")),
        ("name", lambda r, s: r.load(str(ADAPTERS / "r8-all"), "../../etc")),
        ("name", lambda r, s: r.load(str(ADAPTERS / "r8-all"), ".hidden")),
        ("no-folder", lambda r, s: r.load("/nowhere", "a")),
        ("unknown-slot", lambda r, s: r.read_slot("lora.32.0.x.lora_A.weight")),
        ("too-long", lambda r, s: s.score([1] * 97, [1], "prefill")),
        ("too-long", lambda r, s: s.score([1] * 90, [1] * 8, "prefill")),
        ("too-long", lambda r, s: s.score([1] * 96, [1] * 66, "decode")),
        ("too-long", lambda r, s: s.generate([1] * 96, 66)),
        ("token", lambda r, s: s.score([512], [1], "prefill")),
        ("token", lambda r, s: s.score([-1], [1], "prefill")),
        ("token", lambda r, s: s.score([1], [512], "prefill")),
        ("request", lambda r, s: s.score([], [1], "prefill")),
        ("request", lambda r, s: s.generate([1], 0)),
        ("request", lambda r, s: s.score([1], [1], "sideways")),
        ("5", lambda r, s: s.score([REFUSE], [1], "prefill")),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    runtime: RemoteRuntime, session: RemoteSession, code: str, ask
) -> None:
    runtime.load(str(ADAPTERS / "r8-all"), "known")
    with pytest.raises(RuntimeRefused) as refused:
        ask(runtime, session)
    assert refused.value.vendor_code == code
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("[runtime-refused] bench, ")
    assert session.score(PROMPT, CONTINUATION, "prefill").shape == (12, 512)


def test_a_refused_decode_leaves_the_conversation_as_it_was(
    session: RemoteSession,
) -> None:
    whole = session.score(PROMPT, CONTINUATION, "decode")
    session.reset()
    session.score(PROMPT, CONTINUATION[:5], "decode")
    with pytest.raises(RuntimeRefused):
        session.score([CONTINUATION[4], REFUSE], [1, 2], "decode")
    rest = session.score(CONTINUATION[4:5], CONTINUATION[5:], "decode")
    assert np.array_equal(rest, whole[5:])


def test_full_lengths_fit(session: RemoteSession) -> None:
    assert session.score([1] * 96, [2] * 65, "decode").shape == (65, 512)
    with pytest.raises(RuntimeRefused, match="context has 160"):
        session.score([1], [1], "decode")
    session.reset()
    assert session.score([1] * 90, [2] * 7, "prefill").shape == (7, 512)


def test_sessions_are_bounded_and_can_be_closed(mortal: RemoteRuntime) -> None:
    sessions = [mortal.session() for _ in range(mortal.capabilities.max_sessions)]
    with pytest.raises(RuntimeRefused) as refused:
        mortal.session()
    assert refused.value.vendor_code == "too-many-sessions"
    sessions[0].close()
    sessions[0].close()
    mortal.session()
    with pytest.raises(RuntimeRefused):
        sessions[0].reset()


def test_prints_do_not_reach_the_stream(session: RemoteSession) -> None:
    for _ in range(5):
        session.reset()
        assert session.score([CHATTER, 5], [6, 7], "decode").shape == (2, 512)


def test_a_bug_of_ours_is_called_one(session: RemoteSession) -> None:
    with pytest.raises(Infrastructure, match="the probe failed: KeyError: 'ours'"):
        session.score([BUG], [1], "prefill")
    assert session.score([1], [1], "prefill").shape == (1, 512)


def test_a_crash_is_a_death_with_its_last_words(mortal: RemoteRuntime) -> None:
    session = mortal.session()
    with pytest.raises(RuntimeDied, match=r"signal 11; .*about to fall over"):
        session.score([CRASH], [1], "prefill")
    with pytest.raises(RuntimeDied, match="does not run any more"):
        session.reset()
    mortal.restart()
    with pytest.raises(RuntimeDied):
        session.reset()
    assert mortal.session().score([1], [1], "prefill").shape == (1, 512)


def test_an_exit_is_a_death(mortal: RemoteRuntime) -> None:
    with pytest.raises(RuntimeDied, match="exit status 7"):
        mortal.session().score([EXIT], [1], "prefill")


def test_a_hang_ends_in_time_and_a_restart_helps(mortal: RemoteRuntime) -> None:
    mortal.load(str(ADAPTERS / "r8-all"), "mine")
    session = mortal.session()
    session.activate({"mine": 1.0})
    begin = time.monotonic()
    with pytest.raises(RuntimeHung, match=r"no reply in 1\.5 s"):
        session.score([HANG], [1], "prefill")
    assert time.monotonic() - begin < 8
    mortal.restart()
    session = mortal.session()
    assert session.reported() == {}
    with pytest.raises(RuntimeRefused):
        session.activate({"mine": 1.0})


LOADERS = """
import os
import sys

class Ours(Exception):
    def __init__(self):
        super().__init__("several\\nlines")
        self.code = -7
        self.text = "several\\nlines"

class Broken:
    loaded = None
    def __init__(self, runtime):
        print("hello from the product")
    def load(self, folder):
        name = os.path.basename(folder)
        if name == "value": raise ValueError("no such thing")
        if name == "ours": raise Ours()
        if name == "exit": sys.exit(3)
        if name == "hard": os._exit(4)
        self.loaded = name
    def clear(self):
        raise OSError(5, "device lost")

class Never:
    def __init__(self, runtime):
        raise RuntimeError("not today")

class Child(__import__("probes.loader").loader.Loader):
    def scale(self, module, rank, config):
        return 0.0
"""


@pytest.fixture
def product(tmp_path: Path) -> str:
    path = tmp_path / "product.py"
    path.write_text(LOADERS)
    return str(path)


def test_a_products_loader_is_asked(board: LocalBoard, product: str) -> None:
    with board.runtime(f"{product}:Broken", SHORT) as runtime:
        session = runtime.session()
        for name in ("value", "ours", "exit", "hard", "fine"):
            runtime.load(str(ADAPTERS / "r8-all"), name)
        with pytest.raises(RuntimeRefused, match="no such thing") as refused:
            session.activate({"value": 1.0})
        assert refused.value.vendor_code == "ValueError"
        with pytest.raises(RuntimeRefused, match="several lines") as refused:
            session.activate({"ours": 1.0})
        assert refused.value.vendor_code == "-7"
        with pytest.raises(RuntimeRefused, match="device lost"):
            session.activate({})
        session.activate({"fine": 1.0})
        assert session.reported() == {"fine": 1.0}
        with pytest.raises(RuntimeDied, match="exit status 3"):
            session.activate({"exit": 1.0})
    with board.runtime(f"{product}:Broken", SHORT) as runtime:
        runtime.load(str(ADAPTERS / "r8-all"), "hard")
        with pytest.raises(RuntimeDied, match="exit status 4"):
            runtime.session().activate({"hard": 1.0})


def test_a_products_loader_may_build_on_ours(board: LocalBoard, product: str) -> None:
    with board.runtime(f"{product}:Child", SHORT) as runtime:
        session = runtime.session()
        base = session.score(PROMPT, CONTINUATION, "prefill")
        runtime.load(str(ADAPTERS / "r8-all"), "a")
        session.activate({"a": 1.0})
        session.reset()
        assert np.array_equal(session.score(PROMPT, CONTINUATION, "prefill"), base)
        assert runtime.read_slot(runtime.slots()[0].name).any()


def test_a_loader_as_a_module_of_the_board(board: LocalBoard) -> None:
    with board.runtime("probes.loader:Loader", SHORT) as runtime:
        assert runtime.session().reported() == {}


def test_what_keeps_it_from_starting_is_told(
    board: LocalBoard, product: str, tmp_path: Path, model: Path
) -> None:
    for loader, text in (
        (f"{product}:Nobody", "no class 'Nobody'"),
        (f"{tmp_path}/none.py:A", "no file"),
        ("no.such.module:A", "No module named 'no'"),
    ):
        with pytest.raises(UsageFault, match=text):
            board.runtime(loader)
    with pytest.raises(RuntimeRefused, match="not today"):
        board.runtime(f"{product}:Never")
    without = LocalBoard(tmp_path / "without", model, module=None)
    with pytest.raises(UsageFault, match="the vendor's module bmrt"):
        without.runtime()
    other = LocalBoard(tmp_path / "other", ADAPTERS / "r8-all" / "adapter_config.json")
    with pytest.raises(RuntimeRefused, match=r"adapter_config\.json"):
        other.runtime()
    nothing = LocalBoard(tmp_path / "nothing", tmp_path / "none.bmodel")
    with pytest.raises(RuntimeRefused, match=r"none\.bmodel"):
        nothing.runtime()


def test_a_python_that_cannot_run_it_is_named(odd_board: LocalBoard) -> None:
    python = odd_board.root / "python3"
    sound = python.read_text()
    # numpy is looked for in the same folders; this one is found first and is broken.
    (odd_board.root / "site" / "numpy.py").write_text("raise ImportError('no numpy')")
    with pytest.raises(Infrastructure, match=r"exit status 1; .*no numpy"):
        odd_board.runtime()
    odd_board.store.put_file(Path(__file__))  # the store does not need numpy
    python.write_text(sound.replace("exec ", "exit 127; exec ", 1))
    with pytest.raises(Infrastructure, match="exit status 127"):
        odd_board.runtime()


def test_silence_at_the_start_is_a_hang(odd_board: LocalBoard) -> None:
    (odd_board.root / "site" / "bmrt.py").write_text("import time; time.sleep(3600)")
    with pytest.raises(RuntimeHung):
        odd_board.runtime(patience=Patience(start=1.0))


def start(board: LocalBoard) -> subprocess.Popen[bytes]:
    """The probe by hand, its hello read."""
    process = subprocess.Popen(
        [
            *(str(board.root / "python3"), "-m", "probes.bm1688"),
            *("--model", str(board.model), "--workdir", str(board.root)),
        ],
        env={"PYTHONPATH": str(Path(probes.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    header, _ = read_frame(process.stdout.read)
    assert header["hello"] == 1
    return process


def test_it_ends_with_its_input(board: LocalBoard) -> None:
    process = start(board)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(3) == 0


def test_it_ends_when_its_input_is_noise(board: LocalBoard) -> None:
    process = start(board)
    assert process.stdin is not None
    process.stdin.write(b"\xff" * 100)
    process.stdin.flush()
    assert process.wait(3) == 1
    process.stdin.close()


def test_a_hanging_call_does_not_outlive_its_input(odd_board: LocalBoard) -> None:
    """A lost connection must not leave a hung program on the device."""
    (odd_board.root / "site" / "bmrt.py").write_text(
        "import time\n"
        "from harness.simulator.bm1688.bmrt import *\n"
        "from harness.simulator.bm1688 import bmrt\n"
        "class Runtime(bmrt.Runtime):\n"
        "    def memory(self):\n"
        "        time.sleep(3600)\n"
    )
    process = start(odd_board)
    assert process.stdin is not None
    request = b'{"id":1,"op":"memory","arrays":[]}'
    process.stdin.write(len(request).to_bytes(4, "little") + request)
    process.stdin.close()
    assert process.wait(9) == 1


def test_it_is_python_3_8() -> None:
    for file in Path(probes.__file__).parent.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))

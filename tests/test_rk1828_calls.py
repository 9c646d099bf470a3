"""The RK1828's probe over a scripted runtime: what it asks, and every no it gets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_lite import CONTEXT
from scripted_lite import HIDDEN
from scripted_lite import VOCAB
from scripted_lite import Script
from scripted_lite import ScriptedLite
from scripted_lite import logits

from harness.probes.rk1828 import Rk1828
from harness.probes.server import Refused
from harness.probes.server import Request


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    api, kinds = script.api()
    monkeypatch.setitem(sys.modules, "rknn3lite.api", api)
    monkeypatch.setitem(sys.modules, "rknn3lite.api.rknn3_types", kinds)
    return script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.rknn", "a.weight"):
        (folder / name).write_bytes(name.encode())
    rows = np.repeat(np.arange(VOCAB, dtype="<f2")[:, None], HIDDEN, axis=1)
    (folder / "embed.bin").write_bytes(rows.tobytes())
    (tmp_path / "b.lora_weight").write_bytes(b"adapters")
    (tmp_path / "c.lora_weight").write_bytes(b"others")
    return folder


class Asker:
    """A probe in this process, asked as over the wire."""

    def __init__(self, folder: Path) -> None:
        self.work = folder.parent
        self.board = Rk1828(str(folder), str(self.work))
        self.session = self("session")["session"]

    def __call__(self, op: str, **fields: Any) -> dict[str, Any]:
        arrays = {
            name: np.array(fields.pop(name), np.int32)
            for name in ("prompt", "continuation")
            if name in fields
        }
        told, out = self.board.handle(op, Request(fields, arrays))
        return {**told, **out}

    def activate(self, **scales: float | str) -> None:
        self("activate", session=self.session, adapters=scales)

    def load(self, name: str, bundle: str = "b.lora_weight") -> None:
        self("load", name=name, path=str(self.work / bundle))

    def score(
        self,
        prompt: list[int],
        continuation: list[int],
        phase: str = "decode",
        keep: bool = True,
    ) -> np.ndarray:
        fields = {"prompt": prompt, "continuation": continuation}
        told = self("score", session=self.session, phase=phase, keep=keep, **fields)
        rows: np.ndarray = told["logits"]
        return rows


@pytest.fixture
def ask(script: Script, folder: Path) -> Asker:
    asker = Asker(folder)
    script.calls.clear()
    return asker


def rows(tokens: list[int], first: int, effect: float = 0.0) -> np.ndarray:
    """Direct evaluation: the rows after `first` tokens and each further one."""
    out = [logits(tokens[:i], effect) for i in range(first, len(tokens))]
    return np.array(out, np.float32)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_teacher_forcing_is_direct_evaluation(ask: Asker, phase: str) -> None:
    prompt, continuation = [3, 1, 4, 1], [5, 9, 2, 6, 5]
    got = ask.score(prompt, continuation, phase, keep=False)
    assert got.dtype == np.float32
    assert np.array_equal(got, rows(prompt + continuation, 4))


def test_a_session_holds_all_but_the_last_token(ask: Asker) -> None:
    ask.score([3, 1], [4, 1, 5], keep=False)
    again = ask.score([1], [9, 2])
    assert np.array_equal(again, rows([3, 1, 4, 1, 1, 9, 2], 5))
    one = ask.score([7], [0], "prefill")
    assert np.array_equal(one, rows([3, 1, 4, 1, 1, 9, 7, 0], 7))
    ask.score([3, 1], [4, 1, 5], "prefill", keep=False)
    assert np.array_equal(ask.score([1], [9]), rows([3, 1, 4, 1, 1, 9], 5))


def test_a_new_conversation_needs_no_command(ask: Asker, script: Script) -> None:
    """What the command hides, a check of the new conversation has to see."""
    for phase in ("decode", "prefill"):
        got = ask.score([3, 1], [4, 1], phase, keep=False)
        assert np.array_equal(got, rows([3, 1, 4, 1], 2))
    assert script.names("clear_kvcache", "session_run") == [
        *("session_run", "session_run", "clear_kvcache", "session_run")
    ]
    ask("reset", session=ask.session)
    assert script.calls[-1][0] == "clear_kvcache"
    assert script.calls[-1][1] == (0,)  # all, not all but the system prompt


def test_greedy_takes_the_lowest_of_equal_ones(ask: Asker) -> None:
    told = ask("generate", session=ask.session, prompt=[2, 2], n=6, keep=False)
    tokens = told["tokens"].tolist()
    assert np.array_equal(rows([2, 2, *tokens], 2).argmax(1), np.array(tokens))
    row = logits([2, 2], 0.0)
    assert (row == row.max()).sum() > 1


def test_it_tells_who_answers(ask: Asker) -> None:
    hello = ask.board.hello()
    assert hello["platform"] == "rk1828"
    assert hello["versions"]["rknn3_api"].startswith("1.1.0")
    assert len(hello["model"]["digest"]) == 64
    assert hello["model"]["vocab"] == str(VOCAB)
    assert "layers" not in hello["model"]
    assert hello["capabilities"]["max_context"] == CONTEXT
    assert hello["capabilities"]["phases"] == ["decode", "prefill"]
    assert ask("memory")["memory"] == {
        "nodes": 2,
        "free_min": 30,
        "free": 100,
        "total": 200,
    }


def test_the_context_is_what_was_granted(script: Script, folder: Path) -> None:
    script.granted = 24
    ask = Asker(folder)
    assert ask.board.hello()["capabilities"]["max_context"] == 24
    asked = [
        named["llm_args"][0]["max_context_len"]
        for name, _, named in script.calls
        if name == "init_llm_session"
    ]
    assert asked == [CONTEXT, 24]
    assert ask.score([1] * 22, [2, 3, 4], keep=False).shape == (3, VOCAB)
    with pytest.raises(Refused, match="1 tokens after 24, the context has 24"):
        ask.score([1], [2])


def test_an_adapter_is_enabled_as_the_runtime_lists_it(
    ask: Asker, script: Script
) -> None:
    ask.load("two")
    ask.load("one")
    assert script.names("init_lora", "query_lora", "load_lora") == [
        *("init_lora", "query_lora", "load_lora"),
        *("query_lora", "load_lora"),
    ]
    script.calls.clear()
    ask.activate(two=1.0, one=0.5)
    ask.activate(two=2.0)
    ask.activate()
    asked = [(n, a[0].lora_name) for n, a, _ in script.calls if "_lora" in n]
    assert asked == [
        *(("enable_lora", b"two"), ("enable_lora", b"one")),
        # A new scale needs no disable of its own.
        *(("disable_lora", b"one"), ("enable_lora", b"two")),
        ("disable_lora", b"two"),
    ]


def test_what_is_reported_is_what_the_runtime_says(ask: Asker) -> None:
    ask.load("one")
    ask.load("two")
    ask.activate(two=0.25, one=-1.5)
    told = ask("reported", session=ask.session)["adapters"]
    assert list(told.items()) == [("two", 0.25), ("one", -1.5)]
    row = ask.score([1, 2], [3], keep=False)
    assert np.array_equal(row, rows([1, 2, 3], 2, -1.25))


@pytest.mark.parametrize("scale", ["nan", "inf", "-inf"])
def test_a_scale_that_is_no_number_reaches_the_runtime(ask: Asker, scale: str) -> None:
    ask.load("one")
    ask.activate(one=scale)
    assert ask("reported", session=ask.session)["adapters"] == {"one": scale}


def test_the_context_has_a_level_of_its_own(ask: Asker, script: Script) -> None:
    ask.load("one")
    ask("activate", adapters={"one": 1.0})
    assert script.calls[-1][2] == {"session_index": None}
    ask.activate()  # nothing is enabled in the session
    assert script.names("disable_lora") == []
    ask("activate", adapters={})
    assert script.names("disable_lora") == ["disable_lora"]


def test_an_unloaded_adapter_is_forgotten_everywhere(
    ask: Asker, script: Script
) -> None:
    ask.load("one")
    ask.activate(one=1.0)
    ask("unload", name="one")
    with pytest.raises(Refused, match="'one' is loaded"):
        ask.activate(one=1.0)
    ask.activate()  # the runtime has disabled it itself
    assert script.names("disable_lora") == []


def test_a_bundle_is_handed_over_anew(ask: Asker, script: Script) -> None:
    ask.load("one")
    with pytest.raises(Refused, match=r"c\.lora_weight: adapters of .*b\.") as refused:
        ask.load("two", "c.lora_weight")
    assert refused.value.code == "second-bundle"
    assert script.names("init_lora") == ["init_lora"]
    script.answers["init_lora"] = -2
    with pytest.raises(Refused, match="init_lora returned -2"):
        ask("renew", path=str(ask.work / "c.lora_weight"))
    ask.activate(one=1.0)  # as before
    del script.answers["init_lora"]
    ask("renew", path=str(ask.work / "c.lora_weight"))
    assert [n for name, _, n in script.calls if name == "init_lora"][-1] == {
        "weight_data": b"others",
        "weight_size": 6,
    }
    with pytest.raises(Refused, match="is loaded"):
        ask.activate(one=1.0)
    ask.load("one", "c.lora_weight")
    ask.activate()  # what was enabled went with the old ones
    assert script.names("disable_lora") == []


def test_a_bundle_of_which_none_is_loaded_makes_room(
    ask: Asker, script: Script
) -> None:
    """Whether there is a second initialisation is the runtime's to say."""

    def initialised() -> list[str]:
        paths = [n["lora_weight_path"] for c, _, n in script.calls if c == "init_lora"]
        return [Path(path).name[0] for path in paths]

    script.answers["load_lora"] = -3
    with pytest.raises(Refused, match="load_lora returned -3"):
        ask.load("one")
    script.answers["init_lora"] = -2
    with pytest.raises(Refused, match="init_lora returned -2") as refused:
        ask.load("one", "c.lora_weight")
    assert refused.value.code == "-2"
    script.answers.clear()
    ask.load("one")  # initialised it was
    ask("unload", name="one")
    assert initialised() == ["b", "c"]
    ask.load("two", "c.lora_weight")
    assert initialised() == ["b", "c", "c"]
    with pytest.raises(Refused, match=r"c\.lora_weight are loaded"):
        ask.load("one")


def test_a_file_that_is_too_large_is_not_read(
    ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.probes.bundle.BYTES", 5)
    with pytest.raises(Refused, match="more than 5 bytes"):
        ask("renew", path=str(ask.work / "b.lora_weight"))


def test_the_runtime_says_how_many_sessions_there_are(
    ask: Asker, script: Script
) -> None:
    assert ask.board.hello()["capabilities"]["max_sessions"] == 5
    opened = [ask.session, *(ask("session")["session"] for _ in range(5))]
    assert len(set(opened)) == 6
    script.answers["init_llm_session"] = -6
    with pytest.raises(Refused, match=r"returned -6 \(out of memory\)") as refused:
        ask("session")
    assert refused.value.code == "-6"
    assert script.calls[-1][2]["session_index"] == 6
    script.answers.clear()
    for _ in range(64 - 6):
        ask("session")
    script.calls.clear()
    with pytest.raises(Refused, match="64 sessions are open") as refused:
        ask("session")
    assert refused.value.code == "too-many-sessions"
    assert script.calls == []  # a runtime that takes any number is not asked for ever


def test_sessions_and_their_numbers(ask: Asker, script: Script) -> None:
    opened = [ask.session, *(ask("session")["session"] for _ in range(4))]
    ask.load("one")
    ask("activate", session=opened[2], adapters={"one": 1.0})
    ask("close_session", session=opened[2])
    script.calls.clear()
    new = ask("session")["session"]
    assert new not in opened
    assert script.calls[0][2]["session_index"] == 2
    ask("activate", session=new, adapters={})
    assert script.names("disable_lora") == []  # it starts from base
    with pytest.raises(Refused, match="no such session"):
        ask("reset", session=opened[2])


def test_a_session_that_fails_half_way_is_given_back(
    ask: Asker, script: Script
) -> None:
    script.answers["set_chat_template"] = -1
    with pytest.raises(Refused, match="set_chat_template returned -1"):
        ask("session")
    assert script.calls[-1][0::2] == ("release", {"session_index": 1})
    script.answers.clear()
    ask("session")


UNSURE = [
    "set_chat_template",
    "set_kvcache_policy",
    "session_query_state",
    "save_kvcache",
    "load_kvcache",
]


@pytest.mark.parametrize("name", UNSURE)
def test_a_call_without_an_index_is_about_session_0(
    script: Script, folder: Path, name: str
) -> None:
    script.unindexed = {name}
    ask = Asker(folder)
    ask.score([3, 1], [4, 1], keep=False)
    assert ask("reported", session=ask.session) == {"adapters": {}}
    ask("save_cache", session=ask.session, name="kept")
    ask("reset", session=ask.session)
    ask("load_cache", session=ask.session, name="kept")
    assert np.array_equal(ask.score([1], [5]), rows([3, 1, 4, 1, 5], 4))
    asked = {
        "session_index" in named for call, _, named in script.calls if call == name
    }
    assert asked == {False}
    script.calls.clear()
    with pytest.raises(Refused, match=f"{name} .*takes no session_index") as refused:
        other = ask("session")["session"]
        ask("reported", session=other)
        ask("save_cache", session=other, name="kept")
        ask("load_cache", session=other, name="kept")
    assert refused.value.code == "no-session-index"
    assert script.names(name) == []


def test_a_call_that_takes_anything_takes_an_index(
    script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ScriptedLite.set_chat_template

    def passed_on(self: ScriptedLite, *args: Any, **named: Any) -> int:
        return plain(self, *args, **named)

    monkeypatch.setattr(ScriptedLite, "set_chat_template", passed_on)
    ask = Asker(folder)
    ask("session")
    asked = [n for name, _, n in script.calls if name == "set_chat_template"]
    assert asked[-1] == {"session_index": 1}


CALLS = {
    "session": lambda ask: ask("session"),
    "load": lambda ask: ask.load("one"),
    "unload": lambda ask: ask("unload", name="three"),
    "enable": lambda ask: ask.activate(three=1.0),
    "score": lambda ask: ask.score([1], [2], keep=False),
    "reset": lambda ask: ask("reset", session=ask.session),
    "reported": lambda ask: ask("reported", session=ask.session),
    "save": lambda ask: ask("save_cache", session=ask.session, name="a"),
    "memory": lambda ask: ask("memory"),
    "renew": lambda ask: ask("renew", path=str(ask.work / "b.lora_weight")),
}


@pytest.mark.parametrize("answer", [-1, -6, 1, None])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("init_llm_session", "session"),
        ("set_kvcache_policy", "session"),
        ("load_lora", "load"),
        ("unload_lora", "unload"),
        ("enable_lora", "enable"),
        ("session_run", "score"),
        ("clear_kvcache", "reset"),
        ("session_query_state", "reported"),
        ("query_lora", "load"),
        ("save_kvcache", "save"),
        ("rknn3_query", "memory"),
        ("init_lora", "renew"),
    ],
)
def test_no_answer_is_taken_for_a_yes(
    ask: Asker, script: Script, name: str, call: str, answer: int | None
) -> None:
    ask.load("three")
    script.answers[name] = answer
    with pytest.raises(Refused, match=name) as refused:
        CALLS[call](ask)
    assert refused.value.kind == "refused"
    if isinstance(answer, int) and "query" not in name:
        assert refused.value.code == str(answer)
    assert not list(ask.work.glob("caches/*"))


def test_a_session_that_is_not_given_back(ask: Asker, script: Script) -> None:
    script.answers["release"] = -1
    with pytest.raises(Refused, match="release returned -1"):
        ask("close_session", session=ask.session)
    script.answers["release"] = None  # what the vendor's programs never look at
    ask("close_session", session=ask.session)


def test_a_runtime_may_enable_one_at_a_time(ask: Asker, script: Script) -> None:
    ask.load("one")
    ask.load("two")
    ask.activate(one=1.0)
    lite = ask.board._lite._lite

    def alone(lora: Any, session_index: int) -> Any:
        lite._enabled[session_index] = {}
        return ...

    script.answers["enable_lora"] = alone
    script.answers["disable_lora"] = lambda lora, session_index: (
        ... if lora.lora_name.decode() in lite._enabled[session_index] else -1
    )
    ask.activate(one=1.0, two=1.0)
    assert ask("reported", session=ask.session)["adapters"] == {"two": 1.0}
    ask.activate()
    assert ask("reported", session=ask.session)["adapters"] == {}


def test_an_adapter_that_was_not_disabled_is_tried_again(
    ask: Asker, script: Script
) -> None:
    ask.load("one")
    ask.activate(one=1.0)
    script.answers["disable_lora"] = -1
    with pytest.raises(Refused):
        ask.activate()
    script.answers.clear()
    ask.activate()
    assert ask("reported", session=ask.session)["adapters"] == {}


def test_a_list_without_memory_is_not_followed(ask: Asker, script: Script) -> None:
    def null(**_: Any) -> Any:
        return script.api()[1].RKLLMRunState(n_loras_enabled=1)

    script.answers["session_query_state"] = null
    with pytest.raises(Refused, match="lists 1 adapters and no list"):
        ask("reported", session=ask.session)
    script.answers["query_lora"] = (None, 33)
    with pytest.raises(Refused, match="query_lora lists 33 adapters"):
        ask.load("one")


def test_an_adapter_that_is_listed_twice_is_told(ask: Asker, script: Script) -> None:
    """As a mapping it would look like one."""
    script.listed = ("one", "two", "one")
    with pytest.raises(Refused, match="query_lora lists 'one' twice") as refused:
        ask.load("two")
    assert refused.value.code == "reported-twice"
    kinds = script.api()[1]
    listed = (kinds.RKNN3Lora * 2)()
    for lora in listed:
        lora.lora_name = b"one"

    def twice(**_: Any) -> Any:
        return kinds.RKLLMRunState(n_loras_enabled=2, loras_enabled=listed)

    script.answers["session_query_state"] = twice
    with pytest.raises(Refused, match="session_query_state lists 'one' twice"):
        ask("reported", session=ask.session)


@pytest.mark.parametrize("step", ["Forced.choose", "Callbacks._embed"])
def test_what_a_callback_meets_comes_out(
    ask: Asker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An exception inside ctypes would otherwise become an answer of 0, a token."""

    asked = []

    def fall(*_: Any) -> int:
        asked.append(1)
        raise ZeroDivisionError("ours")

    session = ask.session
    with monkeypatch.context() as patch:
        patch.setattr(f"harness.probes.callbacks.{step}", fall)
        ask.session = ask("session")["session"]
        with pytest.raises(ZeroDivisionError, match="ours"):
            ask.score([1, 2], [3, 4, 5], keep=False)
    assert len(asked) == 1  # the run has ended there
    ask.session = session
    assert np.array_equal(ask.score([1, 2], [3], keep=False), rows([1, 2, 3], 2))


def test_a_prompt_that_finds_no_room_is_refused(ask: Asker, script: Script) -> None:
    script.room = 2
    with pytest.raises(Refused, match="3 tokens, the runtime takes 2"):
        ask.score([1, 2, 3], [4], keep=False)


def test_a_run_of_another_length_is_refused(ask: Asker, script: Script) -> None:
    script.answers["session_run"] = (0, [0, 0, 0, 0])
    with pytest.raises(Refused, match="sampled 0 tokens of 2") as refused:
        ask.score([1], [2, 3], keep=False)
    assert refused.value.code == "short-run"

    def longer(**named: Any) -> Any:
        script.answers.clear()
        named["max_new_tokens"] += 1
        return ask.board._lite._lite.session_run(**named)

    script.answers["session_run"] = longer
    with pytest.raises(Refused, match="more than 2 tokens"):
        ask.score([1], [2, 3], keep=False)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("token", lambda ask: ask.score([VOCAB], [1])),
        ("token", lambda ask: ask.score([1], [-1])),
        ("too-long", lambda ask: ask.score([1] * CONTEXT, [1, 1], keep=False)),
        ("request", lambda ask: ask.score([1], [1, 2], "prefill", keep=True)),
        ("request", lambda ask: ask.score([], [1])),
        ("request", lambda ask: ask("generate", session=1, prompt=[1], n=0)),
        ("unknown-session", lambda ask: ask("reset", session=99)),
        ("unknown-adapter", lambda ask: ask.load("four")),
        ("unknown-adapter", lambda ask: ask.activate(one=1.0)),
        ("unknown-adapter", lambda ask: ask("unload", name="one")),
        ("no-file", lambda ask: ask.load("one", "nothing")),
        ("no-file", lambda ask: ask("renew", path="/nowhere")),
        ("request", lambda ask: ask.activate(one="much")),
        ("request", lambda ask: ask("activate", adapters=[1])),
        ("unsupported", lambda ask: ask("slots")),
        ("name", lambda ask: ask("save_cache", session=ask.session, name="../a")),
        ("name", lambda ask: ask("load_cache", session=ask.session, name=".a")),
        ("no-file", lambda ask: ask("load_cache", session=ask.session, name="a")),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_tried(
    ask: Asker, script: Script, code: str, call: Callable[[Asker], Any]
) -> None:
    ask.session = ask("session")["session"]
    script.calls.clear()
    with pytest.raises(Refused) as refused:
        call(ask)
    assert refused.value.code == code
    assert "\n" not in refused.value.text
    assert script.names("session_run", "enable_lora", "load_lora") == []


def test_a_cache_goes_to_a_file_and_back(ask: Asker, script: Script) -> None:
    ask.score([3, 1], [4, 1], keep=False)
    ask("save_cache", session=ask.session, name="kept")
    other = Asker.__new__(Asker)
    other.board, other.work = ask.board, ask.work
    other.session = ask("session")["session"]
    other("load_cache", session=other.session, name="kept")
    assert np.array_equal(other.score([1], [5]), rows([3, 1, 4, 1, 5], 4))
    assert [p.name for p in (ask.work / "caches").iterdir()] == ["kept"]
    script.answers["save_kvcache"] = 0
    with pytest.raises(Refused, match="returned 0 without a file"):
        ask("save_cache", session=ask.session, name="again")


def test_caches_end_with_their_start(script: Script, folder: Path) -> None:
    ask = Asker(folder)
    longest = "a" * 128
    for name in ("kept", longest):
        ask("save_cache", session=ask.session, name=name)
    caches = folder.parent / "caches"
    (caches / f"{longest}.12345").touch()  # as a probe leaves it that was killed
    (caches / "folder").mkdir()
    (caches / ".hidden").touch()
    (caches / "a b").touch()
    (caches / "link").symlink_to(folder / "a.rknn")
    again = Asker(folder)
    left = {".hidden", "a b", "folder", "link"}
    assert {path.name for path in caches.iterdir()} == left
    with pytest.raises(Refused, match="no cache was kept as kept"):
        again("load_cache", session=again.session, name="kept")


@pytest.mark.parametrize("version", ["1.0.0", "1.2.0", "", "rknn3"])
def test_another_sdk_is_not_asked_for_anything(
    script: Script, folder: Path, version: str
) -> None:
    script.version = version
    with pytest.raises(Refused, match=r"knows the layouts of 1\.1\.0") as refused:
        Rk1828(str(folder), str(folder))
    assert refused.value.kind == "setup"
    assert script.names() == ["load_rknn", "init_runtime", "rknn3_query", "release"]


@pytest.mark.parametrize("name", ["init_runtime", "set_kvcache_policy", "release"])
def test_another_lite_is_no_board_that_is_set_up(
    script: Script, folder: Path, name: str
) -> None:
    def other(*_: Any, **__: Any) -> Any:
        raise TypeError("takes 1 argument")

    script.answers[name] = other
    with pytest.raises(Refused, match=f"{name}: TypeError: takes 1") as refused:
        Rk1828(str(folder), str(folder))
    assert (refused.value.kind, refused.value.code) == ("setup", "call")


@pytest.mark.parametrize("name", ["load_rknn", "init_runtime", "init_llm_session"])
def test_a_model_that_is_not_taken(script: Script, folder: Path, name: str) -> None:
    script.answers[name] = -12
    with pytest.raises(Refused, match=rf"{name} returned -12 \(platform") as refused:
        Rk1828(str(folder), str(folder))
    assert (refused.value.kind, refused.value.code) == ("refused", "-12")
    assert script.names()[-1] == "release"


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda f: (f / "a.weight").unlink(), r"0 files \*\.weight, not one"),
        (lambda f: (f / "b.rknn").touch(), r"2 files \*\.rknn, not one"),
        (lambda f: (f / "embed.bin").write_bytes(b"1"), "1 bytes, the model needs 128"),
    ],
)
def test_a_folder_that_is_no_model(
    script: Script, folder: Path, spoil: Callable[[Path], Any], text: str
) -> None:
    spoil(folder)
    with pytest.raises(Refused, match=text) as refused:
        Rk1828(str(folder), str(folder))
    assert refused.value.kind == "setup"


def test_the_digest_is_that_of_all_files(script: Script, folder: Path) -> None:
    def digest() -> str:
        told = Asker(folder).board.hello()["model"]["digest"]
        return str(told)

    seen = {digest()}
    for name in ("a.rknn", "a.weight", "embed.bin"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + b"!")
        seen.add(digest())
    assert len(seen) == 4

"""What a board says is checked before anybody believes it."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.deadline import Deadline
from harness.errors import HostUnreachable
from harness.errors import Infrastructure
from harness.errors import ProtocolBroken
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.probes.wire import read_frame
from harness.probes.wire import write_frame
from harness.runtimes.patience import Patience
from harness.runtimes.remote import RemoteRuntime


HELLO: dict[str, Any] = {
    "hello": 1,
    "platform": "bm1688",
    "versions": {"chip": "x"},
    "model": {"vocab": "8"},
    "capabilities": {
        "phases": ["prefill", "decode"],
        "slots_readable": True,
        "scope": "process",
        "runtime_scale": False,
        "max_adapters": 1,
        "max_active": 1,
        "max_sessions": 2,
        "max_prompt": 16,
        "max_context": 32,
    },
}
SLOT = {
    "name": "lora.32.0.model.layers.0.mlp.up_proj.lora_A.weight",
    "net": "block_0",
    "layer": 0,
    "module": "up_proj",
    "factor": "A",
    "reserved_rank": 32,
    "width": 128,
    "dtype": "bf16",
    "size": 8192,
}
Answer = tuple[dict[str, Any], dict[str, np.ndarray]] | bytes | Exception
Say = Callable[[dict[str, Any]], Answer]


def frame(header: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> bytes:
    out = io.BytesIO()
    write_frame(out.write, header, arrays)
    return out.getvalue()


class Liar:
    """A process whose replies a test makes up.

    :param say: the reply to a request: header and arrays, raw bytes, or an error
        that the host would raise.
    """

    def __init__(self, hello: bytes, say: Say) -> None:
        self._out = hello
        self._say = say
        self.closed = False

    def write(self, data: bytes | memoryview, deadline: Deadline) -> None:
        stream = io.BytesIO(bytes(data))
        while stream.tell() < len(data):
            self._answer(read_frame(stream.read)[0])

    def _answer(self, request: dict[str, Any]) -> None:
        answer = self._say(request)
        if isinstance(answer, Exception):
            self._error = answer
            return
        if isinstance(answer, tuple):
            header, arrays = answer
            answer = frame({"id": request["id"], "ok": True, **header}, arrays)
        self._out += answer

    def read(self, size: int, deadline: Deadline) -> bytes:
        if not self._out and hasattr(self, "_error"):
            raise self._error
        data, self._out = self._out[:size], self._out[size:]
        return data

    def errors(self) -> str:
        return "first\n\x1b[31mlast\x07 words\n\n"

    def status(self) -> int | None:
        return -9

    def close(self) -> None:
        self.closed = True


class LiarsHost:
    name = "liar"
    python = "python3"

    def __init__(self, process: Liar) -> None:
        self._process = process

    def start(self, argv: list[str], **_: Any) -> Liar:
        return self._process


class NoStore:
    def put_folder(self, folder: Path) -> str:
        return "somewhere"


def runtime(say: Say, hello: bytes | None = None) -> tuple[RemoteRuntime, Liar]:
    process = Liar(frame(HELLO) if hello is None else hello, say)
    return (
        RemoteRuntime(
            LiarsHost(process),  # type: ignore[arg-type]
            NoStore(),  # type: ignore[arg-type]
            platform="bm1688",
            model="m",
            workdir="w",
            patience=Patience(control=1),
        ),
        process,
    )


def change(path: str, value: Any) -> bytes:
    hello = {**HELLO, "capabilities": dict(HELLO["capabilities"])}
    place: Any = hello
    *first, last = path.split(".")
    for name in first:
        place = place[name]
    place[last] = value
    return frame(hello)


def nothing(request: dict[str, Any]) -> Answer:
    return {}, {}


@pytest.mark.parametrize(
    "hello",
    [
        b"Last login: Tue",
        frame({}),
        frame({"ok": True}),
        frame({"ok": False}),
        frame({"ok": False, "error": {"kind": "other", "code": "", "text": ""}}),
        change("hello", 2),
        change("hello", "1"),
        change("platform", "rk1828"),
        change("platform", "x" * 3000),
        change("versions", {str(i): "" for i in range(201)}),
        change("versions", {"chip": 5}),
        change("model", {}),
        change("model", {"vocab": "-8"}),
        change("model", {"vocab": "9" * 9}),
        change("capabilities", None),
        change("capabilities.scope", "galaxy"),
        change("capabilities.phases", ["encode"]),
        change("capabilities.phases", []),
        change("capabilities.phases", ["decode", "decode"]),
        change("capabilities.max_prompt", 0),
        change("capabilities.max_context", 1 << 60),
        change("capabilities.slots_readable", 1),
    ],
    ids=lambda h: repr(h)[-60:],
)
def test_a_hello_that_is_none(hello: bytes) -> None:
    process = Liar(hello, nothing)
    with pytest.raises(ProtocolBroken) as broken:
        RemoteRuntime(
            LiarsHost(process),  # type: ignore[arg-type]
            NoStore(),  # type: ignore[arg-type]
            platform="bm1688",
            model="m",
            workdir="w",
        )
    assert process.closed
    assert len(str(broken.value)) < 400


def test_control_characters_do_not_get_through() -> None:
    hello = {**HELLO, "versions": {"chip\x1b[2J": "a\nb\x07"}}
    got, _ = runtime(nothing, frame(hello))
    assert got.identity.versions == {"chip?[2J": "a b?"}


SCORE = lambda r: r.session().score([1], [1, 2], "prefill")  # noqa: E731
GENERATE = lambda r: r.session().generate([1], 2)  # noqa: E731
REPORTED = lambda r: r.session().reported()  # noqa: E731
LOGITS = np.zeros((2, 8), np.float32)


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (SCORE, ({}, {})),
        (SCORE, ({}, {"other": LOGITS})),
        (SCORE, ({}, {"logits": LOGITS[:1]})),
        (SCORE, ({}, {"logits": LOGITS[:, :7]})),
        (SCORE, ({}, {"logits": LOGITS.T})),
        (SCORE, ({}, {"logits": LOGITS.ravel()})),
        (SCORE, ({}, {"logits": LOGITS.astype("<i4")})),
        (SCORE, ({}, {"logits": np.zeros((200, 8), "<f4")})),
        (GENERATE, ({}, {})),
        (GENERATE, ({}, {"tokens": np.array([1], "<i4")})),
        (GENERATE, ({}, {"tokens": np.array([1, 8], "<i4")})),
        (GENERATE, ({}, {"tokens": np.array([1, -1], "<i4")})),
        (GENERATE, ({}, {"tokens": np.array([1, 1], "<f4")})),
        (REPORTED, ({}, {})),
        (REPORTED, ({"adapters": ["a"]}, {})),
        (REPORTED, ({"adapters": {"a": "1"}}, {})),
        (REPORTED, ({"adapters": {"a": True}}, {})),
        (REPORTED, ({"adapters": {"a": "NaN"}}, {})),
        (REPORTED, ({"adapters": {"a\x07": 1.0, "a\x1b": 1.0}}, {})),
        (REPORTED, b'\x28\0\0\0{"id":2,"ok":true,"adapters":{"a":NaN}} '),
        (lambda r: r.memory(), ({"memory": {"used": -1}}, {})),
        (lambda r: r.memory(), ({"memory": {"used": 1.5}}, {})),
        (lambda r: r.slots(), ({"slots": [{}]}, {})),
        (lambda r: r.slots(), ({"slots": [{**SLOT, "factor": "C"}]}, {})),
        (lambda r: r.slots(), ({"slots": [{**SLOT, "size": 1 << 60}]}, {})),
        (lambda r: r.slots(), ({"slots": [{**SLOT, "name": "x" * 2001}]}, {})),
        (lambda r: r.slots(), ({"slots": [0] * 100_001}, {})),
        (lambda r: r.slots(), ({"slots": [SLOT]}, {"unasked": LOGITS})),
        (lambda r: r.read_slot("a"), ({}, {})),
        (lambda r: r.read_slot("a"), ({}, {"data": LOGITS})),
        (lambda r: r.load("p", "a"), ({"id": 77}, {})),
        (lambda r: r.load("p", "a"), ({"ok": 1}, {})),
        (lambda r: r.load("p", "a"), b"\xff\xff\xff\xff"),
        (lambda r: r.load("p", "a"), b"\x02\0\0\0[]"),
    ],
)
def test_a_reply_that_makes_no_sense_ends_the_program(
    ask: Callable[[RemoteRuntime], Any], answer: Answer
) -> None:
    def say(request: dict[str, Any]) -> Answer:
        return ({"session": 1}, {}) if request["op"] == "session" else answer

    liar, process = runtime(say)
    with pytest.raises(ProtocolBroken) as broken:
        ask(liar)
    assert process.closed
    assert len(str(broken.value)) < 400
    with pytest.raises(RuntimeDied):
        liar.memory()


def test_not_finite_logits_are_passed_on() -> None:
    """They are the board's, and a finding: not a fault of the protocol."""
    logits = np.full((2, 8), math.nan, np.float32)

    def say(request: dict[str, Any]) -> Answer:
        return {"session": 1}, ({"logits": logits} if request["op"] == "score" else {})

    assert np.isnan(SCORE(runtime(say)[0])).all()


def test_a_scale_may_be_no_number() -> None:
    """Whether it is taken is for the board to say; both ways, since JSON has no NaN."""
    asked: list[Any] = []

    def say(request: dict[str, Any]) -> Answer:
        asked.append(request.get("adapters"))
        return {"session": 1, "adapters": asked[-1]}, {}

    scales = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}
    session = runtime(say)[0].session()
    session.activate(scales)
    assert asked[-1] == {"a": "nan", "b": "inf", "c": "-inf", "d": 0.5}

    def tell(request: dict[str, Any]) -> Answer:
        return {"session": 1, "adapters": asked[-1]}, {}

    assert str(runtime(tell)[0].session().reported()) == str(scales)


def test_a_refusal_has_the_vendors_code_and_one_line() -> None:
    error = {"kind": "refused", "code": "-22\x1b", "text": "two\nlines\x07"}
    liar, process = runtime(lambda request: ({"ok": False, "error": error}, {}))
    with pytest.raises(RuntimeRefused) as refused:
        liar.load("p", "a")
    assert refused.value.vendor_code == "-22?"
    assert "liar, load: two lines? (code -22?)" in str(refused.value)
    assert not process.closed


def test_a_reset_that_is_refused_leaves_no_reply_behind() -> None:
    """It goes out with the scoring, whose reply must not be taken for another's."""
    error = {"kind": "refused", "code": "7", "text": "not now"}
    asked: list[str] = []

    def say(request: dict[str, Any]) -> Answer:
        asked.append(request["op"])
        if request["op"] == "reset":
            return {"ok": False, "error": error}, {}
        scored = request["op"] == "score"
        return {"session": 1, "memory": {}}, ({"logits": LOGITS} if scored else {})

    liar, _ = runtime(say)
    session = liar.session()
    with pytest.raises(RuntimeRefused, match="liar, reset: not now"):
        session.score([1], [1, 2], "prefill", cache="cleared")
    assert asked == ["session", "reset", "score"]
    assert liar.memory() == {}


@pytest.mark.parametrize("rest", [b"", b"\x05", b"\x40\0\0\0{"])
def test_an_end_of_stream_is_a_death(rest: bytes) -> None:
    liar, process = runtime(lambda request: rest)
    with pytest.raises(RuntimeDied, match=r"signal 9; it last said: first \| .*words"):
        liar.memory()
    assert process.closed


def test_silence_is_a_hang_and_a_lost_connection_neither() -> None:
    liar, process = runtime(lambda request: TimeoutError())
    with pytest.raises(RuntimeHung, match="no reply in 1 s"):
        liar.memory()
    assert process.closed
    liar, process = runtime(lambda request: HostUnreachable("gone", where="liar"))
    with pytest.raises(HostUnreachable):
        liar.memory()
    assert process.closed


def test_ended_before_its_hello() -> None:
    with pytest.raises(RuntimeDied):  # by a signal: the vendor's library
        runtime(nothing, b"")


def test_a_bug_in_the_probe_is_ours() -> None:
    error = {"kind": "bug", "code": "bug", "text": "KeyError: 1"}
    liar, process = runtime(lambda request: ({"ok": False, "error": error}, {}))
    with pytest.raises(Infrastructure, match="the probe failed: KeyError"):
        liar.memory()
    assert not process.closed


def test_a_header_that_lies_about_its_length() -> None:
    liar, _ = runtime(lambda request: struct.pack("<I", 1 << 30) + b"{}")
    with pytest.raises(ProtocolBroken, match="header of 1073741824 bytes"):
        liar.memory()

"""The simulated RK1828 in the test's own process, used as the vendor's scripts do."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.simulator.precision import Fp16
from harness.simulator.rk1828 import api
from harness.simulator.rk1828 import types
from harness.simulator.rk1828.device import Device


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ADAPTERS = FIXTURES / "adapters"
VOCAB = 512
PROMPT = list(range(40, 60))
# Two chunks of prefill, and most of it older than what the cache keeps in fp16.
LONG = [7 + i % 300 for i in range(150)]


def command(tool: str, *words: object) -> None:
    """Run one of the vendor's stand-in converters."""
    line = [sys.executable, "-m", f"harness.simulator.rk1828.{tool}", *map(str, words)]
    subprocess.run(line, check=True, cwd=FIXTURES.parent, timeout=120)


def bundled(out: Path, adapters: Mapping[str, Path], base: Path | None = None) -> Path:
    """A bundle of these adapters for the fixtures' base."""
    names = [f"{name}={folder}" for name, folder in adapters.items()]
    command("bundle", base or FIXTURES / "base", out, *names)
    return out


class Talk:
    """The callbacks of one session: what is fed, what is forced, what came.

    :param choose: what follows a row of logits float32 `[vocab]`; None: the likeliest.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.choose: Callable[[np.ndarray], int] | None = None
        self.rows: list[np.ndarray] = []
        self.texts: list[bytes] = []
        self.heard: list[str] = []
        self.ended: list[int] = []
        self.during: Callable[[], object] | None = None
        self.record = types.RKLLMCallback(
            result_callback=api.LLMResultCallback(self._result),
            sampling_callback=api.LLMSamplingCallback(self._sample),
            tokenizer_callback=api.LLMTokenizerCallback(self._tokenize),
            output_callback=api.LLMOutputCallback(self._output),
        )

    def _tokenize(self, _: Any, text: bytes, n: int, out: Any, room: int) -> int:
        self.heard.append("tokenizer")
        self.texts.append(text[:n])
        for i, token in enumerate(self.tokens[:room]):
            out[i] = token
        return min(len(self.tokens), room + 1)

    def embed(self, _: Any, tokens: Any, n: int, out: int, size: int) -> int:
        """An embedding of the test's own: constant rows."""
        self.heard.append("embed")
        rows = np.repeat(np.array(tokens[:n], np.float16)[:, None] / 512, 128, 1)
        assert rows.nbytes == size
        ctypes.memmove(out, rows.ctypes.data, size)
        return 0

    def _output(self, _: Any, tensors: Any, n: int, state: int) -> int:
        self.heard.append(f"output {state}")
        return 0

    def _sample(self, _: Any, logits: Any, name: bytes | None) -> int:
        self.heard.append(f"sampling {name!r}")
        bits = np.ctypeslib.as_array(logits, shape=(VOCAB,)).copy()
        self.rows.append(bits.view(np.float16).astype(np.float32))
        if self.during is not None:
            self.during()
        row = self.rows[-1]
        return int(row.argmax()) if self.choose is None else self.choose(row)

    def _result(self, _: Any, result: Any, state: int) -> int:
        count = result.contents.num_tokens
        tokens = result.contents.token_ids[:count]
        self.heard.append(f"result {state} {tokens}")
        if not count:
            self.ended.append(state)
        return 0


class Board:
    """A started runtime with session 0.

    :param model: folder of the compiled model.
    :param device: a faulty one in place of the sound one.
    """

    def __init__(
        self, model: Path, device: type[Device] = Device, context: int = 320
    ) -> None:
        self.model = model
        self.context = context
        self.lite = api.RKNN3Lite(llm_mode=True)
        self.lite.device = device(Fp16())
        self.talks: dict[int, Talk] = {}
        assert self.load() == 0
        assert self.start() == 0
        assert self.open(0) == 0

    def load(self) -> int:
        files = [str(self.model / f"model.{end}") for end in ("rknn", "weight")]
        return self.lite.load_rknn(*files)

    def start(self, **options: Any) -> int:
        embed = str(self.model / "embed.bin")
        given = {"target": "rk1828", "llm_embed_path": embed, **options}
        return self.lite.init_runtime(**given)

    def open(self, index: int, **arguments: Any) -> int:
        talk = self.talks.setdefault(index, Talk())
        arguments.setdefault("max_context_len", self.context)
        arguments.setdefault("logits_name", b"logits")
        status = self.lite.init_llm_session([arguments], talk.record, index)
        if status == 0:
            assert self.lite.set_chat_template("", "", "", session_index=index) == 0
        return status

    def run(self, tokens: Sequence[int] = PROMPT, index: int = 0, **named: Any) -> int:
        """One run, with what it says in the session's `Talk`."""
        talk = self.talks[index]
        talk.tokens = list(tokens)
        talk.rows.clear()
        talk.heard.clear()
        talk.ended.clear()
        named.setdefault("max_new_tokens", 1)
        return self.lite.session_run(prompt="", session_index=index, **named)[0]

    def score(
        self,
        prompt: Sequence[int] = PROMPT,
        continuation: Sequence[int] = (70, 71, 72, 73),
        index: int = 0,
        **named: Any,
    ) -> np.ndarray:
        """Teacher-forced logits, float32 `[t, vocab]`."""
        gold, n = iter(continuation), len(continuation)
        talk = self.talks[index]
        talk.choose = lambda row: next(gold)
        try:
            assert self.run(prompt, index, max_new_tokens=n, **named) == 0
        finally:
            talk.choose = None
        return np.stack(talk.rows)

    def adapter(self, name: str, scale: float | None = None) -> Any:
        """The descriptor of an adapter."""
        listed, n = self.lite.query_lora()
        (found,) = (d for d in listed[:n] if d.lora_name == name.encode())
        if scale is not None:
            found.scale = scale
        return found

    def use(self, name: str, scale: float = 1.0, index: int | None = 0) -> None:
        """Load an adapter and enable it."""
        descriptor = self.adapter(name, scale)
        assert self.lite.load_lora(descriptor) == 0
        assert self.lite.enable_lora(descriptor, session_index=index) == 0

    def enabled(self, index: int = 0) -> dict[str, float]:
        """What the state reports."""
        state = self.lite.session_query_state(session_index=index)
        listed = state.loras_enabled[: state.n_loras_enabled]
        return {d.lora_name.decode(): d.scale for d in listed}

    def free(self) -> list[int]:
        """Free bytes of each node."""
        query = api.RKNN3QueryCmd.RKNN3_QUERY_DEVICE_MEM_INFO
        told = self.lite.rknn3_query(query)
        return [node.free for node in told.node_mem_info[: told.node_num]]

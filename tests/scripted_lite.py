"""A scripted `rknn3lite`: it answers as a test says, and computes next to nothing."""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.simulator.rk1828 import constants
from harness.simulator.rk1828 import records as types


VOCAB, HIDDEN, CONTEXT = 16, 4, 40
NAMES = ("one", "two", "three")


def logits(held: list[int], effect: float) -> np.ndarray:
    """The row after these tokens, fp16 `[VOCAB]`; all of them count."""
    seed = sum((i + 1) * (token + 1) for i, token in enumerate(held))
    return ((np.arange(VOCAB) * 3 + seed) % 7 + effect).astype(np.float16)


class Script:
    """What the runtime will say, and what it was asked.

    :param answers: by call: an answer in place of the usual one, or a function of
        the call's arguments that gives it (or the usual one for `...`).
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, Any] = {}
        # Calls that take no `session_index` and are about session 0.
        self.unindexed: set[str] = set()
        # Names in the bundle's list.
        self.listed = NAMES
        self.room = CONTEXT
        self.version = "1.1.0 (deadbeef@2026-05-12)"
        self.granted = CONTEXT
        self.config = types.RKNN3LLMConfig(
            vocab_size=VOCAB,
            embedding_dim=HIDDEN,
            max_ctx_len=CONTEXT,
            kvcache_dtype=1,
            kvcache_group_size=32,
            kvcache_residual_depth=32,
            model_type=b"scripted",
        )

    def names(self, *wanted: str) -> list[str]:
        """The calls made, all or those wanted."""
        return [name for name, _, _ in self.calls if not wanted or name in wanted]

    def api(self) -> tuple[Any, Any]:
        """The modules `rknn3lite.api` and `rknn3lite.api.rknn3_types`."""
        both = {n: getattr(m, n) for m in (constants, types) for n in m.__all__}
        kinds, api = SimpleNamespace(**both), SimpleNamespace(**both)
        api.RKNN3Lite = lambda **_: ScriptedLite(self)
        return api, kinds


class ScriptedLite:
    """The class `RKNN3Lite`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._held: dict[int, list[int]] = {}
        self._callbacks: dict[int, Any] = {}
        self._enabled: dict[Any, dict[str, float]] = {}
        self._keep: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        usual = object.__getattribute__(self, name)
        if name.startswith("_"):
            return usual
        script: Script = self._script
        shape, assumed = inspect.signature(usual), {}
        if name in script.unindexed:
            given = [p for p in shape.parameters.values() if p.name != "session_index"]
            shape, assumed = shape.replace(parameters=given), {"session_index": 0}

        def call(*args: Any, **named: Any) -> Any:
            shape.bind(*args, **named)  # as Python does: a TypeError if it cannot
            script.calls.append((name, args, named))
            answer = script.answers.get(name, ...)
            if callable(answer):
                answer = answer(*args, **named)
            return usual(*args, **named, **assumed) if answer is ... else answer

        call.__signature__ = shape  # type: ignore[attr-defined]
        return call

    def load_rknn(self, model: str, weight: str) -> int:
        return 0

    def init_runtime(self, target: str) -> int:
        return 0

    def rknn3_query(self, command: int) -> Any:
        if command == constants.RKNN3QueryCmd.RKNN3_QUERY_SDK_VERSION:
            version = self._script.version.encode()
            return types.RKNN3SDKVersion(version, b"2.2.2")
        if command == constants.RKNN3QueryCmd.RKNN3_QUERY_LLM_CONFIG:
            return self._script.config
        info = types.RKNN3DevMemInfo(node_num=2, sys_free=1)
        for node, free in enumerate((70, 30)):
            info.node_mem_info[node].total, info.node_mem_info[node].free = 100, free
        return info

    def init_llm_session(
        self, llm_args: list[dict[str, Any]], llm_callback: Any, session_index: int
    ) -> int:
        self._held[session_index] = []
        self._callbacks[session_index] = llm_callback
        return 0

    def set_chat_template(self, *texts: str, session_index: int) -> int:
        return 0

    def set_kvcache_policy(self, policy: int, session_index: int) -> int:
        return 0

    def clear_kvcache(self, policy: int, session_index: int) -> int:
        self._held[session_index].clear()
        return 0

    def session_query_state(self, session_index: int) -> Any:
        state = types.RKLLMRunState()
        state.n_max_tokens = self._script.granted
        state.n_total_tokens = len(self._held[session_index])
        enabled = self._enabled.get(session_index, {})
        state.n_loras_enabled = len(enabled)
        listed = (types.RKNN3Lora * 32)()
        for lora, (name, scale) in zip(listed, enabled.items(), strict=False):
            lora.lora_name, lora.scale = name.encode(), scale
        self._keep.append(listed)
        state.loras_enabled = listed
        return state

    def session_run(
        self,
        prompt: str,
        keep_history: bool,
        max_new_tokens: int,
        enable_thinking: bool,
        session_index: int,
    ) -> tuple[int, list[float]]:
        held, callbacks = self._held[session_index], self._callbacks[session_index]
        if not keep_history:
            held.clear()
        ids = (ctypes.c_int32 * max(self._script.room, 1))()
        text = prompt.encode()
        n = callbacks.tokenizer_callback(None, text, len(text), ids, self._script.room)
        if n < 0:
            return -8, [0, 0, 0, 0]
        embedded = (ctypes.c_uint16 * (n * HIDDEN))()
        size = ctypes.sizeof(embedded)
        place = ctypes.cast(embedded, ctypes.c_void_p)
        if callbacks.embed_callback(None, ids, n, place, size):
            return -8, [0, 0, 0, 0]
        # Row t of the tests' embedding holds t: what was embedded tells the ids.
        rows = np.array(embedded, np.uint16).view(np.float16)
        held.extend(rows[::HIDDEN].astype(int).tolist())
        effect = sum(self._enabled.get(session_index, {}).values())
        token = 0
        for step in range(max_new_tokens):
            if step:
                held.append(token)
            row = logits(held, effect).view(np.uint16)
            pointer = row.ctypes.data_as(ctypes.POINTER(ctypes.c_uint16))
            token = callbacks.sampling_callback(None, pointer, b"logits")
            if token < 0:
                return -5, [0, 0, 0, 0]
        return 0, [max_new_tokens - 1, n, 0.0, 0.0]

    def init_lora(
        self,
        lora_weight_path: str | None = None,
        weight_data: bytes | None = None,
        weight_size: int = 0,
    ) -> int:
        return 0

    def query_lora(self) -> tuple[Any, int]:
        listed = (types.RKNN3Lora * 32)()
        for lora, name in zip(listed, self._script.listed, strict=False):
            lora.lora_name = name.encode()
        return listed, len(self._script.listed)

    def load_lora(self, lora: Any) -> int:
        return 0

    def unload_lora(self, lora: Any) -> int:
        return 0

    def enable_lora(self, lora: Any, session_index: int | None) -> int:
        name = lora.lora_name.decode()
        self._enabled.setdefault(session_index, {})[name] = lora.scale
        return 0

    def disable_lora(self, lora: Any, session_index: int | None) -> int:
        del self._enabled[session_index][lora.lora_name.decode()]
        return 0

    def save_kvcache(self, path: str, session_index: int) -> int:
        with open(path, "wb") as file:
            file.write(bytes(self._held[session_index]))
        return 0

    def load_kvcache(self, kvcache_path: str, session_index: int) -> int:
        with open(kvcache_path, "rb") as file:
            self._held[session_index][:] = file.read()
        return 0

    def release(self, session_index: int | None = None) -> int:
        self._held.pop(session_index, None)  # type: ignore[arg-type]
        return 0

"""What the runtime asks of its caller while a session runs: ids, rows, choices."""

from __future__ import annotations

import ctypes
from typing import Any
from typing import Callable
from typing import List
from typing import Optional
from typing import Protocol

import numpy as np

from .server import Refused


__all__ = ["Callbacks", "Chooser", "Forced", "Greedy"]


class Chooser(Protocol):
    """Chooses the token after each position.

    :param count: how many will be asked for.
    """

    count: int

    def choose(self, step: int, logits: np.ndarray) -> int:
        """The token for a step.

        :param logits: fp16 `[vocab]`, the runtime's own memory.
        """


class Forced:
    """Chooses a given continuation and keeps the logits, f32 `[t, vocab]`."""

    def __init__(self, continuation: np.ndarray, vocab: int) -> None:
        self.count = len(continuation)
        self.logits = np.empty((self.count, vocab), np.float32)
        self._continuation = continuation

    def choose(self, step: int, logits: np.ndarray) -> int:
        """The continuation's token."""
        self.logits[step] = logits
        return int(self._continuation[step])


class Greedy:
    """Chooses the likeliest token, of equal ones the lowest, and keeps them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tokens: List[int] = []

    def choose(self, step: int, logits: np.ndarray) -> int:
        """The likeliest token."""
        self.tokens.append(int(logits.astype(np.float32).argmax()))
        return self.tokens[-1]


class Callbacks:
    """The callbacks of one session; kept as long as the session may call them.

    An exception must not get into ctypes, which would print it and answer 0, a
    token: it is kept, -1 is answered, and `finish` raises it.

    :param api: the vendor's `rknn3lite.api`.
    :param embedding: fp16 `[vocab, hidden]`.
    """

    def __init__(self, api: Any, embedding: np.ndarray) -> None:
        self._embedding = embedding
        self._error: Optional[BaseException] = None
        self._prompt = np.empty(0, np.int32)
        self._chooser: Chooser = Greedy(0)
        self._step = 0
        record = api.RKLLMCallback()
        record.result_callback = api.LLMResultCallback(lambda *_: 0)
        record.tokenizer_callback = api.LLMTokenizerCallback(
            self._guarded(self._tokenize)
        )
        record.embed_callback = api.LLMGetEmbedCallback(self._guarded(self._embed))
        record.sampling_callback = api.LLMSamplingCallback(self._guarded(self._sample))
        # The record holds its function objects, this object the record.
        self.record = record

    def prepare(self, prompt: np.ndarray, chooser: Chooser) -> None:
        """Take what the next run is about."""
        self._prompt, self._chooser = prompt, chooser
        self._step, self._error = 0, None

    def finish(self) -> None:
        """See that the run asked for all it should have.

        :raises Refused: it did not.
        """
        if self._error is not None:
            raise self._error
        if self._step != self._chooser.count:
            raise Refused(
                "short-run",
                "session_run sampled %d tokens of %d"
                % (self._step, self._chooser.count),
            )

    @property
    def failed(self) -> bool:
        """Whether something is kept that `finish` will raise."""
        return self._error is not None

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(*args: Any) -> int:
            try:
                return function(*args)
            except BaseException as error:
                self._error = self._error or error
                return -1

        return call

    def _tokenize(self, _: Any, text: Any, length: int, out: Any, room: int) -> int:
        """Hand out the prompt's ids, whatever the text: an M-RoPE model takes none."""
        n = len(self._prompt)
        if n > room:
            raise Refused("too-long", "%d tokens, the runtime takes %d" % (n, room))
        _array(out, ctypes.c_int32, n)[:] = self._prompt
        return n

    def _embed(self, _: Any, tokens: Any, n: int, out: Any, size: int) -> int:
        rows = self._embedding[_array(tokens, ctypes.c_int32, n)]
        if rows.nbytes != size:
            raise Refused(
                "embedding",
                "%d bytes for %d tokens, embed.bin has %d" % (size, n, rows.nbytes),
            )
        _array(out, ctypes.c_uint16, rows.size)[:] = rows.reshape(-1).view(np.uint16)
        return 0

    def _sample(self, _: Any, logits: Any, name: Any) -> int:
        if self._step >= self._chooser.count:
            raise Refused(
                "long-run",
                "session_run samples more than %d tokens" % self._chooser.count,
            )
        row = _array(logits, ctypes.c_uint16, len(self._embedding)).view(np.float16)
        token = self._chooser.choose(self._step, row)
        self._step += 1
        return token


def _array(pointer: Any, kind: Any, n: int) -> np.ndarray:
    """The runtime's memory behind a pointer, `[n]`, not copied.

    :raises Refused: the pointer is NULL.
    """
    if not pointer:
        raise Refused("null-pointer", "the runtime handed over a NULL pointer")
    typed = ctypes.cast(pointer, ctypes.POINTER(kind))
    return np.ctypeslib.as_array(typed, shape=(n,))

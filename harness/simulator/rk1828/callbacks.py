"""A session's callbacks as function pointers, each with its errors checked."""

from __future__ import annotations

from ctypes import POINTER
from ctypes import c_int
from ctypes import c_int32
from typing import List
from typing import Optional
from typing import Sequence

import numpy as np

from .constants import LLMCallState
from .constants import LLMOutputCallbackState
from .device import Refused
from .records import Float16
from .records import RKLLMCallback
from .records import RKLLMResult


__all__ = ["Callbacks"]


class Callbacks:
    """What a session calls back; a pointer that is NULL is not called.

    An exception in a callback ends at its pointer, which then returns any number:
    what it gave is checked, and some such runs go on with a wrong token.

    :param record: kept alive as long as this.
    """

    def __init__(self, record: RKLLMCallback, logits_name: bytes, vocab: int) -> None:
        self._record = record
        self._name = logits_name
        self._vocab = vocab
        self._logits = np.zeros(vocab, np.float16)
        self._pointer = self._logits.ctypes.data_as(POINTER(Float16))
        self._embed = record.embed_callback
        self._output = record.output_callback
        self._sampling = record.sampling_callback
        self._result = record.result_callback

    def tokens(self, text: bytes, most: int) -> List[int]:
        """The ids of a text.

        :param most: room for them.
        :raises Refused: there is no tokenizer, it failed, or gave what is none.
        """
        record = self._record
        if not record.tokenizer_callback:
            raise Refused("a prompt needs a tokenizer callback")
        ids = (c_int32 * most)()
        count = record.tokenizer_callback(
            record.tokenizer_userdata, text, len(text), ids, most
        )
        if not 0 < count <= most:
            raise Refused("the tokenizer callback returned %d of %d" % (count, most))
        tokens = ids[:count]
        if min(tokens) < 0 or max(tokens) >= self._vocab:
            raise Refused("the tokenizer callback gave an id outside the vocabulary")
        return tokens

    def embeddings(
        self, tokens: Sequence[int], table: Optional[np.ndarray], hidden: int
    ) -> np.ndarray:
        """Embeddings of tokens, float32 `[n, hidden]`.

        :param table: fp16 `[vocab, hidden]`, for a session without a callback.
        :raises Refused: there is neither, or the callback failed.
        """
        if not self._embed:
            if table is None:
                raise Refused("neither an embedding file nor an embed callback")
            return np.asarray(table[np.asarray(tokens)], np.float32)
        ids = (c_int32 * len(tokens))(*tokens)
        rows = np.zeros((len(tokens), hidden), np.float16)
        userdata = self._record.embed_userdata
        if self._embed(userdata, ids, len(tokens), rows.ctypes.data, rows.nbytes):
            raise Refused("the embed callback failed")
        return rows.astype(np.float32)

    def output(self, state: LLMOutputCallbackState) -> None:
        """Tell of the end of a step.

        :raises Refused: the callback failed.
        """
        record = self._record
        if self._output and self._output(
            record.output_userdata,
            record.output_tensors,
            record.n_output_tensors,
            state,
        ):
            raise Refused("the output callback failed")

    def sample(self, logits: np.ndarray) -> int:
        """The next token; without a callback the likeliest, whatever the parameters.

        :param logits: float32 `[1, vocab]`.
        :raises Refused: the callback failed, or chose no token.
        """
        if not self._sampling:
            return int(logits.argmax())
        self._logits[...] = logits[0]
        token = self._sampling(
            self._record.sampling_userdata, self._pointer, self._name
        )
        if not 0 <= token < self._vocab:
            raise Refused("the sampling callback returned %d" % token)
        return int(token)

    def result(self, tokens: Sequence[int], state: LLMCallState) -> None:
        """Tell of new tokens, or of the end of a run; what it returns is no matter."""
        if self._result:
            ids = (c_int * len(tokens))(*tokens)
            record = RKLLMResult(ids, len(tokens))
            self._result(self._record.result_userdata, record, state)

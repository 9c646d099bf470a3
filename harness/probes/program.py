"""The nets of a compiled model, driven as the vendor's own program drives them."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import Optional

import numpy as np

from .server import Refused


__all__ = ["Conversation", "Program"]

# What the vendor's masks hold where attention must not look.
MASKED = np.float32(-9984.0)


class Program:
    """The text model: embedding, blocks, lm_head, in prefill and decode form.

    :param runtime: the vendor's `bmrt.Runtime` with a model loaded.
    :raises Refused: the model lacks a net, or is of a kind that is not driven.
    """

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        names = set(runtime.names())
        self.layers = sum(n.startswith("block_cache_") for n in names)
        needed = ["embedding", "embedding_cache", "lm_head"]
        for i in range(max(self.layers, 1)):
            needed += ["block_%d" % i, "block_cache_%d" % i]
        missing = [n for n in needed if n not in names]
        if missing:
            raise Refused("model", "the model has no net %r" % missing[0])
        prefill, decode = runtime.net("block_0"), runtime.net("block_cache_0")
        if len(prefill.inputs) != 3 or len(decode.inputs) != 5:
            raise Refused(
                "model", "block_0 takes %d inputs, not 3" % len(prefill.inputs)
            )
        _, self.max_input, self.hidden = prefill.inputs[0].shape
        self.history = tuple(decode.inputs[3].shape)
        self.max_context = self.history[1]
        self.vocab = int(runtime.net("lm_head").outputs[0].shape[-1])
        self.dtype = str(prefill.inputs[0].dtype)
        self._causal = np.triu(
            np.full((self.max_input, self.max_input), MASKED, np.float32), 1
        )
        self._prefill: Dict[int, List[np.ndarray]] = {}

    def check(self, tokens: np.ndarray) -> None:
        """Refuse ids outside the vocabulary."""
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise Refused("token", "a token id is outside 0 to %d" % (self.vocab - 1))

    def inputs_of(self, n: int) -> List[np.ndarray]:
        """Positions i32 `[3, S]` and mask f32 `[1, 1, S, S]` of n tokens.

        Rows and columns behind the tokens are masked; text repeats the position in
        all three rows.
        """
        if n not in self._prefill:
            positions = np.zeros((3, self.max_input), np.int32)
            positions[:, :n] = np.arange(n)
            mask = self._causal.copy()
            mask[n:] = MASKED
            # One length at a time: prompts of a set come one after another, and a
            # mask of 2,048 tokens has 16 MB.
            self._prefill = {n: [positions, mask[None, None]]}
        return self._prefill[n]

    def logits(self, states: np.ndarray, out: np.ndarray) -> None:
        """Logits of each row of states f32 `[t, hidden]` into out f32 `[t, vocab]`."""
        for i, row in enumerate(states):
            out[i] = self.runtime.launch("lm_head", [row[None]])[0].reshape(-1)


class Conversation:
    """One KV cache, and what is computed on top of it.

    After `score` it holds the prompt and all but the last continuation token, after
    `generate` the prompt and all but the last new token: the last one is put out and
    never put in, as in the vendor's program. A call that fails leaves the cache as
    it was.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._length = 0
        self._used = 0  # rows of the cache that may not be zero
        # K and V of each layer, f32 [1, SEQ, kv_heads, head_dim].
        self._k = [np.zeros(program.history, np.float32) for _ in range(program.layers)]
        self._v = [np.zeros(program.history, np.float32) for _ in range(program.layers)]
        self._mask = np.zeros((1, 1, 1, program.max_context + 1), np.float32)
        self._positions = np.zeros((3, 1), np.int32)

    def reset(self) -> None:
        """Empty the cache; also of what a non-finite adapter left in masked rows."""
        self._drop(0)

    def close(self) -> None:
        """Nothing to give back but memory of our own."""

    def score(
        self, prompt: np.ndarray, continuation: np.ndarray, phase: str, keep: bool
    ) -> np.ndarray:
        """Teacher-forced logits, f32 `[t, vocab]`; without `keep` on an empty cache.

        On an empty cache the prompt goes through prefill, in phase `prefill` the
        continuation too; on any other all tokens go through decode, since the prefill
        nets take no history.

        :param prompt: int32 `[n]`. :param continuation: int32 `[t]`.
        :raises Refused: too long, or an id outside the vocabulary.
        """
        program = self._program
        tokens = np.concatenate([prompt, continuation[:-1]])
        program.check(tokens)
        program.check(continuation)
        rows = len(continuation)
        out = np.empty((rows, program.vocab), np.float32)
        if not keep:
            self.reset()
        one_piece = self._length == 0 and phase == "prefill"
        ahead = len(tokens) if one_piece else len(prompt)
        self._check_length(len(tokens), ahead)
        before = self._length
        try:
            states = self._feed(tokens[:ahead], 1 + ahead - len(prompt))
            program.logits(states, out)
            for i in range(len(states), rows):
                state = self._decode(int(continuation[i - 1]))
                program.logits(state, out[i : i + 1])
        except BaseException:
            self._drop(before)
            raise
        return out

    def generate(self, prompt: np.ndarray, n: int, keep: bool) -> np.ndarray:
        """`n` greedy tokens, int32; of equal logits the lowest id.

        :raises Refused: as `score`.
        """
        program = self._program
        program.check(prompt)
        if not keep:
            self.reset()
        self._check_length(len(prompt) + n - 1, len(prompt))
        before = self._length
        out = np.empty((1, program.vocab), np.float32)
        tokens: List[int] = []
        try:
            state = self._feed(prompt, 1)
            while True:
                program.logits(state, out)
                tokens.append(int(out[0].argmax()))
                if len(tokens) == n:
                    break
                state = self._decode(tokens[-1])
        except BaseException:
            self._drop(before)
            raise
        return np.array(tokens, np.int32)

    def _check_length(self, tokens: int, ahead: int) -> None:
        program = self._program
        if self._length == 0 and ahead > program.max_input:
            raise Refused(
                "too-long",
                "%d tokens, prefill takes %d" % (ahead, program.max_input),
            )
        if self._length + tokens > program.max_context:
            raise Refused(
                "too-long",
                "%d tokens after %d, the context has %d"
                % (tokens, self._length, program.max_context),
            )

    def _feed(self, tokens: np.ndarray, last: int) -> np.ndarray:
        """Put tokens in; states of the `last` of them, f32 `[last, hidden]`."""
        if self._length == 0:
            return self._prefill(tokens, last)
        state: Optional[np.ndarray] = None
        for token in tokens:
            state = self._decode(int(token))
        assert state is not None and last == 1
        return state

    def _prefill(self, tokens: np.ndarray, last: int) -> np.ndarray:
        program, n = self._program, len(tokens)
        ids = np.zeros((1, program.max_input), np.int32)
        ids[0, :n] = tokens
        states = program.runtime.launch("embedding", [ids])[0]
        others = program.inputs_of(n)
        self._used = max(self._used, n)
        for i in range(program.layers):
            states, k, v = program.runtime.launch("block_%d" % i, [states, *others])
            self._k[i][:, :n] = k[:, :n]
            self._v[i][:, :n] = v[:, :n]
        self._length = n
        return np.asarray(states[0, n - last : n])

    def _decode(self, token: int) -> np.ndarray:
        """Put one token in; its state, f32 `[1, hidden]`."""
        program, at = self._program, self._length
        states = program.runtime.launch(
            "embedding_cache", [np.array([[token]], np.int32)]
        )[0]
        self._positions[:] = at
        # The last column is the token itself; history is seen up to it.
        self._mask[..., :at] = 0
        self._mask[..., at:-1] = MASKED
        self._used = max(self._used, at + 1)
        for i in range(program.layers):
            states, k, v = program.runtime.launch(
                "block_cache_%d" % i,
                [states, self._positions, self._mask, self._k[i], self._v[i]],
            )
            self._k[i][:, at] = k[:, 0]
            self._v[i][:, at] = v[:, 0]
        self._length = at + 1
        return np.asarray(states[0])

    def _drop(self, length: int) -> None:
        """Forget what lies behind the first `length` tokens.

        A masked value still is multiplied by zero, so what stays there must be
        finite.
        """
        for cache in self._k + self._v:
            cache[:, length : self._used] = 0
        self._length = self._used = length

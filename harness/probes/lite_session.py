"""A session of an RK1828: prompts as ids in, teacher-forced logits out."""

from __future__ import annotations

import os
from typing import Callable

import numpy as np

from .callbacks import Callbacks
from .callbacks import Chooser
from .callbacks import Forced
from .callbacks import Greedy
from .lite import Lite
from .server import Refused


__all__ = ["LiteSession"]

# Stands for the ids that the tokenizer callback hands out.
TEXT = "-"
# The name of the output in the vendor's exports of vision-language models; with one
# output it decides nothing. Lite puts it into a `char *`, so bytes.
LOGITS = b"logits"


class LiteSession:
    """One of the card's sessions; see `board.Conversation`.

    A call that fails on the way leaves in the cache what the runtime left there.

    :param index: its number on the card.
    :param embedding: fp16 `[vocab, hidden]`.
    :param context: tokens to ask for.
    :param closed: called when it was given back.
    :raises Refused: the runtime gives none.
    """

    def __init__(
        self,
        lite: Lite,
        index: int,
        embedding: np.ndarray,
        context: int,
        closed: Callable[[int], None],
    ) -> None:
        self._lite = lite
        self.index = index
        self._vocab = len(embedding)
        self._context = context
        self._closed = closed
        self._callbacks = Callbacks(lite.api, embedding)
        lite.do(
            "init_llm_session",
            llm_args=[self._arguments()],
            llm_callback=self._callbacks.record,
            session_index=index,
        )
        try:
            lite.do("set_chat_template", "", "", "", session_index=index)
            # Full means refused: the default drops the oldest tokens silently.
            policy = lite.types.RKNN3KVCachePolicy.RKNN3_KVCACHE_POLICY_NORMAL
            lite.do("set_kvcache_policy", policy, session_index=index)
        except BaseException:
            lite.release(index)
            raise

    def _arguments(self) -> dict:
        """Penalties are neutral, since they may come before the sampling callback."""
        return {
            "max_new_tokens": self._context,
            "top_k": 1,
            "top_p": 1.0,
            "temperature": 1.0,
            "repeat_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "vocab_size": self._vocab,
            "special_bos_id": -1,
            "special_eos_id": -1,
            "linefeed_id": -1,
            "skip_special_token": False,
            "ignore_eos_token": True,
            "max_context_len": self._context,
            "keep_history": 0,
            "logits_name": LOGITS,
        }

    @property
    def granted(self) -> int:
        """Tokens that the session has room for: the runtime maps a length that was
        not compiled to another one, with no more than a line in its log."""
        return int(self._lite.state(self.index).n_max_tokens)

    def score(
        self, prompt: np.ndarray, continuation: np.ndarray, phase: str, keep: bool
    ) -> np.ndarray:
        """Teacher-forced logits, f32 `[t, vocab]`.

        The prefill graph shows its last position only, so in phase `prefill` each row
        is a run of its own, with the cache cleared in between.
        """
        rows = len(continuation)
        self._check(prompt)
        self._check(continuation)
        self._check_length(len(prompt) + rows - 1, keep)
        if phase == "decode" or rows == 1:
            return self._forced(prompt, continuation, keep)
        if keep:
            raise Refused(
                "request", "rows by prefill clear the cache: only one can keep it"
            )
        logits = np.empty((rows, self._vocab), np.float32)
        for i in range(rows):
            if i:
                self.reset()
            fed = np.concatenate([prompt, continuation[:i]])
            logits[i] = self._forced(fed, continuation[i : i + 1], keep)
        return logits

    def _forced(
        self, prompt: np.ndarray, continuation: np.ndarray, keep: bool
    ) -> np.ndarray:
        forced = Forced(continuation, self._vocab)
        self._run(prompt, forced, keep)
        return forced.logits

    def generate(self, prompt: np.ndarray, n: int, keep: bool) -> np.ndarray:
        """`n` greedy tokens, int32; of equal logits the lowest id."""
        self._check(prompt)
        self._check_length(len(prompt) + n - 1, keep)
        greedy = Greedy(n)
        self._run(prompt, greedy, keep)
        return np.array(greedy.tokens, np.int32)

    def _run(self, prompt: np.ndarray, chooser: Chooser, keep: bool) -> None:
        callbacks = self._callbacks
        callbacks.prepare(prompt, chooser)
        try:
            self._lite.do(
                "session_run",
                prompt=TEXT,
                keep_history=keep,
                max_new_tokens=chooser.count,
                enable_thinking=False,
                session_index=self.index,
            )
        except Refused:
            # What a callback could not do is the cause of what the runtime says.
            if not callbacks.failed:
                raise
        callbacks.finish()

    def reset(self) -> None:
        """Empty the cache."""
        policy = self._lite.types.RKNN3KVCacheClearPolicy.RKNN3_KVCACHE_CLEAR_ALL
        self._lite.do("clear_kvcache", policy, session_index=self.index)

    def save(self, path: str) -> None:
        """Write the cache to a file; none is left where that fails."""
        fresh = "%s.%d" % (path, os.getpid())
        try:
            self._lite.do("save_kvcache", fresh, session_index=self.index)
            os.replace(fresh, path)
        except FileNotFoundError as error:
            raise Refused(
                "no-file", "save_kvcache returned 0 without a file"
            ) from error
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)

    def restore(self, path: str) -> None:
        """Take the cache from a file.

        :raises Refused: it is not there, or the runtime does not take it.
        """
        if not os.path.isfile(path):
            raise Refused("no-file", "no cache was kept as %s" % os.path.basename(path))
        self._lite.do("load_kvcache", kvcache_path=path, session_index=self.index)

    def close(self) -> None:
        """Give the session back."""
        self._lite.release(self.index)
        self._closed(self.index)

    def _check(self, tokens: np.ndarray) -> None:
        if tokens.min() < 0 or tokens.max() >= self._vocab:
            raise Refused("token", "a token id is outside 0 to %d" % (self._vocab - 1))

    def _check_length(self, tokens: int, keep: bool) -> None:
        held = int(self._lite.state(self.index).n_total_tokens) if keep else 0
        if held + tokens > self._context:
            raise Refused(
                "too-long",
                "%d tokens after %d, the context has %d"
                % (tokens, held, self._context),
            )

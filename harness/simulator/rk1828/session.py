"""One conversation: its parameters, its cache, its adapters, its runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import NamedTuple
from typing import Sequence

import numpy as np

from .cache import Cache
from .cache import Saved
from .cache import size_of
from .callbacks import Callbacks
from .constants import MAX_SPECIAL_IDS
from .constants import LLMCallState
from .constants import LLMOutputCallbackState
from .constants import RKNN3KVCachePolicy
from .device import Origin
from .device import Refused
from .records import RKLLMCallback
from .records import RKNN3LLMParam


if TYPE_CHECKING:
    from .context import Context


__all__ = ["Counts", "Defaults", "Session", "Template", "record_of"]

SAMPLING = (
    "top_k",
    "top_p",
    "temperature",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
)
VOCABULARY = ("vocab_size", "linefeed_id", "skip_special_token", "ignore_eos_token")


class Counts(NamedTuple):
    """Tokens of a session's last run, and its time on the host's clock in seconds."""

    reused: int
    prefill: int
    decode: int
    start: float
    end: float
    input: Sequence[int] = ()
    output: Sequence[int] = ()


class Defaults(NamedTuple):
    """What `session_run` takes where a call does not say."""

    max_new_tokens: int = 128
    keep_history: int = 0


class Template(NamedTuple):
    """Texts around a prompt: system and prefix before it, postfix behind it.

    By default those of the Qwen3-VL models.
    """

    system: bytes = b""
    prefix: bytes = b"<|im_start|>user\n"
    postfix: bytes = b"<|im_end|>\n<|im_start|>assistant\n"


class Session:
    """A session of a context, its cache preallocated.

    :param index: its number in the package.
    :param param: a context length that is not compiled in is replaced by another.
    :raises Refused: the device has no memory for its cache, or the parameters are
        of another model.
    """

    def __init__(
        self,
        context: Context,
        index: int,
        param: RKNN3LLMParam,
        callback: RKLLMCallback,
    ) -> None:
        self._context = context
        self._device = context.device
        self._file = context.model.file
        self.index = index
        vocab = self._file.architecture.vocab
        if param.vocab_info.vocab_size not in (0, vocab):
            raise Refused(
                "vocab_size is %d, not %d" % (param.vocab_info.vocab_size, vocab)
            )
        self.param = param
        self._callbacks = Callbacks(callback, param.logits_name, vocab)
        capacity = self._capacity(param.max_context_len)
        self._memory = context.nodes.take(size_of(self._file, capacity))
        self.cache = Cache(self._file, capacity)
        # What it enabled itself: scale by name, in order of enabling.
        self.configured: Dict[str, float] = {}
        self.policy = RKNN3KVCachePolicy.RKNN3_KVCACHE_POLICY_DEFAULT
        self.template = Template()
        self.counts = Counts(0, 0, 0, 0.0, 0.0)
        self._stopped = False

    def close(self) -> None:
        """Give its memory back."""
        self._context.nodes.give(self._memory)

    def stop(self) -> None:
        """End the run that goes on, after its step."""
        self._stopped = True

    def run(self, prompt: bytes, keep_history: bool, most: int) -> None:
        """Prefill the prompt and choose up to `most` tokens after it.

        The last one that is chosen is put out and not put into the cache. A run ends
        early where it is stopped, at an end-of-text id, and at the end of the
        context.

        :raises Refused: it does not fit the context, or a callback failed. The cache
            then holds what was computed so far.
        """
        self._stopped = False
        start = time.time()
        tokens = self._tokens(prompt, keep_history)
        if keep_history:
            reused, new = len(self.cache), tokens
        else:
            reused = min(self._device.reused(self, tokens), len(tokens) - 1)
            new = tokens[reused:]
        if reused + len(new) > self.cache.capacity:
            raise Refused(
                "%d tokens, the context has %d"
                % (reused + len(new), self.cache.capacity)
            )
        self.cache.cut(reused)
        output: List[int] = []
        self.counts = Counts(reused, len(new), 0, start, start, tokens, output)
        try:
            state = self._generate(new, output, most)
        except Refused:
            self._callbacks.result((), LLMCallState.RKLLM_RUN_ERROR)
            raise
        finally:
            self.counts = self.counts._replace(
                decode=max(len(output) - 1, 0), end=time.time()
            )
        self._callbacks.result((), state)

    @property
    def origin(self) -> Origin:
        """What its cache is computed with."""
        scales = self._device.enabled(self, self._context.configured)
        return Origin(self._file.digest, self._context.adapters.origin(scales))

    def save(self) -> Saved:
        """What its cache holds.

        :raises Refused: nothing.
        """
        cache = self.cache
        if not len(cache):
            raise Refused("the cache is empty")
        rows = cache.rows.astype(np.float16)
        return Saved(rows, cache.aged, list(cache.tokens), self.origin)

    def restore(self, saved: Saved) -> None:
        """Hold a saved cache instead of its own.

        :raises Refused: it is longer than the context, of another model, or computed
            with other adapters where that is looked at.
        """
        origin, tokens = self.origin, len(saved.tokens)
        if tokens > self.cache.capacity:
            raise Refused("%d tokens of %d" % (tokens, self.cache.capacity))
        if saved.origin.model != origin.model:
            raise Refused("the cache is of another model")
        if not self._device.takes(saved.origin, origin):
            raise Refused("the cache was computed with other adapters or scales")
        self.cache.fill(saved.rows, saved.aged, saved.tokens)

    def _capacity(self, wanted: int) -> int:
        compiled = self._file.context_lengths
        granted = self._device.capacity(wanted or max(compiled), compiled)
        if wanted not in (0, granted):
            text = "W: no context of %d tokens, taking %d" % (wanted, granted)
            self._device.say(text)
        return granted

    def _tokens(self, prompt: bytes, keep_history: bool) -> List[int]:
        template = self.template
        # A conversation that goes on has its system text already.
        ahead = b"" if keep_history and len(self.cache) else template.system
        text = ahead + template.prefix + prompt + template.postfix
        return self._callbacks.tokens(text, self.cache.capacity)

    def _generate(self, new: List[int], output: List[int], most: int) -> LLMCallState:
        model, cache, callbacks = self._context.model, self.cache, self._callbacks
        # The configuration is applied anew at every run.
        enabled = self._context.enabled(self)
        vocabulary = self.param.vocab_info
        ends = vocabulary.special_eos_id[: vocabulary.n_special_eos_id]
        logits = model.prefill(new, self._embeddings(new), cache, enabled)
        callbacks.output(LLMOutputCallbackState.RKLLM_PREFILL_FINISHED)
        while len(output) < most:
            token = callbacks.sample(logits)
            output.append(token)
            callbacks.result((token,), LLMCallState.RKLLM_RUN_NORMAL)
            if self._stopped:
                return LLMCallState.RKLLM_RUN_STOP
            if token in ends and not vocabulary.ignore_eos_token:
                return LLMCallState.RKLLM_RUN_FINISH
            if len(output) == most or len(cache) == cache.capacity:
                break
            logits = model.decode(token, self._embeddings([token]), cache, enabled)
            callbacks.output(LLMOutputCallbackState.RKLLM_DECODE_PROCESSING)
        return LLMCallState.RKLLM_RUN_MAX_NEW_TOKEN_REACHED

    def _embeddings(self, tokens: Sequence[int]) -> np.ndarray:
        hidden = self._file.architecture.hidden
        return self._callbacks.embeddings(tokens, self._context.table, hidden)


def record_of(arguments: Mapping[str, Any]) -> RKNN3LLMParam:
    """The C record of an entry of `llm_args`, without what `Defaults` holds.

    :raises Refused: an argument there is not, or of another type; `logits_name` is
        bytes in version 1.1.0.
    """
    record = RKNN3LLMParam()
    special: Dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            if name in SAMPLING:
                setattr(record.sampling_param, name, value)
            elif name in VOCABULARY:
                setattr(record.vocab_info, name, value)
            elif name in ("logits_name", "max_context_len"):
                setattr(record, name, value)
            elif name in ("special_bos_id", "special_eos_id"):
                special[name] = [value] if isinstance(value, int) else list(value)
            elif name not in Defaults._fields:
                raise Refused("llm_args has no %r" % name)
        except TypeError as error:
            raise Refused("llm_args %r: %s" % (name, error)) from None
    for name, ids in special.items():
        if len(ids) > MAX_SPECIAL_IDS:
            raise Refused("%d of %s" % (len(ids), name))
        getattr(record.vocab_info, name)[: len(ids)] = ids
        setattr(record.vocab_info, "n_%s" % name, len(ids))
    return record

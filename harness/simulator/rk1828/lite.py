"""The vendor's Python package for a host, `rknn3lite`, on a simulated RK1828.

Every call returns 0 or a value; one that fails says why on stderr and returns -1, or
None where it would return a value, as the vendor's package does, which catches all
exceptions. While a run goes on, everything but a query and `session_stop` fails.
Arguments that are not public, and their defaults, are assumptions.
"""

from __future__ import annotations

import os
from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import Optional
from typing import Sequence
from typing import Tuple
from typing import Union

from . import queries
from .cache import packed
from .cache import unpacked
from .calls import call
from .calls import content
from .calls import nothing
from .constants import RKNN3KVCacheClearPolicy
from .constants import RKNN3KVCachePolicy
from .context import Context
from .device import Refused
from .loras import LoraCalls
from .modelfile import ModelFile
from .records import RKLLMCallback
from .records import RKLLMRunState
from .records import RKNN3KVCachePolicyParam
from .records import RKNN3LLMParam
from .session import Defaults
from .session import Template
from .session import record_of


__all__ = ["RKNN3Lite"]

TARGETS = ("rk1820", "rk1828")
DEVICE_ID = "simulated:0"

Timing = List[float]
"""`[n_decode, n_prefill, t_start, t_end]`, times on the host's clock in seconds."""


class RKNN3Lite(LoraCalls):
    """One model on the card.

    :param verbose: accepted and without effect, like `verbose_file`.
    """

    def __init__(
        self,
        llm_mode: bool = False,
        verbose: bool = False,
        verbose_file: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._llm_mode = llm_mode
        self._model: Optional[Tuple[ModelFile, int]] = None
        self._defaults: Dict[int, Defaults] = {}

    # The model

    @call()
    def load_rknn(self, model_path: str, weight_path: str) -> int:
        """Read a compiled model and its weights."""
        if not self._llm_mode:
            raise Refused("only language models are simulated: llm_mode=True")
        file = ModelFile(model_path, weight_path)
        self._model = (file, os.path.getsize(weight_path))
        self.device.say("loaded %s" % model_path)
        return 0

    @call()
    def init_runtime(
        self,
        target: Optional[str] = None,
        core_mask: int = 0xFF,
        llm_args: Optional[Sequence[Mapping[str, Any]]] = None,
        llm_callback: Optional[RKLLMCallback] = None,
        llm_embed_path: Optional[str] = None,
        device_id: Optional[str] = None,
        decrypt_key_path: Optional[str] = None,
        decrypt_key_data: Optional[bytes] = None,
    ) -> int:
        """Bring the model onto the card; with `llm_args`, session 0 too.

        :param llm_embed_path: the embedding, for sessions without a callback for it.
        """
        if self._model is None:
            raise Refused("no model is loaded")
        if self.running is not None:
            raise Refused("the runtime is initialised already")
        if target not in TARGETS or device_id not in (None, DEVICE_ID):
            raise Refused("no device %r of target %r" % (device_id, target))
        if decrypt_key_path or decrypt_key_data:
            raise Refused("the model is not encrypted")
        version = queries.sdk_version(self.device.policy)
        if version.api_version != version.drv_version:
            raise Refused(
                "library %r and driver %r are of different versions"
                % (version.api_version, version.drv_version)
            )
        file, size = self._model
        table = file.embedding(llm_embed_path) if llm_embed_path else None
        context = Context(file, size, table, self.device)
        if llm_args is not None:
            self._open(context, llm_args, llm_callback, 0)
        self.running = context
        self.device.say("initialised on %s, core mask 0x%x" % (DEVICE_ID, core_mask))
        return 0

    @call(failed=nothing, alone=False)
    def rknn3_query(self, cmd: int, index: int = 0) -> Any:
        """A record, as `RKNN3QueryCmd` names it; index counts cores."""
        return queries.answer(self.context, cmd, index)

    @call(failed=nothing, alone=False)
    def get_sdk_version(self) -> str:
        """Versions of library and driver, as a text to read."""
        version = queries.sdk_version(self.context.device.policy)
        texts = version.api_version.decode(), version.drv_version.decode()
        return "API: %s DRV: %s" % texts

    @call(failed=nothing, alone=False)
    def get_devices_id(self) -> List[str]:
        """Names of the cards."""
        return [DEVICE_ID]

    @call(alone=False)
    def profile_mem(self) -> int:
        """Print each node's memory."""
        nodes = self.context.nodes
        for i, (total, free) in enumerate(zip(nodes.totals, nodes.free)):
            self.device.say("node %d: %d of %d bytes free" % (i, free, total))
        return 0

    @call()
    def release(self, session_index: Optional[int] = None) -> int:
        """End a session, or everything."""
        if session_index is not None:
            self.context.close(session_index)
        else:
            self.running = self._model = None
        return 0

    # Sessions

    @call()
    def init_llm_session(
        self,
        llm_args: Sequence[Mapping[str, Any]],
        llm_callback: Optional[RKLLMCallback] = None,
        session_index: int = 0,
    ) -> int:
        """Open a session, its cache preallocated."""
        self._open(self.context, llm_args, llm_callback, session_index)
        return 0

    @call()
    def set_chat_template(
        self,
        system_prompt: str,
        prompt_prefix: str,
        prompt_postfix: str,
        session_index: int = 0,
    ) -> int:
        """Texts around a prompt; without this call those of the model."""
        texts = (system_prompt, prompt_prefix, prompt_postfix)
        template = Template(*map(_bytes, texts))
        self.context.session(session_index).template = template
        return 0

    @call()
    def set_llm_param(
        self, param: RKNN3LLMParam, n_params: int = 1, session_index: int = 0
    ) -> int:
        """Other parameters; name of the logits and context length stay."""
        self.context.session(session_index).param = param
        return 0

    @call(failed=lambda code: (code, None))
    def session_run(
        self,
        prompt: Optional[Union[str, bytes]] = None,
        tokens: Any = None,
        embeds: Any = None,
        inputs: Any = None,
        keep_history: Optional[int] = None,
        max_new_tokens: Optional[int] = None,
        enable_thinking: bool = False,
        prefill_only: bool = False,
        disable_sampling: bool = False,
        session_index: int = 0,
    ) -> Tuple[int, Timing]:
        """Run a prompt; of a model with M-RoPE it takes nothing but text.

        :param keep_history: 0 begins a new conversation, on an empty cache.
        :param disable_sampling: as `prefill_only`.
        """
        session = self.context.session(session_index)
        if prompt is None or not (tokens is None and embeds is None and inputs is None):
            raise Refused("a model with M-RoPE takes a prompt as text alone")
        defaults = self._defaults[session_index]
        keep = defaults.keep_history if keep_history is None else keep_history
        most = defaults.max_new_tokens if max_new_tokens is None else max_new_tokens
        if most < 1:
            raise Refused("max_new_tokens is %d" % most)
        most = 0 if prefill_only or disable_sampling else most
        session.run(_bytes(prompt), bool(keep), most)
        counts = session.counts
        return 0, [counts.decode, counts.prefill, counts.start, counts.end]

    @call(alone=False)
    def session_stop(self, session_index: int = 0) -> int:
        """End the session's run after its step."""
        self.context.session(session_index).stop()
        return 0

    @call(failed=nothing, alone=False)
    def session_query_state(self, session_index: int = 0) -> RKLLMRunState:
        """Counts of the last run, and the adapters that take effect."""
        return queries.state(self.context, self.context.session(session_index))

    # The cache

    @call()
    def clear_kvcache(
        self,
        policy: int = RKNN3KVCacheClearPolicy.RKNN3_KVCACHE_CLEAR_ALL,
        session_index: int = 0,
    ) -> int:
        """Empty a session's cache; keeping a system prompt is not simulated."""
        if policy != RKNN3KVCacheClearPolicy.RKNN3_KVCACHE_CLEAR_ALL:
            raise Refused("policy %d is not simulated" % policy)
        self.device.cleared(self.context.session(session_index))
        return 0

    @call()
    def set_kvcache_policy(
        self,
        policy: int,
        param: Optional[RKNN3KVCachePolicyParam] = None,
        session_index: int = 0,
    ) -> int:
        """What becomes of a full cache: reported, and the run ends all the same."""
        self.context.session(session_index).policy = RKNN3KVCachePolicy(policy)
        return 0

    @call()
    def save_kvcache(self, kvcache_path: str, session_index: int = 0) -> int:
        """Write a session's cache to a file."""
        data = packed(self.context.session(session_index).save())
        with open(kvcache_path, "wb") as file:
            file.write(data)
        return 0

    @call()
    def load_kvcache(
        self,
        kvcache_path: Optional[str] = None,
        kvcache_data: Any = None,
        size: int = 0,
        session_index: int = 0,
    ) -> int:
        """Take a session's cache from a file, or from its content in memory."""
        data = content(kvcache_path, kvcache_data, size)
        self.context.session(session_index).restore(unpacked(data))
        return 0

    def _open(
        self,
        context: Context,
        llm_args: Sequence[Mapping[str, Any]],
        callback: Optional[RKLLMCallback],
        index: int,
    ) -> None:
        if len(llm_args) != 1 or callback is None:
            raise Refused("a session takes one entry of llm_args, and llm_callback")
        (arguments,) = llm_args
        context.open(index, record_of(arguments), callback)
        given = {n: v for n, v in arguments.items() if n in Defaults._fields}
        self._defaults[index] = Defaults(**given)


def _bytes(text: Union[str, bytes]) -> bytes:
    return text if isinstance(text, bytes) else text.encode()

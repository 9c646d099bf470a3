"""What the runtime says of itself, in the vendor's records."""

from __future__ import annotations

from ctypes import POINTER
from ctypes import c_int32
from ctypes import c_uint32
from ctypes import cast
from typing import Any
from typing import Callable
from typing import Dict
from typing import Mapping
from typing import Sequence

from .cache import size_of
from .constants import MAX_LORA_NUM
from .constants import RKNN3KVCacheDtype
from .constants import RKNN3LLMTaskType
from .constants import RKNN3QueryCmd
from .context import Context
from .device import Refused
from .device import share
from .policy import Policy
from .records import RKLLMRunState
from .records import RKNN3DevMemInfo
from .records import RKNN3KVCacheLenGroupInfo
from .records import RKNN3LLMConfig
from .records import RKNN3Lora
from .records import RKNN3SDKVersion
from .session import Session
from .session import Template


__all__ = ["adapters", "answer", "sdk_version", "state"]

CORES = 8
VERSION = b"1.1.0"
# Another one, for a board whose firmware was left behind.
OLDER = b"1.0.4"


def sdk_version(policy: Policy) -> RKNN3SDKVersion:
    """Versions of library and driver."""
    return RKNN3SDKVersion(VERSION, VERSION if policy.version == "match" else OLDER)


def answer(context: Context, cmd: int, index: int) -> Any:
    """The record of a query.

    :param index: of a core, where each has its own.
    :raises Refused: no such query here, or no such core.
    """
    if cmd not in _ANSWERS:
        raise Refused("query %r is not simulated" % cmd)
    if not 0 <= index < CORES:
        raise Refused("no core %r" % index)
    return _ANSWERS[cmd](context, index)


def adapters(context: Context) -> Any:
    """Descriptors of what the bundle offers, `RKNN3Lora[32]`."""
    scale = context.device.policy.default_scale
    return _array({name: scale for name in context.adapters.names})


def state(context: Context, session: Session) -> RKLLMRunState:
    """What a session holds, what its last run did, and which adapters it uses.

    The descriptors lie in memory of the record's own, where the C interface wants
    the caller's.
    """
    device, counts = context.device, session.counts
    scales = device.reported(session, device.enabled(session, context.configured))
    return RKLLMRunState(
        n_total_tokens=len(session.cache),
        n_reuse_tokens=counts.reused,
        n_max_tokens=session.cache.capacity,
        n_prefill_tokens=counts.prefill,
        n_decode_tokens=counts.decode,
        n_input_tokens=len(counts.input),
        n_output_tokens=len(counts.output),
        input_tokens=_ids(counts.input),
        output_tokens=_ids(counts.output),
        kvcache_policy=session.policy,
        n_loras_enabled=len(scales),
        loras_enabled=cast(_array(scales), POINTER(RKNN3Lora)),
    )


def _array(scales: Mapping[str, float]) -> Any:
    records = [RKNN3Lora(name.encode(), scale) for name, scale in scales.items()]
    return (RKNN3Lora * MAX_LORA_NUM)(*records)


def _ids(tokens: Sequence[int]) -> Any:
    return cast((c_int32 * len(tokens))(*tokens), POINTER(c_int32))


def _version(context: Context, core: int) -> RKNN3SDKVersion:
    return sdk_version(context.device.policy)


def _memory(context: Context, core: int) -> RKNN3DevMemInfo:
    # The system's own figures are of no use on boards either.
    record = RKNN3DevMemInfo(len(context.nodes.totals), 0, 0)
    for i, node in enumerate(zip(context.nodes.totals, context.nodes.free)):
        record.node_mem_info[i] = node
    return record


def _cores(context: Context, core: int) -> c_uint32:
    return c_uint32(CORES)


def _config(context: Context, core: int) -> RKNN3LLMConfig:
    file = context.model.file
    lengths = file.context_lengths
    record = RKNN3LLMConfig(
        chat_template=b"%s".join(Template()[1:]),
        vocab_size=file.architecture.vocab,
        embedding_dim=file.architecture.hidden,
        max_ctx_len=max(lengths),
        max_position_embeddings=max(lengths),
        kvcache_dtype=RKNN3KVCacheDtype.RKNN3_KVCACHE_INT4_TO_F16,
        kvcache_group_size=file.kv_group,
        kvcache_residual_depth=file.kv_residual,
        model_type=b"qwen3_vl",
        task_type=RKNN3LLMTaskType.RKNN3_LLM_TASK_GENERATE,
        n_attention_kvcache_lens=1,
    )
    attention = record.attention_kvcache_lens[0]
    attention.n_lens = len(lengths)
    attention.lens[: len(lengths)] = lengths
    return record


def _count(context: Context, core: int) -> c_uint32:
    return c_uint32(len(context.adapters.names))


def _descriptors(context: Context, core: int) -> Any:
    return adapters(context)


def _groups(context: Context, core: int) -> RKNN3KVCacheLenGroupInfo:
    file = context.model.file
    sizes = [share(size_of(file, n)) for n in file.context_lengths]
    record = RKNN3KVCacheLenGroupInfo(core, len(sizes), 0)
    record.kvcache_sizes[: len(sizes)] = sizes
    return record


_ANSWERS: Dict[int, Callable[[Context, int], Any]] = {
    RKNN3QueryCmd.RKNN3_QUERY_SDK_VERSION: _version,
    RKNN3QueryCmd.RKNN3_QUERY_DEVICE_MEM_INFO: _memory,
    RKNN3QueryCmd.RKNN3_QUERY_CORE_NUMBER: _cores,
    RKNN3QueryCmd.RKNN3_QUERY_LLM_CONFIG: _config,
    RKNN3QueryCmd.RKNN3_QUERY_LORA_NUM: _count,
    RKNN3QueryCmd.RKNN3_QUERY_LORA_INFO: _descriptors,
    RKNN3QueryCmd.RKNN3_QUERY_KVCACHE_LEN_GROUP_INFO: _groups,
}

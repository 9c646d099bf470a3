"""Records and callback types of the vendor's C interface 1.1.0, for ctypes.

Names, layouts and sizes are the vendor header's; of a record of which only the size
is public, the parts that fill it are an assumption and marked so.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE
from ctypes import POINTER
from ctypes import Structure
from ctypes import c_bool
from ctypes import c_char
from ctypes import c_char_p
from ctypes import c_float
from ctypes import c_int
from ctypes import c_int32
from ctypes import c_int64
from ctypes import c_uint8
from ctypes import c_uint16
from ctypes import c_uint32
from ctypes import c_uint64
from ctypes import c_void_p

from .constants import MAX_ATTENTION_TYPES
from .constants import MAX_KVCACHE_LEN_GROUPS
from .constants import MAX_NAME_LEN
from .constants import MAX_NODES
from .constants import MAX_SPECIAL_IDS


__all__ = [
    "Float16",
    "LLMGetEmbedCallback",
    "LLMInputCallback",
    "LLMOutputCallback",
    "LLMResultCallback",
    "LLMSamplingCallback",
    "LLMTokenizerCallback",
    "RKLLMCallback",
    "RKLLMResult",
    "RKLLMRunState",
    "RKNN3DevMemInfo",
    "RKNN3KVCacheLenGroupInfo",
    "RKNN3KVCachePolicyParam",
    "RKNN3LLMConfig",
    "RKNN3LLMParam",
    "RKNN3Lora",
    "RKNN3SDKVersion",
    "RKNN3SamplingParam",
    "RKNN3Tensor",
    "RKNN3VocabInfo",
]

Float16 = c_uint16
"""The bits of an fp16 value; ctypes has no type of its own for it."""


class RKNN3Lora(Structure):
    """An adapter as the bundle names it, and the scale to enable it with."""

    _fields_ = [("lora_name", c_char * MAX_NAME_LEN), ("scale", c_float)]


class RKNN3SamplingParam(Structure):
    """How a token is chosen where no callback chooses."""

    _fields_ = [
        ("top_k", c_int32),
        ("top_p", c_float),
        ("temperature", c_float),
        ("repeat_penalty", c_float),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
    ]


class RKNN3VocabInfo(Structure):
    """Sizes and special ids of the vocabulary."""

    _fields_ = [
        ("vocab_size", c_int),
        ("special_bos_id", c_int * MAX_SPECIAL_IDS),
        ("special_eos_id", c_int * MAX_SPECIAL_IDS),
        ("n_special_bos_id", c_int),
        ("n_special_eos_id", c_int),
        ("linefeed_id", c_int),
        ("skip_special_token", c_bool),
        ("ignore_eos_token", c_bool),
        ("reserved", c_uint8 * 64),
    ]


class RKNN3LLMParam(Structure):
    """A session's parameters."""

    _fields_ = [
        ("logits_name", c_char_p),
        ("max_context_len", c_int32),
        ("sampling_param", RKNN3SamplingParam),
        ("vocab_info", RKNN3VocabInfo),
        ("extend_param", c_uint8 * 128),
    ]


class RKLLMResult(Structure):
    """The tokens that a call of the result callback is about."""

    _fields_ = [("token_ids", POINTER(c_int)), ("num_tokens", c_int)]


class RKLLMRunState(Structure):
    """What a session holds, and what its last run did."""

    _fields_ = [
        ("n_total_tokens", c_uint64),
        ("n_reuse_tokens", c_uint64),
        ("n_max_tokens", c_uint64),
        ("n_prefill_tokens", c_uint64),
        ("n_decode_tokens", c_uint64),
        ("n_input_tokens", c_uint64),
        ("n_output_tokens", c_uint64),
        ("input_tokens", POINTER(c_int32)),
        ("output_tokens", POINTER(c_int32)),
        ("kvcache_policy", c_int),
        ("n_loras_enabled", c_int32),
        ("loras_enabled", POINTER(RKNN3Lora)),
    ]


class RKNN3Tensor(Structure):
    """An output's memory and its attributes; opaque here."""

    _fields_ = [("mem", c_void_p), ("attr", c_void_p)]


LLMResultCallback = CFUNCTYPE(c_int, c_void_p, POINTER(RKLLMResult), c_int)
"""`(userdata, result, state)`."""

LLMSamplingCallback = CFUNCTYPE(c_int, c_void_p, POINTER(Float16), c_char_p)
"""`(userdata, logits fp16 [vocab], name) -> the next token`, below 0 an error."""

LLMTokenizerCallback = CFUNCTYPE(
    c_int, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32
)
"""`(userdata, text, its bytes, tokens, room for them) -> their number`."""

LLMGetEmbedCallback = CFUNCTYPE(
    c_int, c_void_p, POINTER(c_int32), c_uint64, c_void_p, c_uint64
)
"""`(userdata, tokens, n, fp16 [n, hidden], its bytes)`, not 0 an error."""

LLMOutputCallback = CFUNCTYPE(c_int, c_void_p, POINTER(RKNN3Tensor), c_uint32, c_int)
"""`(userdata, the caller's tensors, their number, state)`, not 0 an error."""

LLMInputCallback = c_void_p
"""Takes a record by value of which the layout is not public; never called here."""


class RKLLMCallback(Structure):
    """A session's callbacks; those that are NULL are not called."""

    _fields_ = [
        ("result_callback", LLMResultCallback),
        ("result_userdata", c_void_p),
        ("sampling_callback", LLMSamplingCallback),
        ("sampling_userdata", c_void_p),
        ("tokenizer_callback", LLMTokenizerCallback),
        ("tokenizer_userdata", c_void_p),
        ("embed_callback", LLMGetEmbedCallback),
        ("embed_userdata", c_void_p),
        ("output_callback", LLMOutputCallback),
        ("output_userdata", c_void_p),
        ("output_tensors", POINTER(RKNN3Tensor)),
        ("n_output_tensors", c_uint32),
        ("input_callback", LLMInputCallback),
        ("input_userdata", c_void_p),
        ("input_tensors_index", POINTER(c_int32)),
        ("n_input_tensors", c_uint32),
    ]


class _AttentionKVCacheLens(Structure):
    """The compiled context lengths of one kind of attention; an assumption."""

    _fields_ = [
        ("attention_type", c_uint32),
        ("n_lens", c_uint32),
        ("lens", c_uint32 * MAX_KVCACHE_LEN_GROUPS),
    ]


class RKNN3LLMConfig(Structure):
    """What a compiled language model says of itself."""

    _fields_ = [
        ("chat_template", c_char_p),
        ("vocab_size", c_uint32),
        ("embedding_dim", c_uint32),
        ("max_ctx_len", c_uint32),
        ("max_position_embeddings", c_uint32),
        ("kvcache_store_method", c_int),
        ("kvcache_dtype", c_int),
        ("kvcache_group_size", c_uint32),
        ("kvcache_residual_depth", c_uint32),
        ("model_type", c_char_p),
        ("task_type", c_int),
        ("rope_cache_host_storage", c_uint8),
        ("n_attention_kvcache_lens", c_uint32),
        ("attention_kvcache_lens", _AttentionKVCacheLens * MAX_ATTENTION_TYPES),
        ("reserved", c_uint8 * 127),
    ]


class _NodeMemInfo(Structure):
    _fields_ = [("total", c_uint64), ("free", c_uint64)]


class RKNN3DevMemInfo(Structure):
    """Device memory in bytes; the nodes' are exact, the system's are not."""

    _fields_ = [
        ("node_num", c_uint32),
        ("sys_total", c_uint64),
        ("sys_free", c_uint64),
        ("node_mem_info", _NodeMemInfo * MAX_NODES),
    ]


class RKNN3KVCacheLenGroupInfo(Structure):
    """A core's bytes of cache for each compiled context length."""

    _fields_ = [
        ("core_id", c_int32),
        ("n_groups", c_uint32),
        ("active_group_id", c_int32),
        ("kvcache_sizes", c_uint64 * MAX_KVCACHE_LEN_GROUPS),
    ]


class RKNN3SDKVersion(Structure):
    """Versions of library and driver."""

    _fields_ = [
        ("api_version", c_char * MAX_NAME_LEN),
        ("drv_version", c_char * MAX_NAME_LEN),
    ]


class _Recurrent(Structure):
    _fields_ = [("n_keep", c_int64), ("n_keep_aligned", c_int64)]


class _SaveCheckpoint(Structure):
    _fields_ = [
        ("start_pos", c_int64),
        ("interval", c_int64),
        ("max_count", c_int64),
        ("tail_overwrite", c_bool),
    ]


class RKNN3KVCachePolicyParam(Structure):
    """Numbers of the cache policies."""

    _fields_ = [
        ("recurrent", _Recurrent),
        ("save_checkpoint", _SaveCheckpoint),
        ("reserved", c_uint8 * 64),
    ]

"""Constants of the vendor's C interface 1.1.0.

Names of enumerators are ours where the header's are not public: the numbers count.
"""

from __future__ import annotations

from enum import IntEnum


__all__ = [
    "MAX_ATTENTION_TYPES",
    "MAX_KVCACHE_LEN_GROUPS",
    "MAX_LORA_NUM",
    "MAX_NAME_LEN",
    "MAX_NODES",
    "MAX_SPECIAL_IDS",
    "LLMCallState",
    "LLMOutputCallbackState",
    "RKNN3KVCacheClearPolicy",
    "RKNN3KVCacheDtype",
    "RKNN3KVCachePolicy",
    "RKNN3LLMTaskType",
    "RKNN3QueryCmd",
]

MAX_LORA_NUM = 32
MAX_NAME_LEN = 256
MAX_KVCACHE_LEN_GROUPS = 16
MAX_ATTENTION_TYPES = 3
MAX_NODES = 128
MAX_SPECIAL_IDS = 64


class RKNN3QueryCmd(IntEnum):
    """What `rknn3_query` is asked for; those that this device answers."""

    RKNN3_QUERY_SDK_VERSION = 5
    RKNN3_QUERY_DEVICE_MEM_INFO = 12
    RKNN3_QUERY_CORE_NUMBER = 13
    RKNN3_QUERY_LLM_CONFIG = 17
    RKNN3_QUERY_LORA_NUM = 21
    RKNN3_QUERY_LORA_INFO = 22
    RKNN3_QUERY_KVCACHE_LEN_GROUP_INFO = 23


class LLMCallState(IntEnum):
    """Why the result callback is called."""

    RKLLM_RUN_NORMAL = 0
    RKLLM_RUN_WAITING = 1
    RKLLM_RUN_FINISH = 2
    RKLLM_RUN_STOP = 3
    RKLLM_RUN_MAX_NEW_TOKEN_REACHED = 4
    RKLLM_RUN_ERROR = 5
    RKLLM_RUN_PAUSE = 6
    RKLLM_RUN_RESUME = 7


class LLMOutputCallbackState(IntEnum):
    """Which step the output callback follows."""

    RKLLM_PREFILL_PROCESSING = 0
    RKLLM_PREFILL_FINISHED = 1
    RKLLM_DECODE_PROCESSING = 2
    RKLLM_DECODE_FINISHED = 3


class RKNN3LLMTaskType(IntEnum):
    """What a language model is for."""

    RKNN3_LLM_TASK_GENERATE = 0
    RKNN3_LLM_TASK_EMBEDDING = 1
    RKNN3_LLM_TASK_RERANKER = 2


class RKNN3KVCachePolicy(IntEnum):
    """What becomes of the oldest rows of a full cache."""

    RKNN3_KVCACHE_POLICY_DEFAULT = 0
    RKNN3_KVCACHE_POLICY_RECURRENT = 1
    RKNN3_KVCACHE_POLICY_NORMAL = 2
    RKNN3_KVCACHE_POLICY_SAVE_CHECKPOINT = 0x100


class RKNN3KVCacheClearPolicy(IntEnum):
    """What `clear_kvcache` clears."""

    RKNN3_KVCACHE_CLEAR_ALL = 0
    RKNN3_KVCACHE_KEEP_SYSTEM_PROMPT = 1


class RKNN3KVCacheDtype(IntEnum):
    """How old rows of the cache are kept, and what they are computed in."""

    RKNN3_KVCACHE_UNDEFINED = 0
    RKNN3_KVCACHE_INT4_TO_F16 = 1
    RKNN3_KVCACHE_FLOAT16 = 8

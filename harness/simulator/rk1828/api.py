"""What the vendor's `rknn3lite.api` exports, as far as its scripts show."""

from __future__ import annotations

from .constants import RKNN3QueryCmd
from .lite import RKNN3Lite
from .records import LLMGetEmbedCallback
from .records import LLMInputCallback
from .records import LLMOutputCallback
from .records import LLMResultCallback
from .records import LLMSamplingCallback
from .records import LLMTokenizerCallback
from .records import RKLLMCallback


__all__ = [
    "LLMGetEmbedCallback",
    "LLMInputCallback",
    "LLMOutputCallback",
    "LLMResultCallback",
    "LLMSamplingCallback",
    "LLMTokenizerCallback",
    "RKLLMCallback",
    "RKNN3Lite",
    "RKNN3QueryCmd",
]

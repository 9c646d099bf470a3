"""A session's parameters as the package takes them: a dict, or the C record."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import Mapping
from typing import NamedTuple

from .constants import MAX_SPECIAL_IDS
from .records import RKNN3LLMParam
from .refused import Refused


__all__ = ["Defaults", "record_of"]

SAMPLING = (
    "top_k",
    "top_p",
    "temperature",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
)
VOCABULARY = ("vocab_size", "linefeed_id", "skip_special_token", "ignore_eos_token")


class Defaults(NamedTuple):
    """What `session_run` takes where a call does not say."""

    max_new_tokens: int = 128
    keep_history: int = 0


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

"""Attention over a KV cache of int4, for one forward pass over a whole text.

A device feeds a prompt in chunks and a continuation token by token, and turns rows
of its cache to int4 as they grow old. Keys and values of a row do not depend on
that order, so one pass gives the same: every token is shown each row as it was when
that token was fed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.errors import UsageFault
from harness.golden.arithmetic import KvCache


__all__ = ["attention_over", "int4"]


def attention_over(cache: KvCache) -> Callable[..., tuple[Any, None]]:
    """An attention function for `transformers.AttentionInterface`.

    The model is called with `prompt_length`, the tokens of the prompt, and hands it
    on. Sums are taken in float32; scores, weights and output are rounded to the dtype
    of the query. Causal, for one text without padding.
    """

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        *,
        scaling: float,
        prompt_length: int,
        **_: Any,
    ) -> tuple[Any, None]:
        """query `[1, heads, n, d]`, key, value `[1, kv, n, d]` -> `[1, n, heads, d]`.

        The mask is None: transformers makes none for an attention not its own.
        """
        import torch

        dtype, n = query.dtype, query.shape[2]
        q, k, v = query.float(), key.float(), value.float()
        exact = torch.from_numpy(cache.exact(prompt_length, n))
        later = torch.ones(n, n, dtype=torch.bool).triu(1)

        def over(queries: Any, rows: Any) -> Any:
            """Products of each head with the rows of its group."""
            return queries @ rows.repeat_interleave(q.shape[1] // k.shape[1], 1)

        old_k, old_v = int4(k, cache.group), int4(v, cache.group)
        scores = torch.where(exact, over(q, k.mT), over(q, old_k.mT)) * scaling
        scores = scores.masked_fill(later, -torch.inf).to(dtype).float()
        weights = scores.softmax(-1).to(dtype).float()
        mixed = over(weights * exact, v) + over(weights * ~exact, old_v)
        return mixed.to(dtype).transpose(1, 2).contiguous(), None

    return attention


def int4(rows: Any, group: int) -> Any:
    """What a cache of int4 gives back for float32 rows `[..., d]`, same shape.

    Asymmetric in groups along d: the least value is code 0, the largest 15; scale
    and result are float16.

    :raises UsageFault: d is no multiple of the group.
    """
    if rows.shape[-1] % group:
        raise UsageFault(
            f"a head of {rows.shape[-1]} values has no whole groups of {group}",
            where="scheme w4a16",
            cure="this base cannot have a KV cache of int4",
        )
    x = rows.unflatten(-1, (-1, group))
    low = x.amin(-1, keepdim=True)
    scale = ((x.amax(-1, keepdim=True) - low) / 15).half().float()
    scale = scale.masked_fill(scale == 0, 1)  # a group of one value
    codes = ((x - low) / scale).round().clamp(0, 15)
    return (codes * scale + low).half().float().flatten(-2)

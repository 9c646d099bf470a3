"""One pass over a text gives what a device with a KV cache of int4 gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from quantised_base import BASE

from harness.errors import UsageFault
from harness.golden.arithmetic import ARITHMETICS
from harness.golden.arithmetic import KvCache
from harness.golden.arithmetic import scheme_of
from harness.golden.gap import relative_l2
from harness.golden.index import prompts_of


torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from harness.golden.attention import attention_over  # noqa: E402
from harness.golden.attention import int4  # noqa: E402
from harness.golden.reference import load_base  # noqa: E402


pytestmark = pytest.mark.reference

CACHE = ARITHMETICS["w4a16"].cache


@pytest.fixture(scope="module", autouse=True)
def threads():
    torch.set_num_threads(1)


def nearest(x: np.ndarray, group: int) -> np.ndarray:
    """int4 rows `[n, kv, d]` by the plain formula, group by group."""
    result = np.empty_like(x)
    for start in range(0, x.shape[-1], group):
        part = x[..., start : start + group]
        low, high = part.min(-1, keepdims=True), part.max(-1, keepdims=True)
        scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
        scale[scale == 0] = 1
        codes = np.clip(np.rint((part - low) / scale), 0, 15)
        result[..., start : start + group] = (codes * scale + low).astype(np.float16)
    return result


def stepwise(q, k, v, prompt: int, cache: KvCache) -> np.ndarray:
    """Attention with a cache that is filled and aged step by step, `[n, heads, d]`.

    :param q: float32 `[n, heads, d]`; k, v `[n, kv, d]`.
    """
    n, heads, d = q.shape
    ends = [*range(cache.chunk, prompt, cache.chunk), prompt, *range(prompt + 1, n + 1)]
    kept_k, kept_v = np.empty((0, *k.shape[1:])), np.empty((0, *k.shape[1:]))
    rows, old, start = [], 0, 0
    for end in ends:
        kept_k = np.concatenate([kept_k, k[start:end]])
        kept_v = np.concatenate([kept_v, v[start:end]])
        for i in range(start, end):
            for h in range(heads):
                own = h * k.shape[1] // heads
                scores = kept_k[: i + 1, own] @ q[i, h] / np.sqrt(d)
                weights = np.exp(scores - scores.max())
                rows.append(weights / weights.sum() @ kept_v[: i + 1, own])
        aged = slice(old, max(end - cache.residual, old))
        for kept in (kept_k, kept_v):
            kept[aged] = nearest(kept[aged].astype(np.float32), cache.group)
        old, start = aged.stop, end
    return np.array(rows).reshape(n, heads, d)


def one_pass(q, k, v, prompt: int, cache: KvCache, dtype="float32") -> np.ndarray:
    # A leading dimension for the batch, heads before tokens.
    tensors = [
        torch.from_numpy(x).to(getattr(torch, dtype)).transpose(0, 1)[None]
        for x in (q, k, v)
    ]
    attention = attention_over(cache)
    found, _ = attention(
        None, *tensors, None, scaling=q.shape[-1] ** -0.5, prompt_length=prompt
    )
    assert found.dtype == tensors[0].dtype
    return found[0].float().numpy()


def rows_of(seed: int, n: int, heads: int, kv: int, d: int) -> list[np.ndarray]:
    """q, k, v of fp16 values."""
    rng = np.random.default_rng(seed)
    shapes = (n, heads, d), (n, kv, d), (n, kv, d)
    return [
        rng.normal(size=shape).astype(np.float16).astype(np.float32) for shape in shapes
    ]


class TestAttention:
    @settings(max_examples=25, deadline=None)
    @given(
        prompt=st.integers(1, 80),
        continuation=st.integers(0, 40),
        residual=st.integers(0, 40),
        chunk=st.integers(1, 90),
        shape=st.sampled_from([(2, 1, 64), (4, 2, 32), (1, 1, 32)]),
        seed=st.integers(0, 99),
    )
    def test_equals_a_cache_that_ages(
        self, prompt, continuation, residual, chunk, shape, seed
    ):
        cache = KvCache(residual, group=32, chunk=chunk)
        q, k, v = rows_of(seed, prompt + continuation, *shape)
        found = one_pass(q, k, v, prompt, cache)
        assert np.abs(found - stepwise(q, k, v, prompt, cache)).max() <= 1e-5

    def test_prompt_of_several_chunks_on_the_device_itself(self):
        q, k, v = rows_of(0, 300, 2, 1, 64)
        found = one_pass(q, k, v, 270, CACHE)
        assert np.abs(found - stepwise(q, k, v, 270, CACHE)).max() <= 1e-5

    @pytest.mark.parametrize("residual", [31, 33])
    def test_one_row_more_or_less_is_seen(self, residual):
        q, k, v = rows_of(1, 80, 2, 1, 64)
        found = one_pass(q, k, v, 40, CACHE)
        other = stepwise(q, k, v, 40, KvCache(residual, group=32, chunk=128))
        assert np.abs(found - other).max() > 1e-3

    def test_output_of_a_float16_device_is_rounded_once(self):
        q, k, v = rows_of(2, 60, 2, 1, 64)
        exact = one_pass(q, k, v, 20, CACHE)
        found = one_pass(q, k, v, 20, CACHE, "float16")
        assert 0 < relative_l2(found[:, 0], exact[:, 0]) <= 1e-3

    def test_head_without_whole_groups_is_refused(self):
        q, k, v = rows_of(3, 4, 1, 1, 48)
        with pytest.raises(UsageFault, match="no whole groups of 32"):
            one_pass(q, k, v, 2, CACHE)


def test_int4_keeps_the_ends_of_a_group_and_a_group_of_one_value():
    rows = torch.tensor([[0.5] * 32 + [-1.0] * 31 + [2.75]])
    assert torch.equal(int4(rows, 32), rows)


def test_model_answers_as_one_that_decodes_with_a_cache():
    """The whole fixture in float32, against its own decoding token by token."""
    (prompt,) = prompts_of(BASE.parent / "golden")[0].few(1, 40)
    ids = torch.tensor([prompt.tokens + prompt.continuation])
    model = load_base(BASE, "w4a16").float()
    plain = load_base(BASE, "float32")
    plain.load_state_dict(model.state_dict())
    start = len(prompt.tokens)
    with torch.inference_mode():
        found = model(input_ids=ids, use_cache=False, prompt_length=start).logits[0]
        exact = plain(input_ids=ids, use_cache=False).logits[0]
        cache, rows, old = transformers.DynamicCache(), [], 0
        for end in [start, *range(start + 1, ids.shape[1] + 1)]:
            done = cache.get_seq_length()
            new = ids[:, done:end]
            positions = torch.arange(done, end).expand(3, 1, -1)
            output = plain(
                input_ids=new,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            rows.append(output.logits[0])
            aged = slice(old, max(end - CACHE.residual, old))
            for layer in cache.layers:
                for kept in (layer.keys, layer.values):
                    kept[:, :, aged] = int4(kept[:, :, aged], CACHE.group)
            old = aged.stop
    want = torch.cat(rows).numpy()
    # Codes at the edge of rounding may differ by the order of a float32 sum.
    assert relative_l2(found.numpy(), want) <= 5e-4
    assert relative_l2(exact.numpy(), want) >= 2e-3


@pytest.mark.parametrize("name", ["float32", "w8a8", ""])
def test_unknown_scheme_names_the_known(name):
    with pytest.raises(UsageFault, match="one of: bf16, w4a16"):
        scheme_of(name)

"""Prefill and decode apply the same adapter, at every length (R53, R54)."""

from __future__ import annotations

import pytest

from harness.golden import Prompt
from harness.golden import PromptSet


@pytest.mark.requirement("R53")
def test_prefill_and_decode_agree(device, adapter, prompts, judge):
    """The gap between the graphs is no larger with the adapter than without."""
    if len(device.capabilities.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    few = prompts.few(8, 24)
    base = {phase: device.fresh(phase).score(few) for phase in ("prefill", "decode")}
    device.apply(adapter.folder)
    loaded = {phase: device.fresh(phase).score(few) for phase in ("prefill", "decode")}
    judge.gap_is_no_larger(
        loaded["prefill"], loaded["decode"], base["prefill"], base["decode"]
    )


def _lengths(limit: int, chunk: int) -> dict[str, int]:
    edge = chunk or limit // 2
    return {"one": 1, "before-edge": edge - 1, "after-edge": edge + 1, "full": limit}


@pytest.mark.requirement("R54")
@pytest.mark.parametrize("length", ["one", "before-edge", "after-edge", "full"])
def test_lengths_behave_alike(device, adapter, prompts, judge, length):
    """A prompt of one token, around a chunk's edge and of full length."""
    if len(device.capabilities.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    can = device.capabilities
    rows = 6
    tokens = _lengths(can.max_prompt - rows + 1, can.chunk)[length]
    text = [t for p in prompts for t in (*p.tokens, *p.continuation)]
    cut = PromptSet(
        tuple(
            Prompt(
                f"{length}-{i}",
                "length",
                tuple(text[i * tokens : (i + 1) * tokens]),
                tuple(text[(i + 1) * tokens : (i + 1) * tokens + rows]),
            )
            for i in range(6)
        )
    )
    base = {phase: device.fresh(phase).score(cut) for phase in ("prefill", "decode")}
    device.apply(adapter.folder)
    loaded = {phase: device.fresh(phase).score(cut) for phase in ("prefill", "decode")}
    judge.gap_is_no_larger(
        loaded["prefill"], loaded["decode"], base["prefill"], base["decode"]
    )

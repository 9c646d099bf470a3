"""Prefill and decode apply the same adapter, at every length (R53, R54)."""

from __future__ import annotations

import itertools

import pytest

from harness.golden import Prompt
from harness.golden import PromptSet


ROWS = 6
# Two chunks of 128, the largest chunk that is documented (RK1828), in single steps.
WALK = 256


@pytest.mark.requirement("R53")
def test_prefill_and_decode_agree(device, adapter, prompts, base_scores, judge):
    """The gap between the graphs is no larger with the adapter than without."""
    if len(device.capabilities.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    few = prompts.few(8, 24)
    base = {phase: base_scores(few, phase) for phase in ("prefill", "decode")}
    device.apply(adapter.folder)
    loaded = {phase: device.fresh(phase).score(few) for phase in ("prefill", "decode")}
    judge.gap_is_no_larger(
        loaded["prefill"], loaded["decode"], base["prefill"], base["decode"]
    )


def split(text, length, rows, count):
    """`count` prompts out of a text that is repeated as often as needed.

    :param length: tokens of prompt and continuation together.
    :param rows: how many of them are the continuation.
    """
    tokens = itertools.cycle(text)
    return PromptSet(
        tuple(
            Prompt(
                f"length-{length}-{rows}-{i}",
                "length",
                tuple(itertools.islice(tokens, length - rows)),
                tuple(itertools.islice(tokens, rows)),
            )
            for i in range(count)
        )
    )


@pytest.mark.requirement("R54")
@pytest.mark.parametrize("length", ["shortest", "every position", "full"])
def test_lengths_behave_alike(device, adapter, prompts, base_scores, judge, length):
    """A prompt of one token, every position up to a chunk's edge, full length.

    `every position` gives all tokens but the first to the decode graph on one side
    and all to the prefill graph on the other: an adapter that is lost behind some
    position in one of them shows.
    """
    can = device.capabilities
    if len(can.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    walk = min(can.max_prompt, WALK)
    text = [t for p in prompts for t in (*p.tokens, *p.continuation)]
    cut = {
        "shortest": split(text, 1 + ROWS, ROWS, 6),
        "every position": split(text, walk, walk - 1, 4),
        "full": split(text, can.max_prompt, ROWS, 6),
    }[length]
    base = {phase: base_scores(cut, phase) for phase in ("prefill", "decode")}
    device.apply(adapter.folder)
    loaded = {phase: device.fresh(phase).score(cut) for phase in ("prefill", "decode")}
    judge.gap_is_no_larger(
        loaded["prefill"], loaded["decode"], base["prefill"], base["decode"]
    )

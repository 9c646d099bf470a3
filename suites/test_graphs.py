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
def test_prefill_and_decode_agree(device, adapter, dear_prompts, base_scores, judge):
    """The gap between the graphs is no larger with the adapter than without."""
    if len(device.capabilities.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    few = dear_prompts.few(8, 24)
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


def together(sets):
    """The prompts of several sets as one."""
    return PromptSet(tuple(p for prompts in sets for p in prompts))


@pytest.mark.requirement("R54")
@pytest.mark.parametrize("length", ["shortest", "every position", "edge", "full"])
def test_lengths_behave_alike(device, adapter, prompts, base_scores, judge, length):
    """A prompt of one token, every position or a chunk's edges, full length.

    `every position` gives all tokens but the first to the decode graph on one side
    and all to the prefill graph on the other: an adapter that is lost behind some
    position in one of them shows. Where prefill shows its last position only, that
    would take a prefill for each position, so the prompts end around the edges of
    chunks instead.
    """
    can = device.capabilities
    if len(can.phases) < 2:
        pytest.skip("this platform shows logits of one graph only")
    walk = min(can.max_prompt, WALK)
    text = [t for p in prompts for t in (*p.tokens, *p.continuation)]
    match length:
        case "shortest":
            cut = split(text, 1 + ROWS, ROWS, 6)
        case "every position":
            if can.phases[0] != "prefill":
                pytest.skip("prefill shows its last position only: see the edges")
            cut = split(text, walk, walk - 1, 4)
        case "edge":
            ends = range(can.chunk, can.max_prompt, can.chunk or 1)
            if not can.chunk or not ends:
                pytest.skip("prefill is one piece")
            # The longest prompt of so many chunks, and the shortest of one more.
            cut = together(
                split(text, end + 2, 2, 4) for end in (*ends[:1], *ends[-1:])
            )
        case _:
            # The longest prompts are the dearest: where each row takes one of its
            # own, two rows must do.
            dear = can.phases[0] != "prefill"
            cut = split(text, can.max_prompt, 2 if dear else ROWS, 6)
    base = {phase: base_scores(cut, phase) for phase in ("prefill", "decode")}
    device.apply(adapter.folder)
    loaded = {phase: device.fresh(phase).score(cut) for phase in ("prefill", "decode")}
    judge.gap_is_no_larger(
        loaded["prefill"], loaded["decode"], base["prefill"], base["decode"]
    )

"""What a switch of adapter leaves of the KV cache (R50-R52).

Judged where the cache is the runtime's own. Where a switch is one of the whole
process, the cache belongs to the program that drives the runtime.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from harness.errors import RuntimeRefused
from harness.golden import Prompt
from harness.golden import PromptSet
from harness.golden import Scores


# Tokens of a conversation's first turn: more than a chunk of 128 and what an int4 cache
# keeps in fp16 (32 on the simulated RK1828), so that rows of every kind can be left.
FIRST_TURN = 200
# Conversations and rows of each: of four conversations rounding alone can leave a
# sound board undecided, of twelve it takes five sixths of the limit at most.
CONVERSATIONS = 12, 8


@pytest.fixture
def switches(device, adapter, other):
    """Switches to go through: name, and what is done before and at the switch."""
    if device.capabilities.scope == "process":
        pytest.skip("here the KV cache belongs to the program, not to the runtime")
    return switches_of(device, adapter.folder, other)


def switches_of(seat, one, two):
    """The same for any conversation on the board."""
    found = {
        "adapter to adapter": (lambda: seat.apply(two), lambda: seat.apply(one)),
        "base to adapter": (seat.clear, lambda: seat.apply(one)),
        "adapter to base": (lambda: seat.apply(one), seat.clear),
    }
    if seat.capabilities.runtime_scale:
        found["scale to scale"] = (
            lambda: seat.apply(one, scale=0.5),
            lambda: seat.apply(one),
        )
    return found


def each(prompts):
    """Every prompt as a set of its own."""
    return [PromptSet((prompt,)) for prompt in prompts]


def two_turns(prompts, brief):
    """A long first turn out of some prompts, and one of the brief ones after it."""
    text = [t for p in prompts for t in (*p.tokens, *p.continuation)]
    first = Prompt("first turn", "turns", tuple(text[:FIRST_TURN]), (text[FIRST_TURN],))
    return PromptSet((first,)), brief.first(1)


@pytest.mark.requirement("R50")
def test_fresh_prompt_sees_nothing_of_the_old_cache(
    device, switches, brief, effect, judge
):
    """The same prompt again after a switch, nothing emptied in between."""
    for name, (before, switch) in switches.items():
        for prompt in each(brief.first(2)):
            switch()
            expected = device.fresh().score(prompt)
            before()
            old = device.fresh().score(prompt)
            switch()
            observed = device.anew().score(prompt)
            judge.differs(old, expected, name=f"{name}: two states", effect=effect)
            judge.same(expected, observed, name=f"{name}: {prompt.prompts[0].name}")


@pytest.mark.requirement("R51")
def test_switch_inside_a_conversation_drops_the_cache(
    device, switches, adapter, other, prompts, brief, judge
):
    """The next turn stands alone: what was said under the former adapter is gone.

    In the first session, and in one opened after it.
    """
    first, second = two_turns(prompts, brief)

    def dropped(seat, found, where):
        for name, (before, switch) in found.items():
            switch()
            alone = seat.fresh().score(second)
            seat.fresh().score(first)
            judge.differs(
                alone,
                seat.further().score(second),
                name=f"{where}, {name}: a turn before counts",
            )
            before()
            seat.fresh().score(first)
            switch()
            observed = seat.further().score(second)
            judge.same(alone, observed, name=f"{where}, {name}: the cache is dropped")

    dropped(device, switches, "first session")
    with device.beside() as seat:
        dropped(seat, switches_of(seat, adapter.folder, other), "second session")


@pytest.mark.requirement("R52")
def test_saved_cache_is_only_valid_where_it_was_made(
    device, bench, switches, prompts, brief, judge, forged
):
    """A file comes back under its own adapter and scale, and under no others.

    A runtime that ties files to nothing is said to do so; it is wrong where the
    product promises to guard them.
    """
    if not device.capabilities.cache_files:
        pytest.skip("this platform saves no KV cache")
    first, second = two_turns(prompts, brief)
    for number, (name, (before, switch)) in enumerate(switches.items()):
        file = f"{forged('cache').name}-{number}"
        before()
        device.fresh().score(first)
        device.session.save_cache(file)
        expected = device.further().score(second)
        device.session.reset()
        device.session.load_cache(file)
        judge.same(expected, device.further().score(second), name=f"{name}: its own")
        switch()
        alone = device.fresh().score(second)
        device.fresh().score(first)
        right = device.further().score(second)
        device.session.reset()
        try:
            device.session.load_cache(file)
        except RuntimeRefused as refusal:
            judge.note(f"refused: {refusal.cause}", name=f"{name}: another's")
            judge.same(
                alone, device.further().score(second), name=f"{name}: nothing of it"
            )
            continue
        taken = device.further().score(second)
        if bench.board.guards_cache_files:
            judge.same(right, taken, name=f"{name}: another's, taken")
        else:
            judge.note(
                "a cache saved under another state was taken", name=f"{name}: another's"
            )


@pytest.mark.requirement("R53", "R51")
def test_later_turns_apply_the_adapter(device, adapter, prompts, judge):
    """A conversation's second turn answers as all of it in one prompt does.

    Held against the gap of the two in the base, which a quantised cache makes.
    """

    several = prompts.few(*CONVERSATIONS)

    def both():
        whole, turns = [], []
        for first, second in itertools.pairwise((*several, several.prompts[0])):
            said = (*first.tokens, *first.continuation[:-1], *second.tokens)
            one = PromptSet((replace(second, name=first.name, tokens=said),))
            whole.append(device.fresh().score(one))
            device.fresh().score(PromptSet((first,)))
            later = device.further().score(PromptSet((second,)))
            turns.append(Scores(one, later.logits))
        return Scores.together(whole), Scores.together(turns)

    base_whole, base_turns = both()
    device.apply(adapter.folder)
    whole, turns = both()
    judge.gap_is_no_larger(
        whole, turns, base_whole, base_turns, name="a second turn beside one prompt"
    )

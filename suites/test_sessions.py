"""Several sessions on one board, each with its own adapter (R60-R65)."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest

from harness.errors import RuntimeRefused
from harness.verdict import Inconclusive
from harness.verdict import apart


# Opening a session allocates its KV cache; ten seconds of silence is a hang.
OPENS_S = 10.0
# So often even a small cache that stays allocated comes to more than the error of the
# memory figure.
REOPENED = 16


@pytest.fixture
def seats(device):
    """Gives so many conversations on the board, the first one among them."""
    if device.capabilities.scope == "process":
        pytest.skip("the slots belong to the process: all sessions share them")
    with ExitStack() as stack:
        yield lambda count: [
            device,
            *(stack.enter_context(device.beside()) for _ in range(count - 1)),
        ]


@pytest.fixture
def for_all(device):
    """The switch for all sessions, off again whatever a check comes to."""
    if not device.capabilities.context_switch:
        pytest.skip("this platform has no switch for all sessions")
    yield device.runtime.activate
    device.runtime.activate({})


@pytest.mark.requirement("R60")
def test_base_session_is_untouched(seats, adapter, brief, effect, judge):
    """A session without an adapter answers as base while another uses one."""
    quiet, busy = seats(2)
    base = quiet.fresh().score(brief)
    start, end = brief.first(1), brief.first(2)
    quiet.fresh().score(start)
    undisturbed = quiet.further().score(end)

    quiet.fresh().score(start)
    busy.apply(adapter.folder)
    loaded = busy.fresh().score(brief)
    judge.differs(base, loaded, name="the session with the adapter", effect=effect)
    judge.same(undisturbed, quiet.further().score(end), name="a conversation goes on")
    judge.same(base, quiet.fresh().score(brief), name="base beside an adapter")
    judge.equal(quiet.reported(), {}, name="reported beside an adapter")
    judge.same(loaded, busy.fresh().score(brief), name="the adapter beside base")
    busy.clear()
    judge.same(base, busy.fresh().score(brief), name="the session cleared")
    judge.same(base, quiet.fresh().score(brief), name="base after the other's clear")


@pytest.mark.requirement("R60", "R15")
def test_every_session_takes_an_adapter(seats, device, adapter, brief, judge):
    """An adapter takes effect in whichever session it is applied in."""
    every = seats(device.capabilities.max_sessions)
    scales = (1.0, 0.5) if device.capabilities.runtime_scale else (1.0,)
    for scale in scales:
        device.apply(adapter.folder, scale=scale)
        expected = device.fresh().score(brief)
        device.clear()
        for number, seat in enumerate(every):
            seat.apply(adapter.folder, scale=scale)
            name = f"session {number} at scale {scale:g}"
            judge.same(expected, seat.fresh().score(brief), name=name)
            judge.equal(
                seat.reported(), {adapter.name: scale}, name=f"reported, {name}"
            )
            seat.clear()


@pytest.mark.requirement("R61")
def test_sessions_stay_independent(seats, device, crew, brief, judge):
    """Different adapters and scales at once, in every order of use."""
    scales = (1.0, 0.5, 2.0, 1.0)[: device.capabilities.max_sessions]
    count = len(scales)
    states = list(zip(itertools.cycle(crew), scales, strict=False))
    few = brief.first(2)
    alone = []
    for folder, scale in states:
        device.apply(folder, scale=scale)
        alone.append(device.fresh().score(few))
    device.clear()
    every = seats(count)
    for seat, (folder, scale) in zip(every, states, strict=True):
        seat.apply(folder, scale=scale)
    for order in itertools.permutations(range(count)):
        for number in order:
            judge.same(
                alone[number],
                every[number].fresh().score(few),
                name=f"session {number} in the order {order}",
            )
    # One after another goes to the next one's state; the others do not notice.
    for moved in range(count):
        folder, scale = states[(moved + 1) % count]
        every[moved].apply(folder, scale=scale)
        for number, seat in enumerate(every):
            state = (number + 1) % count if number <= moved else number
            judge.same(
                alone[state],
                seat.fresh().score(few),
                name=f"session {number} after a switch in {moved}",
            )


@pytest.mark.requirement("R62")
def test_capacity_of_sessions(seats, device, adapter, brief, judge, given_back):
    """All sessions there are can be had; one more is refused and harms none."""
    base = device.fresh().score(brief)
    every = seats(device.capabilities.max_sessions)
    every[-1].apply(adapter.folder)
    loaded = every[-1].fresh().score(brief)
    judge.refused(lambda: seats(2), name="one session more", within=OPENS_S)
    judge.same(loaded, every[-1].fresh().score(brief), name="the last one goes on")
    judge.same(base, device.fresh().score(brief), name="the first one goes on")
    # What a session left is no other's: neither its scale nor its memory.
    if device.capabilities.runtime_scale:
        every[-1].apply(adapter.folder, scale=0.5)
    every[-1].__exit__()
    free = device.runtime.memory()
    with device.beside() as again:
        judge.same(base, again.fresh().score(brief), name="a session opened again")
        again.apply(adapter.folder)
        judge.same(loaded, again.fresh().score(brief), name="and its adapter")
    for _ in range(REOPENED):
        with device.beside():
            pass
    given_back(free, device.runtime.memory())


@pytest.mark.requirement("R63")
def test_session_goes_before_context(
    seats, device, for_all, adapter, other, brief, judge
):
    """A session's own switch counts more than the one for all sessions.

    Without one of its own it follows the context, or stays base: it is said which.
    """
    own, plain = seats(2)
    base = plain.fresh().score(brief)
    own.apply(adapter.folder)
    expected = own.fresh().score(brief)
    plain.apply(other)
    loaded = plain.fresh().score(brief)
    plain.clear()
    for_all({other.name: 1.0})
    judge.same(expected, own.fresh().score(brief), name="context after session")
    seen = plain.fresh().score(brief)
    own.apply(adapter.folder)
    judge.same(expected, own.fresh().score(brief), name="session after context")
    followed = apart(seen, loaded) < apart(seen, base)
    right = loaded if followed else base
    judge.same(right, seen, name="a session without one of its own")
    with device.beside() as late:
        judge.same(right, late.fresh().score(brief), name="a session opened after it")
        judge.note(
            "follow the context" if followed else "stay base",
            name="sessions without one of their own",
        )
        if followed and device.capabilities.runtime_scale:
            late.apply(other, scale=0.5)
            half = late.fresh().score(brief)
            late.clear()
            for_all({other.name: 0.5})
            judge.same(half, late.fresh().score(brief), name="the context's scale")
            for_all({other.name: 1.0})
    if not followed:
        raise Inconclusive(
            "nothing shows that the switch for all sessions does a thing"
        )
    for_all({})
    judge.same(expected, own.fresh().score(brief), name="session after the context's")
    own.clear()
    judge.same(base, own.fresh().score(brief), name="both cleared")


@pytest.mark.requirement("R65")
def test_adapters_in_one_session_add_up(
    device, adapter, other, copy, rescaled, several, reference, judge
):
    """Two adapters at once are the sum of both, whichever came first."""
    if device.capabilities.max_active < 2:
        pytest.skip("one adapter at a time")
    base = device.fresh().score(several)
    device.apply(adapter.folder)
    plain = device.fresh().score(several)
    device.apply(other)
    second = device.fresh().score(several)
    device.apply(adapter.folder)
    try:
        device.combine({adapter.folder: 1.0, other: 1.0})
    except RuntimeRefused as refusal:
        judge.note(f"refused: {refusal.cause}", name="two adapters at once")
        judge.same(plain, device.fresh().score(several), name="the first one stays")
        return
    both = device.fresh().score(several)
    judge.differs(plain, both, name="the second one takes effect")
    if apart(both, second) < apart(both, plain) / 2:
        judge.note("the last one alone takes effect", name="two adapters at once")
        judge.same(second, both, name="the last one")
        return
    reported = {adapter.folder.name: 1.0, other.name: 1.0}
    judge.equal(device.reported(), reported, name="reported together")
    device.clear()
    device.combine({other: 1.0, adapter.folder: 1.0})
    observed = device.fresh().score(several)
    judge.close(both, observed, reference, name="the other order", base=base)
    device.combine({adapter.folder: 0.5, copy: 0.5})
    halves = device.fresh().score(several)
    judge.close(plain, halves, reference, name="two halves", base=base)
    device.combine({adapter.folder: 0.5, other: 1.0, copy: 0.5})
    three = device.fresh().score(several)
    judge.close(both, three, reference, name="two halves and another", base=base)
    factor, folder = next(iter(rescaled.items()))
    device.combine({folder: 1.0, other: 1.0})
    expected = device.fresh().score(several)
    device.combine({adapter.folder: factor, other: 1.0})
    observed = device.fresh().score(several)
    judge.close(expected, observed, reference, name="each at its scale", base=base)
    device.combine({adapter.folder: 1.0, other: 0.0})
    judge.same(plain, device.fresh().score(several), name="a second one at scale 0")
    device.apply(adapter.folder)
    judge.same(plain, device.fresh().score(several), name="the second one taken away")

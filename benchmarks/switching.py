"""Adapters round robin over sessions of one board, every answer checked.

The loop behind the benchmark `soak`; `tests/test_soak.py` runs a short one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import psutil

from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.runtimes.device import Device


__all__ = ["Held", "Soaked", "Unsound", "alone", "soak", "turns"]


class Unsound(RuntimeError):
    """A switch, or many of them, changed what they must not."""


@dataclass(frozen=True)
class Held:
    """What a running probe holds.

    :param free: bytes of device memory that are free, of all nodes.
    :param free_min: those of the fullest node.
    :param files: open file descriptors of its process.
    """

    free: int
    free_min: int
    files: int

    @classmethod
    def now(cls, device: Device, probe: psutil.Process) -> Held:
        """What it holds at this moment."""
        memory = device.runtime.memory()
        return cls(memory["free"], memory["free_min"], probe.num_fds())

    def check(self, now: Held, when: str) -> None:
        """:raises Unsound: it holds something else now."""
        after = asdict(now)
        changed = [
            f"{what} {value} -> {after[what]}"
            for what, value in asdict(self).items()
            if value != after[what]
        ]
        if changed:
            raise Unsound(f"{when}: {', '.join(changed)}")


@dataclass
class Soaked:
    """What a run took, in order of the switches.

    :param switched: seconds of a switch.
    :param scored: seconds of the score after it.
    :param held: with all adapters loaded and all sessions open, before the first.
    :param resident: bytes of the probe's process before the first and after the last.
    """

    held: Held
    switched: list[float] = field(default_factory=list)
    scored: list[float] = field(default_factory=list)
    resident: tuple[int, int] = (0, 0)


def turns(n: int, adapters: Sequence[str], sessions: int) -> Iterator[tuple[int, str]]:
    """Session and adapter of each of `n` switches.

    A round goes through all adapters, and each begins one session further on than
    the one before: after as many rounds as sessions every adapter was in every one.
    """
    for turn in range(n):
        lap, place = divmod(turn, len(adapters))
        yield (place + lap) % sessions, adapters[place]


def alone(
    device: Device, adapters: Mapping[str, Path], prompts: PromptSet
) -> dict[str, Scores]:
    """What each adapter answers in a process that knew no other.

    :raises Unsound: two adapters answer alike, so that a mix-up could not be seen.
    """
    scores: dict[str, Scores] = {}
    for name, folder in adapters.items():
        device.restart()
        device.apply(folder, name=name)
        scores[name] = device.fresh().score(prompts)
    if len({one.digest for one in scores.values()}) < len(adapters):
        raise Unsound("two of the adapters answer alike")
    return scores


def soak(
    device: Device,
    adapters: Mapping[str, Path],
    right: Mapping[str, Scores],
    *,
    switches: int,
    sessions: int,
    look: int,
) -> Soaked:
    """Load all adapters into a new process, switch, score after each switch.

    Each score is a new conversation that empties nothing before it, so that what a
    switch leaves in a session's cache comes to light.

    :param right: what `alone` gave for each adapter.
    :param look: after as many switches, and at the end, it must hold what it held.
    :raises Unsound: logits are not bit for bit those of the adapter alone; memory or
        open files are not those of before.
    """
    device.restart()
    probe = running(device)
    empty = Held.now(device, probe)
    for name, folder in adapters.items():
        device.load(folder, name)
    with ExitStack() as stack:
        talks = [stack.enter_context(device.beside()) for _ in range(sessions)]
        soaked = Soaked(Held.now(device, probe))
        resident = probe.memory_info().rss
        for turn, (index, name) in enumerate(turns(switches, [*adapters], sessions), 1):
            talk, scores = talks[index], right[name]
            start = time.perf_counter()
            talk.session.activate({name: 1.0})
            switched = time.perf_counter()
            got = talk.anew().score(scores.prompts)
            soaked.scored.append(time.perf_counter() - switched)
            soaked.switched.append(switched - start)
            if got.digest != scores.digest:
                raise Unsound(
                    f"switch {turn}: session {index} under {name} does not answer as "
                    "the adapter does alone"
                )
            if turn % look == 0 or turn == switches:
                soaked.held.check(Held.now(device, probe), f"after {turn} switches")
        soaked.resident = resident, probe.memory_info().rss
    for name in adapters:
        device.unload(name)
    empty.check(Held.now(device, probe), "after the last unload")
    return soaked


def running(device: Device) -> psutil.Process:
    """The process of a board's probe, which must be a descendant of this one."""
    word = f"probes.{device.identity.platform}"
    found = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and word in process.cmdline()
    ]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} processes {word} run here, not one")
    return found[0]

"""1,000 switches of 32 adapters in four sessions of the simulated RK1828.

After each the answer is bit for bit that of the adapter alone in a new process;
device memory and open files are what they were, every 100 switches and at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.board import FIXTURES
from benchmarks.board import inventory
from benchmarks.figure import Figure
from benchmarks.figure import median
from benchmarks.switching import alone
from benchmarks.switching import soak
from harness.artifacts.adapter import Adapter
from harness.bench import Bench


SWITCHES, SESSIONS = 1_000, 4
LOOK = 100
# Of the first and of the last: more than a round of all adapters through all sessions.
ENDS = 200
# Of the golden's prompts; what is scored shall not hide what a switch takes.
PROMPTS, ROWS = 1, 2


def run() -> Iterator[Figure]:
    """First and last switches, and what the probe holds before and after."""
    (board,) = inventory().pick(["sim-rk1828"])
    with Bench(board, [Adapter.open(FIXTURES / "adapters" / "r8-all")]) as bench:
        made = bench.kits.made("crowd", "")
        adapters = {one.folder.name: one.folder for one in made}
        device = bench.begin(adapters)
        prompts = bench.golden.prompts.few(PROMPTS, ROWS)
        right = alone(device, adapters, prompts)
        soaked = soak(
            device, adapters, right, switches=SWITCHES, sessions=SESSIONS, look=LOOK
        )
    both = [
        switch + score
        for switch, score in zip(soaked.switched, soaked.scored, strict=True)
    ]
    yield Figure("adapters, each in every session", len(adapters), "")
    yield Figure("switches, each answered as by the adapter alone", len(both), "")
    yield from _ends("a switch", soaked.switched)
    yield from _ends(f"a switch and a score of {ROWS} rows", both)
    held = soaked.held
    yield Figure("free device memory, before and after", held.free / 1e6, "MB")
    yield Figure("of these on the fullest node", held.free_min / 1e6, "MB")
    yield Figure("open files of the probe, before and after", held.files, "")
    before, after = soaked.resident
    yield Figure("host memory of the probe, before", before / 1e6, "MB")
    yield Figure(
        "host memory of the probe, after", after / 1e6, "MB", after / before, "before"
    )


def _ends(what: str, seconds: list[float]) -> Iterator[Figure]:
    first, last = median(seconds[:ENDS]), median(seconds[-ENDS:])
    yield Figure(f"{what}, first {ENDS}", first * 1e3, "ms")
    yield Figure(
        f"{what}, last {ENDS}", last * 1e3, "ms", last / first, f"the first {ENDS}"
    )

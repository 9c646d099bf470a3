"""Judging logits of the product's vocabulary, beside the least that touches them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterator

import numpy as np

from benchmarks.board import VOCABULARY
from benchmarks.figure import Figure
from benchmarks.figure import median
from harness.golden.prompts import Prompt
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.store import Reference
from harness.verdict.delta import deltas
from harness.verdict.delta import distance
from harness.verdict.reference import compare_deltas
from harness.verdict.reference import compare_logits
from harness.verdict.state import compare_states
from harness.verdict.topk import compare_tops


PROMPTS, ROWS = 4, 16
REPEATS = 3


def run() -> Iterator[Figure]:
    """Statistics of 64 rows of 151,936; ratios over one dot product of two arrays."""
    base, device_base, adapter, device, seen_base, seen = _scores()
    dot = _median(lambda: np.vdot(base.logits, adapter.logits))
    yield Figure("dot product of two arrays [64, 151936]", dot * 1e3, "ms")
    against = "the dot product"

    def beside(name: str, act: Callable[[], object]) -> Figure:
        taken = _median(act)
        return Figure(name, taken * 1e3, "ms", taken / dot, against)

    naive = beside("delta, plain numpy", lambda: _naive(seen, seen_base, adapter, base))
    yield naive
    ours = _median(lambda: deltas(_new(seen), _new(seen_base), adapter, base))
    yield Figure("delta, ours", ours * 1e3, "ms", ours / dot, against)
    yield Figure("delta, ours", ours * 1e3, "ms", ours * 1e3 / naive.value, naive.name)
    yield beside("distance", lambda: distance(seen, adapter))
    yield beside("likeliest tokens", lambda: compare_tops(seen, adapter, device))
    yield beside("finite", lambda: _new(seen).finite)
    yield beside("equal states", lambda: compare_states(seen, _new(seen)))
    right, right_base = Reference(adapter, device), Reference(base, device_base)
    yield beside(
        "statistics of `matches`", lambda: compare_logits(seen, adapter, device)
    )
    yield beside(
        "statistics of `delta_matches`",
        lambda: compare_deltas(_new(seen), _new(seen_base), right, right_base),
    )


def _scores() -> list[Scores]:
    """Base and adapter: reference, device arithmetic, board."""
    random = np.random.default_rng(1)
    prompts = PromptSet(
        tuple(
            Prompt(f"p{i}", "bench", (1, 2), tuple(range(ROWS))) for i in range(PROMPTS)
        )
    )
    shape = (prompts.rows, VOCABULARY)

    def near(values: np.ndarray, scale: float) -> np.ndarray:
        noise = random.standard_normal(shape, np.float32)
        noise *= np.float32(scale)
        noise += values
        return noise

    base = random.standard_normal(shape, np.float32) * np.float32(3)
    adapter = near(base, 0.3)
    arrays = [base, near(base, 0.01), adapter, near(adapter, 0.01)]
    arrays += [near(base, 0.01), near(adapter, 0.01)]
    return [Scores(prompts, array) for array in arrays]


def _new(scores: Scores) -> Scores:
    """As if just scored: the reference's sums are kept, a board's are not known."""
    return Scores(scores.prompts, scores.logits)


def _naive(*four: Scores) -> tuple[float, float, float]:
    """The same sums as one writes them down first: whole arrays, float64."""
    logs = []
    for scores in four:
        wide = scores.logits.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
        logs.append(wide)
    right = logs[2] - logs[3]
    error = logs[0] - logs[1] - right
    return (error**2).sum(), (error * right).sum(), (right**2).sum()


def _median(act: Callable[[], object]) -> float:
    act()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return median(seconds)

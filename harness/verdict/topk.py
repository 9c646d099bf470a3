"""Agreement of the likeliest tokens, aware of near-ties.

An argmax flips at a tie whoever computes it, so only *decided* rows count: those
where the reference's own margin exceeds a band of `NEAR_TIE_ULPS` units of bf16 and
`NEAR_TIE_DEVIATIONS` deviations of the numeric floor. A flip there is *clear* when
the board, too, puts its token ahead of the reference's by more than the band (its
regret). The gate is on the share of clear flips, a binomial test against
`budget.TOP_FLIPS`; never on a
largest deviation, which grows with the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import bdtrc
from scipy.special import bdtri

from harness.golden.rows import blocks
from harness.golden.scores import Scores
from harness.verdict.budget import ALPHA_PASS
from harness.verdict.budget import NEAR_TIE_DEVIATIONS
from harness.verdict.budget import NEAR_TIE_ULPS
from harness.verdict.budget import POWER
from harness.verdict.decide import Decision
from harness.verdict.decide import rule
from harness.verdict.delta import aligned
from harness.verdict.delta import distance
from harness.verdict.delta import per_prompt
from harness.verdict.delta import place
from harness.verdict.equivalence import normal_quantile
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = ["bf16_ulp", "compare_tops", "wilson"]

TOP = 10
BLOCK = 128
# A row's likeliest tokens in reference and board, the reference's margin, the
# board's regret, the band of near-ties, and the share of the reference's likeliest
# ten among the board's.
TOPS = np.dtype(
    [
        ("want", np.int64),
        ("got", np.int64),
        ("margin", np.float64),
        ("regret", np.float64),
        ("band", np.float64),
        ("ten", np.float64),
    ]
)


def bf16_ulp(values: np.ndarray) -> np.ndarray:
    """The unit in the last place of bf16 at values: 2^(floor(log2 |x|) - 7)."""
    units: np.ndarray = np.ldexp(1.0, np.frexp(values)[1] - 8)
    return np.where(values == 0, 0.0, units)


def wilson(hits: int, count: int, alpha: float = ALPHA_PASS) -> tuple[float, float]:
    """Interval of a share at level 1 - 2 alpha (Wilson 1927); (0, 1) for none."""
    if count == 0:
        return 0.0, 1.0
    z = normal_quantile(1 - alpha)
    p, n = hits / count, count
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def compare_tops(observed: Scores, exact: Scores, device: Scores) -> dict[str, Any]:
    """Counts over the rows of finite logits.

    :param exact: the reference; two tokens in its vocabulary at the least.
    :param device: the reference in device arithmetic.
    """
    aligned(observed, exact, device)
    prompts, width = exact.prompts, exact.logits.shape[1]
    floor = per_prompt(prompts, distance(device, exact).error)
    deviation = np.sqrt(floor / (np.asarray(prompts.lengths) * width))
    bands = NEAR_TIE_DEVIATIONS * np.sqrt(2.0) * np.repeat(deviation, prompts.lengths)
    tops = np.concatenate(
        [
            _tops(observed.logits[rows], exact.logits[rows], bands[rows])
            for rows in blocks(exact.logits)
        ]
    )
    decided = tops["margin"] > tops["band"]
    clear = decided & (tops["regret"] > tops["band"])
    same = tops["want"] == tops["got"]
    worst = None
    if clear.any():
        row = int(np.where(clear, tops["regret"], -np.inf).argmax())
        worst = {
            **place(prompts, row),
            "expected": int(tops["want"][row]),
            "observed": int(tops["got"][row]),
            "margin": float(tops["margin"][row]),
            "regret": float(tops["regret"][row]),
            "band": float(tops["band"][row]),
        }
    return {
        "rows": prompts.rows,
        "same": int(same.sum()),
        "decided": int(decided.sum()),
        "agree": int((decided & same).sum()),
        "flips": int(clear.sum()),
        "top10": float(tops["ten"].mean()),
        "regret": float(tops["regret"].mean()),
        "worst": worst,
    }


def _tops(x: np.ndarray, y: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """What the likeliest tokens of some rows say, one `TOPS` per row.

    :param x: the board's logits, float32 `[n, vocab]`.
    :param y: the reference's.
    :param floor: band of near-ties by the numeric floor, `[n]`.
    """
    result = np.empty(len(x), TOPS)
    each = np.arange(len(x))
    want, got = y.argmax(axis=1), x.argmax(axis=1)
    likeliest = _likeliest(y)
    top, second = y[each, want].astype(float), y[each, likeliest[:, -2]]
    last = x[each, _likeliest(x)[:, 0]].astype(float)
    band = np.maximum(NEAR_TIE_ULPS * bf16_ulp(top), floor)
    result["want"], result["got"] = want, got
    result["margin"], result["band"] = top - second, band
    result["regret"] = x[each, got].astype(float) - x[each, want]
    ten = np.take_along_axis(x, likeliest, axis=1) >= (last - band)[:, None]
    result["ten"] = ten.mean(axis=1)
    return result


@rule("agrees")
def decide_agrees(
    statistics: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Decision:
    """Clear flips among decided rows, by a binomial test."""
    decided, flips = statistics["decided"], statistics["flips"]
    rows, same = statistics["rows"], statistics["same"]
    alpha, share = parameters["alpha"], parameters["flips"]
    limit = _largest(decided, share, alpha)
    low, high = wilson(same, rows)
    note = (
        f"top-1 equal in {same} of {rows} rows ({low:.3f}-{high:.3f}), top-10 "
        f"{statistics['top10']:.3f}, mean regret {statistics['regret']:.2g} nat"
    )
    interval = wilson(flips, decided)
    measurement = Measurement(
        name="top-1 flipped clearly",
        value=flips / decided if decided else None,
        unit="share of decided rows",
        limit=limit / decided if decided else None,
        limit_source=f"binomial, {share:g} for a right board, false alarms {alpha:.1e}",
        low=interval[0] if decided else None,
        high=interval[1] if decided else None,
        # The share q with P(flips > limit) = POWER: bdtri inverts bdtr in q.
        smallest_visible=float(bdtri(limit, decided, 1 - POWER))
        if limit < decided
        else None,
        used=flips / (limit + 1),
        note=note,
    )
    if limit >= decided:
        return Decision(
            Outcome.INCONCLUSIVE,
            measurement,
            f"only {decided} of {rows} rows are decided in the reference, too few to "
            f"find any board wrong; {note}",
        )
    text = f"{flips} of {decided} decided rows flipped clearly, limit {limit}; {note}"
    if flips <= limit:
        return Decision(Outcome.PASS, measurement, text)
    worst = statistics["worst"]
    return Decision(
        Outcome.FAIL,
        measurement,
        f"{text}; worst in prompt {worst['prompt']!r} row {worst['row']}: token "
        f"{worst['observed']} beats {worst['expected']} by {worst['regret']:.3g} "
        f"where the reference has it ahead by {worst['margin']:.3g} "
        f"(near-ties up to {worst['band']:.2g})",
    )


def _likeliest(logits: np.ndarray) -> np.ndarray:
    """The `TOP` likeliest tokens of each row, the likeliest last, `[n, TOP]`.

    They lie in the blocks with the largest maxima; sorting all 151,936 would cost
    more than everything else here.
    """
    n, width = logits.shape
    whole = width // BLOCK
    candidates = np.broadcast_to(np.arange(width), logits.shape)
    if whole > TOP:
        maxima = logits[:, : whole * BLOCK].reshape(n, whole, BLOCK).max(axis=2)
        best = np.argpartition(maxima, -TOP, axis=1)[:, -TOP:, None]
        inside = (best * BLOCK + np.arange(BLOCK)).reshape(n, -1)
        candidates = np.hstack([inside, candidates[:, whole * BLOCK :]])
    values = np.take_along_axis(logits, candidates, axis=1)
    top = min(TOP, width)
    order = np.argpartition(values, -top, axis=1)[:, -top:]
    ranks = np.take_along_axis(values, order, axis=1).argsort(axis=1)
    order = np.take_along_axis(order, ranks, axis=1)
    found: np.ndarray = np.take_along_axis(candidates, order, axis=1)
    return found


def _largest(count: int, share: float, alpha: float) -> int:
    """Most flips a right board shows, but with probability `alpha` or less."""
    if count == 0:
        return 0
    for flips in range(count):
        if bdtrc(flips, count, share) <= alpha:
            return flips
    return count

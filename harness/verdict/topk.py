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


def bf16_ulp(value: float) -> float:
    """The unit in the last place of bf16 at a value: 2^(floor(log2 |x|) - 7)."""
    if value == 0:
        return 0.0
    return float(np.ldexp(1.0, int(np.frexp(abs(value))[1]) - 8))


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
    same = decided = agree = flips = 0
    regrets, tens = np.empty(prompts.rows), np.empty(prompts.rows)
    worst: dict[str, Any] = {}
    for t in range(prompts.rows):
        x, y = observed.logits[t], exact.logits[t]
        want, got = int(y.argmax()), int(x.argmax())
        likeliest = _likeliest(y)
        margin = float(y[want]) - float(y[likeliest[-2]])
        band = max(NEAR_TIE_ULPS * bf16_ulp(float(y[want])), float(bands[t]))
        regrets[t] = float(x[got]) - float(x[want])
        tens[t] = np.mean(x[likeliest] >= x[_likeliest(x)].min() - band)
        same += got == want
        if margin <= band:
            continue
        decided += 1
        agree += got == want
        if regrets[t] > band:
            flips += 1
            if not worst or regrets[t] > worst["regret"]:
                worst = {
                    **place(prompts, t),
                    "expected": want,
                    "observed": got,
                    "margin": margin,
                    "regret": float(regrets[t]),
                    "band": band,
                }
    return {
        "rows": prompts.rows,
        "same": same,
        "decided": decided,
        "agree": agree,
        "flips": flips,
        "top10": float(tens.mean()),
        "regret": float(regrets.mean()),
        "worst": worst or None,
    }


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


def _likeliest(row: np.ndarray) -> np.ndarray:
    """The `TOP` likeliest tokens the likeliest last.

    They lie in the blocks with the largest maxima; sorting all 151,936 would cost
    more than everything else here.
    """
    whole = len(row) // BLOCK
    candidates = np.arange(len(row))
    if whole > TOP:
        maxima = row[: whole * BLOCK].reshape(whole, BLOCK).max(axis=1)
        blocks = np.argpartition(maxima, -TOP)[-TOP:]
        inside = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        candidates = np.concatenate([inside, np.arange(whole * BLOCK, len(row))])
    return candidates[np.argsort(row[candidates])[-TOP:]]


def _largest(count: int, share: float, alpha: float) -> int:
    """Most flips a right board shows, but with probability `alpha` or less."""
    if count == 0:
        return 0
    for flips in range(count):
        if bdtrc(flips, count, share) <= alpha:
            return flips
    return count

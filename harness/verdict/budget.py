"""The error budget of a run, and every constant that decides.

Two error rates, never mixed. *False alarms* (FAIL on a right board) add up over a
run, so their budget is divided. *False passes* do not: a wrong board must be
accepted by every check that can see its fault (an intersection-union test, Berger
1982), so each check accepts at its own full level.
"""

from __future__ import annotations

from dataclasses import dataclass


__all__ = [
    "ALPHA_PASS",
    "ALPHA_RUN",
    "FLOAT32_FLOOR",
    "FLOOR_CONFIDENCE",
    "FLOOR_FACTOR",
    "FLOOR_MARGIN",
    "GAIN_MARGIN",
    "GAP_FLOOR",
    "NEAR_TIE_DEVIATIONS",
    "NEAR_TIE_ULPS",
    "POWER",
    "SPREAD",
    "SPREAD_FREEDOM",
    "THETA",
    "TOP_FLIPS",
    "Budget",
]

# False alarms of a whole run. A nightly run that is red by chance once in three
# years is believed; with 1e-3 per check 14-18 % of clean nights would be red.
ALPHA_RUN = 1e-3

# The usual level of an equivalence test (Schuirmann 1987): the 90 % interval lies
# inside the margin.
ALPHA_PASS = 0.05

# "Could have seen" means: would have been found wrong 99 times in 100.
POWER = 0.99

# Largest error of an adapter's scale that the product tolerates. bf16 rounds to
# 0.4 %, so 1 % is little more than the arithmetic; a w4a16 device adds the error of
# its 4-bit base under the adapter.
THETA = {"bf16": 0.01, "w4a16": 0.025}

# A right board's distance from the reference over the numeric floor. Measured on
# small Qwen3-VL models: 0.4 where a device rounds in fewer places than the
# reference does, 0.75 where in about as many, 0.5-1.6 for the vendor's emulation;
# 3.2 with 2 % of noise on the base's weights, 30 and more with the scale or a layer
# wrong. On the simulated BM1688, pooled over 24 prompts: 1.1 for logits, 1.5-1.7 for
# deltas. Twice the rounding error of the reference is no longer rounding.
FLOOR_FACTOR = 2.0

# Standard deviation of that ratio's logarithm over prompts for right boards.
# Measured: 0.06-0.10 over 40 rows, 0.14-0.19 over 8, 0.20-0.25 over 2, 0.30-0.40
# over a single row; the largest, so that it holds for every prompt set.
SPREAD = 0.35
# How many prompts that knowledge is worth beside the run's own (moderated t, Smyth
# 2004): with 8 or fewer prompts it decides, with 24 the run's own spread does.
SPREAD_FREEDOM = 8

# Two float32 implementations differ by their order of summation: 1e-6 a layer. Put
# in quadrature under every numeric floor, so that a floor of zero (a device that
# computes in float32) is no limit of zero.
FLOAT32_FLOOR = 1e-5

# Half the distance of two bf16 numbers. A board whose prefill and decode agree to
# the last bit in the base may still round the adapter's branch differently.
GAP_FLOOR = 2.0**-9

# Task gain, nat per token: 2 % of perplexity, which no user notices, while an
# adapter gains 0.2-0.9 on its own domain and device arithmetic moves that by 0.001.
GAIN_MARGIN = 0.02

# A repeat floor's limit covers the share 1 - alpha of repeats with this confidence.
FLOOR_CONFIDENCE = 0.95
# The normal law of log T is known from some 60 repeats and used far out in its
# tail; this room on top of the tolerance limit pays for that.
FLOOR_MARGIN = 1.1

# Top-1 is judged where the reference's own margin exceeds 3 units in the last place
# of bf16 (a tie in the device's format) and 3 standard deviations of the numeric
# floor of a difference of two logits.
NEAR_TIE_ULPS = 3
NEAR_TIE_DEVIATIONS = 3.0
# Share of decided rows a right board may flip clearly, beyond the band on both
# sides: such a flip needs an error of six deviations, 1e-8 for normal errors; 1e-3
# leaves room for heavy tails.
TOP_FLIPS = 1e-3


@dataclass(frozen=True)
class Budget:
    """The false alarms a run may give, over its planned checks.

    :param planned: checks planned in the run, all boards together.
    """

    planned: int
    alpha: float = ALPHA_RUN

    def __post_init__(self) -> None:
        if self.planned < 1:
            raise ValueError("a budget needs at least one planned check")

    def share(self, i: int) -> float:
        """False alarm rate of a check's i-th statistical judgement, i from 1.

        A check's share is spent as 1 / (i (i + 1)): 1/2, 1/6, 1/12, ..., which sums
        to 1 however many judgements follow (alpha spending with a fixed series).
        """
        if i < 1:
            raise ValueError("judgements are counted from 1")
        return self.alpha / self.planned / (i * (i + 1))

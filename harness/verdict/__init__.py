"""From logits to a decision."""

from harness.verdict.budget import THETA
from harness.verdict.budget import Budget
from harness.verdict.decide import decide
from harness.verdict.floor import RepeatFloor
from harness.verdict.floor import apart
from harness.verdict.judge import Judge
from harness.verdict.measurement import BoardWrong
from harness.verdict.measurement import Inconclusive
from harness.verdict.measurement import Judgement
from harness.verdict.measurement import Measurement
from harness.verdict.measurement import Outcome


__all__ = [
    "THETA",
    "BoardWrong",
    "Budget",
    "Inconclusive",
    "Judge",
    "Judgement",
    "Measurement",
    "Outcome",
    "RepeatFloor",
    "apart",
    "decide",
]

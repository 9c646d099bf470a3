"""The arbiter: decides, records, then raises; and judges exact facts."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any
from typing import Self

from harness.errors import ConversionRefused
from harness.errors import HarnessError
from harness.errors import RuntimeDied
from harness.errors import RuntimeHung
from harness.errors import RuntimeRefused
from harness.golden.scores import Scores
from harness.verdict.decide import decide
from harness.verdict.facts import finite
from harness.verdict.floor import RepeatFloor
from harness.verdict.measurement import BoardWrong
from harness.verdict.measurement import Inconclusive
from harness.verdict.measurement import Judgement
from harness.verdict.measurement import Outcome


__all__ = ["Arbiter"]


class Arbiter:
    """What every judgement goes through, and the questions of exact facts.

    :param record: takes each judgement, before anything is raised.
    :param budget_share: false alarm rate of the check's i-th statistical judgement,
        `Budget.share`; exact judgements spend nothing.
    :param floor: the board's repeat floor; limits its checks against itself.
    :param theta: margin on the adapter's scale, see `budget.THETA`.
    """

    def __init__(
        self,
        record: Callable[[Judgement], None],
        *,
        budget_share: Callable[[int], float],
        floor: RepeatFloor,
        theta: float,
    ) -> None:
        self._record = record
        self._share = budget_share
        self._floor = floor
        self._theta = theta
        self._spent = 0
        self._ending = {Outcome.FAIL, Outcome.INCONCLUSIVE}

    def equal(
        self, observed: object, expected: object, name: str = "fact", unit: str = ""
    ) -> Judgement:
        """An exact fact: text, a count, a digest; compared as JSON values.

        :raises TypeError: no JSON value.
        :raises ValueError: NaN or infinity, which are equal to nothing.
        """
        pair = {"observed": observed, "expected": expected}
        statistics = json.loads(json.dumps(pair, allow_nan=False))
        return self._judge("equal", name, statistics, {"unit": unit})

    def at_most(
        self,
        value: float,
        limit: float,
        unit: str = "",
        source: str = "",
        name: str = "value",
    ) -> Judgement:
        """A number does not exceed a bound; NaN and infinity do."""
        parameters = {"limit": limit, "unit": unit, "source": source}
        return self._judge("at most", name, {"value": finite(value)}, parameters)

    def note(self, text: str, name: str) -> Judgement:
        """What a platform does where nobody documents what it should."""
        return self._judge("note", name, {"text": text}, {})

    def refused(
        self,
        attempt: Callable[[], object],
        name: str = "refused",
        *,
        within: float,
        says: str = "",
    ) -> Judgement:
        """An attempt is refused within so many seconds and the process lives (R40).

        Errors that are neither a refusal nor a death are infrastructure and are
        passed on.

        :param says: what a good message mentions; noted where it does not.
        """
        parameters = {"within": within, "says": says}
        return self._judge("refused", name, _tried(attempt), parameters)

    def lives(
        self, attempt: Callable[[], object], name: str = "lives", *, within: float
    ) -> Judgement:
        """An attempt succeeds or is refused, in time: no death, no hang (R41, R42)."""
        return self._judge("lives", name, _tried(attempt), {"within": within})

    def found_wrong(self, name: str, check: Callable[[Self], object]) -> Judgement:
        """A negative control (R91): one judgement of `check` must come to FAIL.

        `check` gets a judge of its own with the same limits, which goes on until
        the first FAIL; its judgements are kept within the control's.
        """
        inner: list[Judgement] = []
        judge = copy.copy(self)
        judge._record, judge._spent, judge._ending = inner.append, 0, {Outcome.FAIL}
        try:
            check(judge)
        except (BoardWrong, Inconclusive):
            pass  # what it came to is in `inner`
        statistics = {"inner": [j.to_json() for j in inner]}
        return self._judge("control", name, statistics, {})

    def _alpha(self) -> float:
        self._spent += 1
        return self._share(self._spent)

    def _judge(
        self,
        kind: str,
        name: str,
        statistics: dict[str, Any],
        parameters: dict[str, Any],
        scores: dict[str, Scores] | None = None,
    ) -> Judgement:
        """Decide, record, and raise where the outcome ends the check."""
        outcome, measurement, reason = decide(kind, statistics, parameters)
        judgement = Judgement(
            kind, name, outcome, measurement, statistics, parameters, reason
        )
        self._record(judgement)
        if outcome not in self._ending:
            return judgement
        if outcome is Outcome.FAIL:
            raise BoardWrong(judgement, scores)
        raise Inconclusive(f"{name}: {reason}", judgement)


def _tried(attempt: Callable[[], object]) -> dict[str, Any]:
    """How an attempt ended that a platform may refuse, and when."""
    raised: HarnessError | None = None
    start = time.monotonic()
    try:
        attempt()
    except (RuntimeRefused, ConversionRefused, RuntimeDied, RuntimeHung) as error:
        raised = error
    return {
        "raised": raised.code if raised else None,
        "vendor_code": getattr(raised, "vendor_code", ""),
        "text": raised.cause if raised else "",
        "seconds": time.monotonic() - start,
    }

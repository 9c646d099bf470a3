"""The judge: one method per question a check may ask of a board.

Each method measures, decides by the rule of its kind, records, and only then
raises: `BoardWrong` for FAIL, `Inconclusive` for INCONCLUSIVE. So a check ends at
its first judgement that is not PASS, and its last record says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

from harness.golden.scores import Scores
from harness.verdict import budget
from harness.verdict.arbiter import Arbiter
from harness.verdict.delta import aligned
from harness.verdict.delta import nonfinite
from harness.verdict.measurement import Judgement
from harness.verdict.reference import compare_deltas
from harness.verdict.reference import compare_gaps
from harness.verdict.reference import compare_logits
from harness.verdict.reference import compare_rounding
from harness.verdict.scale import compare_gains
from harness.verdict.state import compare_states
from harness.verdict.topk import compare_tops


if TYPE_CHECKING:
    from harness.golden.store import Reference


__all__ = ["Judge"]


class Judge(Arbiter):
    """Judges one check on one board; exact facts as in `Arbiter`."""

    # The board against itself.

    def same(
        self, expected: Scores, observed: Scores, name: str = "the same state"
    ) -> Judgement:
        """The two states are one: equal, or within the repeat floor."""
        statistics = compare_states(expected, observed)
        law = self._floor.law(expected.prompts)
        parameters = {
            "floor": law.to_json() if law else None,
            "alpha": self._alpha() if law else None,
        }
        scores = {"expected": expected, "observed": observed}
        return self._judge("same", name, statistics, parameters, scores)

    def differs(
        self,
        base: Scores,
        observed: Scores,
        name: str = "another state",
        *,
        effect: float | None = None,
    ) -> Judgement:
        """The two states are further apart than noise.

        :param effect: the reference's own distance of the two states, see
            `floor.apart`; where it is below what can be seen, no difference is
            INCONCLUSIVE and not FAIL.
        """
        statistics = compare_states(base, observed)
        law = self._floor.law(base.prompts)
        parameters = {
            "floor": law.to_json() if law else None,
            "alpha": self._alpha() if law else None,
            "effect": effect,
        }
        scores = {"base": base, "observed": observed}
        return self._judge("differs", name, statistics, parameters, scores)

    def close(
        self,
        expected: Scores,
        observed: Scores,
        reference: Reference,
        name: str = "the same up to rounding",
        *,
        base: Scores | None = None,
    ) -> Judgement:
        """Two states that may round differently: within the numeric floor (B.9).

        :param base: the board without the adapter that both states hold; with it,
            no PASS where a missing adapter could not be seen.
        """
        right = reference.on(observed.prompts)
        return self._against(
            "close",
            name,
            lambda: compare_rounding(expected, observed, right, base),
            {"expected": expected, "observed": observed}
            | ({} if base is None else {"base": base}),
            (right,),
            least=budget.FLOAT32_FLOOR,
        )

    def gap_is_no_larger(
        self,
        prefill: Scores,
        decode: Scores,
        base_prefill: Scores,
        base_decode: Scores,
        name: str = "prefill and decode apply the same adapter",
    ) -> Judgement:
        """The delta's gap of prefill and decode is no larger than the base's (R53).

        The delta's gap is the difference of two gaps of the base's size: sqrt(2)
        for right boards, below the factor of 2. No PASS where an adapter that one
        graph never sees would come to no more than that.
        """
        return self._against(
            "gap",
            name,
            lambda: compare_gaps(prefill, decode, base_prefill, base_decode),
            {
                "prefill": prefill,
                "decode": decode,
                "base_prefill": base_prefill,
                "base_decode": base_decode,
            },
            (),
            least=budget.GAP_FLOOR,
        )

    # The board against the reference.

    def matches(
        self, observed: Scores, reference: Reference, name: str = "the reference"
    ) -> Judgement:
        """Logits equal the reference's within its numeric floor; then `agrees`."""
        right = reference.on(observed.prompts)
        judgement = self._against(
            "matches",
            name,
            lambda: compare_logits(observed, right.exact, right.device),
            {"observed": observed},
            (right,),
            least=budget.FLOAT32_FLOOR,
        )
        self.agrees(observed, reference, f"{name}: likeliest tokens")
        return judgement

    def agrees(
        self,
        observed: Scores,
        reference: Reference,
        name: str = "likeliest tokens",
    ) -> Judgement:
        """The likeliest token is the reference's wherever that is decided."""
        right = reference.on(observed.prompts)
        return self._against(
            "agrees",
            name,
            lambda: compare_tops(observed, right.exact, right.device),
            {"observed": observed},
            (right,),
            flips=budget.TOP_FLIPS,
        )

    def delta_matches(
        self,
        observed: Scores,
        observed_base: Scores,
        reference: Reference,
        reference_base: Reference,
        name: str = "direction of the delta",
    ) -> Judgement:
        """The adapter's delta points where the reference's does."""
        right, base = self._pair(observed, reference, reference_base)
        return self._against(
            "delta",
            name,
            lambda: compare_deltas(observed, observed_base, right, base),
            {"observed": observed, "observed_base": observed_base},
            (right, base),
            theta=self._theta,
        )

    def scale_is(
        self,
        observed: Scores,
        observed_base: Scores,
        reference: Reference,
        reference_base: Reference,
        expected: float = 1.0,
        *,
        name: str = "scale of the delta",
    ) -> Judgement:
        """The delta is `expected` times the reference's, within theta."""
        right, base = self._pair(observed, reference, reference_base)
        return self._against(
            "scale",
            name,
            lambda: compare_deltas(observed, observed_base, right, base),
            {"observed": observed, "observed_base": observed_base},
            (right, base),
            expected=expected,
            theta=self._theta,
        )

    def gain_is(
        self,
        observed: Scores,
        observed_base: Scores,
        reference: Reference,
        reference_base: Reference,
        name: str = "gain on the task",
    ) -> Judgement:
        """The adapter gains on its own domain what the reference gains (R16)."""
        right, base = self._pair(observed, reference, reference_base)
        return self._against(
            "gain",
            name,
            lambda: compare_gains(observed, observed_base, right, base),
            {"observed": observed, "observed_base": observed_base},
            (right, base),
            margin=budget.GAIN_MARGIN,
        )

    def _pair(
        self, observed: Scores, reference: Reference, base: Reference
    ) -> tuple[Reference, Reference]:
        return reference.on(observed.prompts), base.on(observed.prompts)

    def _against(
        self,
        kind: str,
        name: str,
        compare: Callable[[], dict[str, Any]],
        observed: dict[str, Scores],
        references: tuple[Reference, ...],
        **parameters: Any,
    ) -> Judgement:
        """Compare finite logits against finite references, and judge.

        :raises ValueError: a reference is not finite, or shapes differ; our bug.
        """
        right = [s for r in references for s in (r.exact, r.device)]
        if not all(s.finite for s in right):
            raise ValueError("the golden holds logits that are NaN or infinite")
        aligned(*observed.values(), *right)
        broken = nonfinite(**observed)
        common = {
            "alpha": self._alpha(),
            "factor": budget.FLOOR_FACTOR,
            "spread": budget.SPREAD,
        }
        statistics = {"nonfinite": broken} if broken else compare()
        return self._judge(kind, name, statistics, common | parameters, observed)

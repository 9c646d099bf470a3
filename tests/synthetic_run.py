"""Records of runs that never were, for the tests of the report."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from harness.evidence import AdapterFacts
from harness.evidence import Check
from harness.evidence import Environment
from harness.evidence import Judged
from harness.evidence import Planned
from harness.evidence import Record
from harness.evidence import Run
from harness.evidence import RunFolder
from harness.evidence import Status
from harness.verdict import Judgement
from harness.verdict.decide import decide


__all__ = ["SyntheticRun", "judged"]

STARTED = 1_782_000_000.0


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def judged(
    kind: str, name: str, statistics: dict[str, Any], parameters: dict[str, Any]
) -> Judgement:
    """A judgement that derives again: made by the rule itself."""
    return Judgement(
        kind,
        name,
        *decide(kind, statistics, parameters)[:2],
        statistics,
        parameters,
        decide(kind, statistics, parameters).reason,
    )


def distance(value: float, limit: float = 0.0163) -> Judgement:
    parameters = {"limit": limit, "unit": "relative L2", "source": "2 x numeric floor"}
    return judged("at most", "as the reference", {"value": value}, parameters)


def same(differing: int = 0) -> Judgement:
    statistics = {
        "prompts": ["a", "b"],
        "rows": 64,
        "differing": differing,
        "digests": [digest("x"), digest("y" if differing else "x")],
        "error": [0.1 if differing else 0.0, 0.0],
        "norm": [1.0, 1.0],
    }
    parameters = {"floor": None, "alpha": None}
    return judged("same", "the same state", statistics, parameters)


def apart(value: float) -> Judgement:
    statistics = {
        "prompts": ["a", "b"],
        "rows": 64,
        "differing": 64 if value else 0,
        "digests": [digest("x"), digest("z")],
        "error": [value * value] * 2,
        "norm": [1.0, 1.0],
    }
    parameters = {"floor": None, "alpha": None, "at_least": 0.01, "effect": None}
    return judged("differs", "another state", statistics, parameters)


def scale(value: float, spread: float = 0.001) -> Judgement:
    """:param spread: of the scale from prompt to prompt."""
    offsets = [value - 1 + spread * step for step in (-1.5, -0.5, 0.5, 1.5) * 2]
    statistics = {
        "prompts": [f"p{k}" for k in range(8)],
        "effect": [1.0] * 8,
        "cross": offsets,
        "error": [x * x + 1e-5 for x in offsets],
        "floor_cross": [spread] * 8,
    }
    parameters = {
        "expected": 1.0,
        "theta": 0.01,
        "gain": 1.0,
        "alpha": 1e-5,
        "factor": 2.0,
    }
    return judged("scale", "scale is one", statistics, parameters)


def control(name: str, found: bool = True) -> Judgement:
    inner = scale(0.5 if found else 1.0)
    statistics = {
        "inner": [
            {
                "kind": inner.kind,
                "name": inner.name,
                "statistics": inner.statistics,
                "parameters": inner.parameters,
            }
        ]
    }
    return judged("control", name, statistics, {})


@dataclass
class SyntheticRun:
    """Collects records as a run would.

    :param hostile: put into every text that can come from a board.
    """

    boards: tuple[str, ...] = ("sim-bm1688", "sim-rk1828")
    adapters: tuple[str, ...] = ("domain-r8", "wide-r32")
    simulated: bool = True
    fault: str = ""
    hostile: str = ""
    records: list[Record] = field(default_factory=list)
    clock: float = STARTED

    def check(
        self,
        requirement: str,
        name: str,
        board: str,
        adapter: str = "",
        judgements: Iterable[Judgement] = (),
        *,
        status: Status | None = None,
        reason: str = "",
        attempt: int = 1,
        planned: bool = True,
        ended: bool = True,
    ) -> None:
        """A check of the plan, and how it ended."""
        who = "-".join(part for part in (board, adapter) if part)
        nodeid = f"suites/test_{requirement.lower()}.py::test_{name}[{who}]"
        requirements = (requirement,)
        if planned:
            title = f"{name.replace('_', ' ').capitalize()}."
            self.records.append(Planned(nodeid, board, adapter, requirements, title))
        judgements = list(judgements)
        for judgement in judgements if ended else ():
            self.records.append(
                Judged(nodeid, board, adapter, requirements, attempt, judgement)
            )
        if not ended:
            return
        self.clock += 0.7
        worst = next((j for j in judgements if j.outcome != "PASS"), None)
        if worst is not None and status is None:
            status = Status(str(worst.outcome))
            reason = reason or f"{worst.name}: {worst.reason}"
        self.records.append(
            Check(
                nodeid,
                board,
                adapter,
                requirements,
                attempt,
                status or Status.PASS,
                reason + (self.hostile if reason else ""),
                0.7,
                self.clock,
            )
        )

    def suite(self, board: str, adapter: str) -> None:
        """What a sound board shows for one adapter."""
        # Values differ from adapter to adapter, reproducibly.
        part = int(digest(board + adapter)[:6], 16) / 0xFFFFFF
        for phase in ("prefill", "decode"):
            near = 0.004 + 0.008 * part
            self.check("R10", f"base_{phase}", board, adapter, [distance(near)])
            self.check(
                "R11",
                f"loaded_{phase}",
                board,
                adapter,
                [apart(0.2 + part), distance(near * 0.8)],
            )
            self.check("R12", f"cleared_{phase}", board, adapter, [same()])
            self.check("R13", f"reloaded_{phase}", board, adapter, [same()])
            self.check("R53", f"gap_{phase}", board, adapter, [distance(near / 2)])
        self.check("R20", "scale_is_one", board, adapter, [scale(1 + 0.002 * part)])
        for wrong in ("scale halved", "one layer dropped", "factors swapped"):
            name = "found_" + wrong.replace(" ", "_")
            self.check("R91", name, board, adapter, [control(wrong)])

    def frame(self, boards: Iterable[str] | None = None) -> None:
        """Run, environments and adapters."""
        for board in self.boards if boards is None else boards:
            self.records.append(Environment(board, self.environment(board)))
        facts = {"rank": 8, "alpha": 16, "scale": 2.0, "modules": 28}
        for board, adapter in itertools.product(self.boards, self.adapters):
            self.records.append(AdapterFacts(board, adapter, digest(adapter), facts))
        self.records.append(
            Run(
                "20260621-000000-000001",
                STARTED,
                ("pytest", *(f"--board={board}" for board in self.boards)),
                "0.1.0+464f8cb00000",
                "3.11.9",
                {"numpy": "2.3.0", "scipy": "1.16.0"},
            )
        )

    def environment(self, board: str) -> dict[str, Any]:
        return {
            "board": board,
            "platform": board.partition("-")[2],
            "simulated": self.simulated,
            "versions": {"runtime": "3.4.9" + self.hostile, "driver": "0.5.1"},
            "probe": digest("probe"),
            "model": {"digest": digest(board), "layers": "4", "reserved_rank": "32"},
            "sidecar": {"weights": digest("weights"), "quantize": "bf16"},
            "loader": "reference",
            "host": {"kernel": "6.1.0" + self.hostile, "python": "3.8.18"},
            "base": {"weights": digest("weights"), "tokenizer": digest("tokens")},
            "golden": {"scheme": "bf16", "versions": {"torch": "2.9", "peft": "0.18"}},
            "fault": self.fault,
        }

    def sound(self) -> SyntheticRun:
        """A whole run in which everything passes."""
        for board in self.boards:
            self.check("R90", "named", board, "", [same()])
            for adapter in self.adapters:
                self.suite(board, adapter)
        self.frame()
        return self

    def keep(self, folder: Path) -> RunFolder:
        """Write the records into a run folder."""
        run = RunFolder(folder)
        for record in self.records:
            run.append(record)
        run.merge()
        return run

"""One board, one worker: how pytest-xdist hands out the checks.

pytest 9.2 with xdist 3.8 ignores `xdist_group` without a word, so the scope is
computed here, by two overrides of `LoadScopeScheduling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from xdist.scheduler import LoadScopeScheduling


if TYPE_CHECKING:
    import pytest


__all__ = ["BoardScheduling", "board_of"]


def board_of(nodeid: str, boards: Sequence[str]) -> str | None:
    """The board a check runs on, from its node id `...[BOARD-...]`.

    :param boards: all names; the longest that fits wins.
    """
    _, bracket, parameters = nodeid.partition("[")
    parameters = parameters.rpartition("]")[0]
    fitting = [
        name
        for name in boards
        if parameters == name or parameters.startswith(f"{name}-")
    ]
    return max(fitting, key=len) if bracket and fitting else None


class BoardScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Checks of one board stay together, in order, on one worker.

    Tests without a board are spread as `--dist` says: one by one, or by file or
    scope.
    """

    def __init__(self, config: pytest.Config, log: Any, boards: Sequence[str]) -> None:
        super().__init__(config, log)
        self._boards = tuple(boards)
        self._dist = config.getoption("dist")

    def _split_scope(self, nodeid: str) -> str:
        board = board_of(nodeid, self._boards)
        if board is not None:
            return board
        match self._dist:
            case "loadfile":
                return nodeid.split("::", 1)[0]
            case "loadscope":
                return nodeid.rsplit("::", 1)[0]
        return nodeid

    def remove_node(self, node: Any) -> str | None:
        """Hand the rest of a crashed worker's checks to another worker.

        The base class hands out the crashed check again, for ever if it is the
        check that kills the worker; here it counts as done and failed.
        """
        workload = self.assigned_work.pop(node)
        for unit in workload.values():
            crashed = next((nodeid for nodeid, done in unit.items() if not done), None)
            if crashed is not None:
                unit[crashed] = True
                break
        else:
            return None
        self.workqueue.update(
            (scope, unit) for scope, unit in workload.items() if not all(unit.values())
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return str(crashed)

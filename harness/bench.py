"""A board brought up for checks: leased, provisioned, its probe running."""

from __future__ import annotations

import getpass
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Self

from harness.artifacts.convert import Artifact
from harness.artifacts.convert import convert
from harness.artifacts.model import Base
from harness.artifacts.provision import Store
from harness.boards import simulated
from harness.boards.health import Health
from harness.boards.health import preflight
from harness.boards.inventory import Board
from harness.boards.lease import Lease
from harness.cache import cache_folder
from harness.deadline import Deadline
from harness.errors import HarnessError
from harness.errors import RuntimeFault
from harness.golden import GoldenStore
from harness.golden import PromptSet
from harness.hosts import open_host
from harness.runtimes.device import Device
from harness.runtimes.remote import RemoteRuntime
from harness.verdict.floor import RepeatFloor


__all__ = ["Bench", "Progress"]

Progress = Callable[[str], None]

# A simulated board starts in about a second; ten cover a busy machine.
START_UP_S = 20.0
# Reading, converting and writing a 2B checkpoint takes minutes; an hour means
# that the converter hangs.
CONVERT_S = 3600.0
# State checks are exact wherever a board is deterministic, so a few rows
# decide them: 4 prompts x 8 rows see any change that reaches the logits.
BRIEF_PROMPTS, BRIEF_ROWS = 4, 8


class Bench:
    """One board in the hands of the checks. Use as a context manager.

    :raises Infrastructure: the board or the lab is away or unfit.
    :raises UsageFault: base, golden, loader or converter as given are bad.
    """

    def __init__(
        self,
        board: Board,
        *,
        fault: str | None = None,
        golden: Path | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self.board = board
        self.golden_folder = golden or board.golden
        self._fault = fault
        self._progress = progress
        self._resources = ExitStack()
        self._fingerprint = ""
        self.device: Device
        self.health: Health
        self.artifact: Artifact | None = None

    def __enter__(self) -> Self:
        try:
            self._bring_up()
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._resources.close()

    def _bring_up(self) -> None:
        board = self.board
        if board.simulated:
            board = self._start_simulated()
        self._progress(f"{board.name}: connecting")
        host = open_host(board)
        self._resources.callback(host.close)
        self.health = preflight(host, board.workdir)
        owner = f"{getpass.getuser()}@{socket.gethostname()}"
        self.lease = Lease(host, board.workdir, owner)
        self._resources.enter_context(self.lease)
        store = Store(host, board.workdir)
        model = board.model
        if board.convert:
            assert board.base is not None  # the inventory demands it with convert
            self._progress(f"{board.name}: converting {board.base.name}")
            self.artifact = convert(
                board.convert,
                board.base,
                cache_folder() / "models",
                Deadline(CONVERT_S),
            )
            self._progress(f"{board.name}: provisioning")
            model = store.put_file(self.artifact.path)
        assert model is not None  # the inventory demands one of the two
        runtime = RemoteRuntime(
            host,
            store,
            platform=board.platform,
            model=model,
            workdir=board.workdir,
            loader=board.loader,
        )
        self._resources.callback(runtime.close)
        self.device = Device(runtime, store)
        self._fingerprint = self._look()
        self._deterministic = self._fingerprint == self._look()
        self._progress(f"{board.name}: up")

    def _start_simulated(self) -> Board:
        root = Path(tempfile.mkdtemp(prefix=f"{self.board.name}-"))
        self._resources.callback(shutil.rmtree, root, ignore_errors=True)
        simulation = simulated.start(
            self.board.name,
            self.board.platform,
            root,
            self._fault,
            Deadline(START_UP_S),
        )
        self._resources.callback(simulation.stop)
        return self.board.model_copy(
            update={
                "host": simulation.host,
                "identity": simulation.identity,
                "known_hosts": simulation.known_hosts,
                "workdir": simulation.workdir,
                "loader": simulation.loader or self.board.loader,
            }
        )

    @cached_property
    def golden(self) -> GoldenStore:
        """The stored right answers, checked against the base."""
        assert self.golden_folder is not None and self.board.base is not None
        return GoldenStore.open(self.golden_folder, self.board.base)

    @cached_property
    def base(self) -> Base:
        """Facts on the base checkpoint."""
        assert self.board.base is not None
        return Base.open(self.board.base)

    @cached_property
    def brief(self) -> PromptSet:
        """The prompts of the state checks."""
        return self.golden.prompts.few(BRIEF_PROMPTS, BRIEF_ROWS)

    def begin(self) -> Device:
        """The device in its base state, whatever the check before left.

        What `clear` leaves behind must not spoil the next check: where a
        deterministic board no longer answers as at its first start, the
        software is restarted.
        """
        self.lease.check()
        try:
            self.device.clear()
            clean = not self._deterministic or self._look() == self._fingerprint
        except (RuntimeFault, HarnessError):
            clean = False
        if not clean:
            self.device.restart()
        return self.device

    def _look(self) -> str:
        return self.device.fresh().score(self.brief.few(1, 2)).digest

    @cached_property
    def floor(self) -> RepeatFloor:
        """The board's own noise, measured before anything is judged (R14)."""
        self._progress(f"{self.board.name}: repeat floor")
        device = self.begin()

        return RepeatFloor.measure(lambda: device.fresh().score(self.brief))

    def environment(self) -> dict[str, object]:
        """Everything that was tested, for the page (R90)."""
        identity = self.device.identity
        base = self.base.identity
        return {
            "board": self.board.name,
            "platform": identity.platform,
            "simulated": self.board.simulated,
            "versions": dict(identity.versions),
            "probe": identity.probe,
            "model": dict(identity.model),
            "sidecar": self.artifact.sidecar if self.artifact else {},
            "loader": self.board.loader,
            "host": asdict(self.health),
            "base": asdict(base),
            "golden": {
                "scheme": self.golden.scheme,
                "prompts": self.golden.prompts.digest,
                "versions": dict(self.golden.versions),
            },
            "fault": self._fault or "",
        }

"""A board brought up for checks: leased, provisioned, its probe running."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import shutil
import socket
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Self
from typing import TypeVar

from harness.artifacts.adapter import Adapter
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
from harness.errors import RuntimeFault
from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import PromptSet
from harness.golden import Scores
from harness.hosts import open_host
from harness.hosts.host import Host
from harness.runtimes.device import Device
from harness.runtimes.remote import RemoteRuntime
from harness.runtimes.runtime import Phase
from harness.verdict.budget import ALPHA_RUN
from harness.verdict.floor import RepeatFloor


__all__ = ["Bench", "Progress", "reached"]

T = TypeVar("T")
Progress = Callable[[str], None]

# A simulated board starts in about a second; this covers a busy machine.
START_UP_S = 20.0
# Reading, converting and writing a 2B checkpoint takes minutes; an hour means
# that the converter hangs.
CONVERT_S = 3600.0
# State checks are exact wherever a board is deterministic, so a few rows
# decide them: 4 prompts x 8 rows see any change that reaches the logits.
BRIEF_PROMPTS, BRIEF_ROWS = 4, 8


@contextmanager
def reached(
    board: Board, fault: str | None = None, progress: Progress = lambda line: None
) -> Iterator[tuple[Board, Host, Health]]:
    """A board with its address, its host, and what it says of itself.

    A simulated board is started, and ended afterwards.

    :raises Infrastructure: it is away, or unfit for a probe.
    """
    with ExitStack() as resources:
        if board.simulated:
            board = _started(board, fault, resources)
        progress(f"{board.name}: connecting")
        host = open_host(board)
        resources.callback(host.close)
        yield board, host, preflight(host, board.workdir)


def _started(board: Board, fault: str | None, resources: ExitStack) -> Board:
    root = Path(tempfile.mkdtemp(prefix=f"{board.name}-"))
    resources.callback(shutil.rmtree, root, ignore_errors=True)
    simulation = simulated.start(
        board.name, board.platform, root, fault, Deadline(START_UP_S)
    )
    resources.callback(simulation.stop)
    return board.model_copy(
        update={
            "host": simulation.host,
            "identity": simulation.identity,
            "known_hosts": simulation.known_hosts,
            "workdir": simulation.workdir,
            "loader": simulation.loader or board.loader,
        }
    )


class Bench:
    """One board in the hands of the checks. Use as a context manager.

    :param loud: an adapter that touches as much of the board as any, to measure the
        loaded state's noise with.
    :raises Infrastructure: the board or the lab is away or unfit.
    :raises UsageFault: base, golden, loader or converter as given are bad.
    """

    def __init__(
        self,
        board: Board,
        loud: Adapter,
        *,
        fault: str | None = None,
        golden: Path | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self.board = board
        self.loud = loud
        self.golden_folder = golden or board.golden
        self._fault = fault
        self._progress = progress
        self._resources = ExitStack()
        self._fingerprint = ""
        self._base_scores: dict[tuple[str, str], Scores] = {}
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
        board, host, self.health = self._resources.enter_context(
            reached(self.board, self._fault, self._progress)
        )
        self._under_test = board.loader
        owner = f"{getpass.getuser()}@{socket.gethostname()}"
        self.lease = Lease(host, board.workdir, owner)
        self._resources.enter_context(self.lease)
        store = Store(host, board.workdir)
        self._resources.callback(store.close)
        if board.convert:
            self._progress(f"{board.name}: converting {self.base.folder.name}")
            self.artifact = convert(
                board.convert,
                self.base.folder,
                cache_folder() / "models",
                Deadline(CONVERT_S),
            )
            self._progress(f"{board.name}: provisioning")
        runtime = RemoteRuntime(
            host,
            store,
            platform=board.platform,
            model=(
                store.put_file(self.artifact.path)
                if self.artifact
                else self._given("model", board.model)
            ),
            workdir=board.workdir,
            loader=board.loader,
        )
        self._resources.callback(runtime.close)
        self.device = Device(runtime, store)
        self._fingerprint = self._look()
        self._deterministic = self._fingerprint == self._look()
        self._progress(f"{board.name}: up")

    def _given(self, key: str, value: T | None) -> T:
        """What the inventory says of this board.

        :raises UsageFault: it does not say it.
        """
        if value is None:
            raise UsageFault(
                f"no {key}",
                where=f"board {self.board.name}",
                cure=f"set {key} = in boards.toml",
            )
        return value

    @cached_property
    def golden(self) -> GoldenStore:
        """The stored right answers, checked against the base."""
        folder = self._given("golden", self.golden_folder)
        return GoldenStore.open(folder, self.base.folder)

    @cached_property
    def base(self) -> Base:
        """Facts on the base checkpoint."""
        return Base.open(self._given("base", self.board.base))

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
        except RuntimeFault:
            clean = False
        if not clean:
            self._progress(f"{self.board.name}: not back in base, restarting")
            self.device.restart()
        return self.device

    def base_scores(self, prompts: PromptSet, phase: Phase = "prefill") -> Scores:
        """What the board answers in its base state, asked once.

        Call it right after `begin`, which proves that the base still answers as at
        the first start.
        """
        key = (phase, prompts.digest)
        if key not in self._base_scores:
            self._base_scores[key] = self.device.fresh(phase).score(prompts)
        return self._base_scores[key]

    def _loader(self) -> dict[str, str]:
        """The loader under test; a file of ours by its digest."""
        place, _, name = self._under_test.rpartition(":")
        if not place.endswith(".py"):
            return {"name": self._under_test}
        digest = hashlib.sha256(Path(place).read_bytes()).hexdigest()
        return {"name": f"{Path(place).name}:{name}", "sha256": digest}

    def _look(self) -> str:
        return self.device.fresh().score(self.brief.few(1, 2)).digest

    @cached_property
    def floor(self) -> RepeatFloor:
        """The board's own noise, measured before anything is judged (R14).

        A low-rank branch may be noisy where the base is not, so both states are
        measured and the noisier one counts.
        """
        self._progress(f"{self.board.name}: repeat floor")
        device = self.begin()

        def measure() -> RepeatFloor:
            return RepeatFloor.measure(lambda: device.fresh().score(self.brief))

        floors = [measure()]
        # A board that takes no adapter has no other state; its checks will say so.
        with contextlib.suppress(RuntimeFault):
            device.apply(self.loud.folder)
            floors.append(measure())
        self.begin()
        return max(floors, key=lambda floor: floor.limit(ALPHA_RUN))

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
            "loader": self._loader(),
            "host": asdict(self.health),
            "base": asdict(base),
            "golden": {
                "scheme": self.golden.scheme,
                "prompts": self.golden.prompts.digest,
                "versions": dict(self.golden.versions),
            },
            "fault": self._fault or "",
        }

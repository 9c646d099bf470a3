"""A board brought up for checks: leased, provisioned, its probe running."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import socket
import tempfile
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Self
from typing import TypeVar

from harness.artifacts.adapter import Adapter
from harness.artifacts.artifact import Artifact
from harness.artifacts.convert import bundle_of
from harness.artifacts.convert import model_of
from harness.artifacts.model import Base
from harness.artifacts.provision import Store
from harness.artifacts.supply import Bundles
from harness.artifacts.supply import Folders
from harness.artifacts.supply import Supply
from harness.boards.health import Health
from harness.boards.inventory import Board
from harness.boards.lease import Lease
from harness.cache import cache_folder
from harness.errors import RuntimeFault
from harness.errors import UsageFault
from harness.golden import GoldenStore
from harness.golden import PromptSet
from harness.golden import Scores
from harness.kits import Kits
from harness.reach import Progress
from harness.reach import reached
from harness.runtimes.device import Device
from harness.runtimes.remote import RemoteRuntime
from harness.runtimes.runtime import Phase
from harness.verdict.budget import ALPHA_RUN
from harness.verdict.budget import THETA
from harness.verdict.floor import RepeatFloor


__all__ = ["Bench"]

T = TypeVar("T")

# State checks are exact wherever a board is deterministic, so a few rows decide
# them: prompts and rows of each by the cheaper graph, for in decode a row costs a
# step. Three prompts still tell a rounding from a missing adapter.
BRIEF: dict[Phase, tuple[int, int]] = {"prefill": (4, 8), "decode": (3, 4)}


class Bench:
    """One board in the hands of the checks. Use as a context manager.

    :param adapters: the adapters under test.
    :raises Infrastructure: the board or the lab is away or unfit.
    :raises UsageFault: base, golden, loader or converter as given are bad.
    """

    def __init__(
        self,
        board: Board,
        adapters: Sequence[Adapter],
        *,
        fault: str | None = None,
        golden: Path | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self.board = board
        self.adapters = adapters
        self.golden_folder = golden or board.golden
        self._fault = fault
        self._progress = progress
        self._resources = ExitStack()
        self._fingerprint = ""
        self._base_scores: dict[tuple[Phase, str], Scores] = {}
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
            self.artifact = model_of(
                board.convert, self.base, cache_folder() / "models"
            )
            self._progress(f"{board.name}: provisioning")
        scratch = tempfile.TemporaryDirectory(prefix=f"{board.name}-adapters-")
        self._resources.enter_context(scratch)
        self.kits = Kits(
            self.adapters,
            board.reserved_rank,
            lambda: THETA[self.golden.scheme],
            Path(scratch.name),
        )
        supply = self._supply(board, store, Path(scratch.name))
        runtime = RemoteRuntime(
            host,
            store,
            platform=board.platform,
            model=self._model(board, store),
            workdir=board.workdir,
            loader=board.loader,
        )
        self._resources.callback(runtime.close)
        self.device = Device(runtime, supply)
        self._fingerprint = self._look()
        self._deterministic = self._fingerprint == self._look()
        self._progress(f"{board.name}: up")

    def _supply(self, board: Board, store: Store, scratch: Path) -> Supply:
        command = board.bundle
        if command is None:
            return Folders(store)
        # What a converter that is wrong on purpose makes is nobody else's.
        faulty = command != self.board.bundle
        cache = (scratch if faulty else cache_folder()) / "bundles"
        return Bundles(
            store, lambda adapters: bundle_of(command, self.base, adapters, cache)
        )

    def _model(self, board: Board, store: Store) -> str:
        """Path over there of what the runtime loads."""
        if self.artifact is None:
            return self._given("model", board.model)
        path = self.artifact.for_board
        return store.put_folder(path) if path.is_dir() else store.put_file(path)

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
        held = self.artifact.dequantised if self.artifact else self.board.dequantised
        golden = GoldenStore.open(folder, *filter(None, [held]), self.base.folder)
        sidecar = self.artifact.sidecar if self.artifact else {}
        golden.check_floor(sidecar.get("scheme", golden.scheme), held)
        return golden

    @cached_property
    def base(self) -> Base:
        """Facts on the base checkpoint."""
        return Base.open(self._given("base", self.board.base))

    @cached_property
    def brief(self) -> PromptSet:
        """The prompts of the state checks."""
        return self.golden.prompts.few(*BRIEF[self.device.capabilities.phases[0]])

    def begin(self, stock: Mapping[str, Path]) -> Device:
        """The device in its base state, whatever the check before left.

        :param stock: the adapters to have at hand.

        What `clear` leaves behind must not spoil the next check: where a
        deterministic board no longer answers as at its first start, the
        software is restarted.
        """
        self.lease.check()
        if not self.device.supply.has(stock):
            self._progress(f"{self.board.name}: a bundle of {len(stock)} adapters")
            self.device.stock(stock)
        try:
            self.device.clear()
            clean = not self._deterministic or self._look() == self._fingerprint
        except RuntimeFault:
            clean = False
        if not clean:
            self._progress(f"{self.board.name}: not back in base, restarting")
            self.device.restart()
        return self.device

    def base_scores(self, prompts: PromptSet, phase: Phase | None = None) -> Scores:
        """What the board answers in its base state, asked once.

        Call it right after `begin`, which proves that the base still answers as at
        the first start.
        """
        key = (phase or self.device.capabilities.phases[0], prompts.digest)
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
        loud = self.kits.widest
        device = self.begin({loud.name: loud.folder})

        def measure() -> RepeatFloor:
            return RepeatFloor.measure(lambda: device.fresh().score(self.brief))

        floors = [measure()]
        # A board that takes no adapter has no other state; its checks will say so.
        with contextlib.suppress(RuntimeFault):
            device.apply(loud.folder)
            floors.append(measure())
        self.begin({})
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
            "bundle": dict(self.device.supply.facts),
            "loader": self._loader(),
            "host": asdict(self.health),
            "base": asdict(base),
            "golden": {
                "scheme": self.golden.scheme,
                "base": self.golden.base_digest,
                "device base": self.golden.index.device_base,
                "prompts": self.golden.prompts.digest,
                "versions": dict(self.golden.versions),
            },
            "fault": self._fault or "",
        }

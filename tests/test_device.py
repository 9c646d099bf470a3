"""A board in a suite's hands, whatever the scope of its switch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from local_board import ADAPTERS
from local_board import CRASH
from local_board import LocalBoard
from local_board import convert

from harness.artifacts.artifact import Artifact
from harness.artifacts.supply import Bundles
from harness.artifacts.supply import Folders
from harness.errors import ConversionRefused
from harness.errors import Infrastructure
from harness.errors import RuntimeDied
from harness.errors import RuntimeRefused
from harness.golden.prompts import Prompt
from harness.golden.prompts import PromptSet
from harness.runtimes.device import Device


PROMPTS = PromptSet(
    (
        Prompt("one", "d", tuple(range(5, 25)), tuple(range(30, 40))),
        Prompt("two", "d", (7,), (9, 8, 7)),
        Prompt("three", "d", tuple(range(100, 150)), (3,)),
    )
)


class SessionScoped:
    """A runtime whose sessions each have adapters of their own.

    A row of logits is the content of the adapters times their scale, and how many
    tokens the session holds.
    """

    identity = None
    capabilities = SimpleNamespace(phases=("prefill", "decode"))

    def __init__(self) -> None:
        self.loaded: dict[str, str] = {}
        self.sessions: list[_Session] = []
        self.starts = 1

    def load(self, artifact: str, name: str) -> None:
        if artifact.endswith("unloadable"):
            raise RuntimeRefused("cannot be loaded", vendor_code="-1")
        self.loaded[name] = artifact

    def unload(self, name: str) -> None:
        del self.loaded[name]

    def renew(self, bundle: str) -> None:
        self.loaded.clear()

    def session(self) -> _Session:
        self.sessions.append(_Session(self))
        return self.sessions[-1]

    def restart(self) -> None:
        starts = self.starts
        self.__init__()  # type: ignore[misc]
        self.starts = starts + 1


class _Session:
    def __init__(self, runtime: SessionScoped) -> None:
        self.runtime = runtime
        self.active: dict[str, float] = {}
        self.held = 0
        self.closed = False

    def activate(self, adapters: dict[str, float]) -> None:
        if any(self.runtime.loaded[name].endswith("unfit") for name in adapters):
            raise RuntimeRefused("does not fit", vendor_code="-2")
        self.active = dict(adapters)

    def reported(self) -> dict[str, float]:
        return self.active

    def reset(self) -> None:
        self.held = 0

    def close(self) -> None:
        self.closed = True

    def score(
        self,
        prompt: Sequence[int],
        continuation: Sequence[int],
        phase: str,
        *,
        cache: str = "kept",
    ) -> np.ndarray:
        if cache != "kept":
            self.reset()
        effect = sum(
            len(self.runtime.loaded[name]) * scale
            for name, scale in self.active.items()
        )
        row = [effect, self.held, phase == "decode"]
        self.held += len(prompt) + len(continuation)
        return np.array([row] * len(continuation), np.float32)


@pytest.fixture
def runtime() -> SessionScoped:
    return SessionScoped()


@pytest.fixture
def device(runtime: SessionScoped) -> Device:
    store = SimpleNamespace(
        put_folder=lambda folder: f"store/{folder.name}", forget=lambda: None
    )
    return Device(runtime, Folders(store))  # type: ignore[arg-type]


def effect(device: Device) -> float:
    logits = device.fresh().score(PROMPTS).logits
    assert not logits[:, 1:].any()  # from an empty cache, each of them
    assert len(set(logits[:, 0])) == 1
    return float(logits[0, 0])


def test_session_scope(device: Device, runtime: SessionScoped) -> None:
    assert effect(device) == 0
    device.apply(Path("abc"))
    assert effect(device) == len("store/abc")
    device.apply(Path("abcdef"), scale=0.5, name="abc")
    assert effect(device) == len("store/abcdef") / 2
    assert device.reported() == {"abc": 0.5}
    device.clear()
    assert effect(device) == 0
    device.apply(Path("abc"))
    device.restart()
    assert effect(device) == 0
    assert runtime.starts == 2


@pytest.mark.parametrize("bad", ["unfit", "unloadable"])
@pytest.mark.parametrize("name", ["good", "other"])
def test_after_a_refusal_all_is_as_before(
    device: Device, runtime: SessionScoped, bad: str, name: str
) -> None:
    device.apply(Path("good"))
    before, loaded = effect(device), dict(runtime.loaded)
    with pytest.raises(RuntimeRefused):
        device.apply(Path(bad), name=name)
    assert effect(device) == before
    assert runtime.loaded == loaded
    device.apply(Path("better"), name=name)
    assert effect(device) == len("store/better")


def test_a_first_adapter_that_is_refused_is_forgotten(
    device: Device, runtime: SessionScoped
) -> None:
    with pytest.raises(RuntimeRefused):
        device.apply(Path("unfit"))
    assert runtime.loaded == {}
    device.clear()
    assert effect(device) == 0


def test_conversations_beside_each_other(
    device: Device, runtime: SessionScoped
) -> None:
    device.apply(Path("abc"))
    with device.beside() as other:
        assert effect(other) == 0
        other.combine({Path("abc"): 0.5, Path("abcdef"): 2.0})
        assert effect(other) == len("store/abc") / 2 + 2 * len("store/abcdef")
        assert effect(device) == len("store/abc")
        other.clear()
        assert effect(device) == len("store/abc")
    assert [s.closed for s in runtime.sessions] == [False, True]


def test_what_a_prompt_finds_in_the_cache(device: Device) -> None:
    prompt = PROMPTS.few(1, 4)
    assert device.fresh().score(prompt).logits[0, 1] == 0
    assert device.further().score(prompt).logits[0, 1] == 24
    assert device.anew().score(prompt).logits[0, 1] == 0


def test_scoring_in_decode(device: Device) -> None:
    assert device.fresh("decode").score(PROMPTS).logits[:, 2].all()


class TestBundles:
    """Adapters that are at hand only together with others."""

    @pytest.fixture
    def device(self, runtime: SessionScoped, tmp_path: Path) -> Device:
        def make(adapters: Mapping[str, Path]) -> Artifact:
            if any((folder / "unfit").exists() for folder in adapters.values()):
                raise ConversionRefused("unfit")
            path = tmp_path / "-".join(adapters)
            path.write_text("")
            return Artifact(path, "", {})

        store = SimpleNamespace(
            put_file=lambda path: path.name,
            drop=lambda path: None,
            forget=lambda: None,
        )
        return Device(runtime, Bundles(store, make))  # type: ignore[arg-type]

    @pytest.fixture
    def folders(self, tmp_path: Path) -> dict[str, Path]:
        for name in ("a", "b", "c"):
            (tmp_path / "adapters" / name).mkdir(parents=True)
            (tmp_path / "adapters" / name / "file").write_text(name)
        return {name: tmp_path / "adapters" / name for name in ("a", "b", "c")}

    def test_one_start_for_all_of_a_bundle(
        self, device: Device, runtime: SessionScoped, folders: dict[str, Path]
    ) -> None:
        device.stock(folders)
        for folder in folders.values():
            device.apply(folder)
        assert runtime.starts == 2
        assert runtime.loaded == dict.fromkeys("abc", "a-b-c")

    def test_one_that_is_not_at_hand_is_no_fault_of_the_board(
        self, device: Device, runtime: SessionScoped, folders: dict[str, Path]
    ) -> None:
        device.stock({"a": folders["a"]})
        device.apply(folders["a"])
        with pytest.raises(Infrastructure, match="'b' is not at hand"):
            device.apply(folders["b"])
        # Its content changed since.
        (folders["a"] / "file").write_text("changed")
        with pytest.raises(Infrastructure, match="'a' is not at hand"):
            device.apply(folders["a"])
        assert runtime.starts == 2 and device.reported() == {"a": 1.0}

    def test_one_that_may_be_unfit_comes_with_others(
        self, device: Device, runtime: SessionScoped, folders: dict[str, Path]
    ) -> None:
        device.stock({"a": folders["a"]})
        device.apply(folders["a"])
        (folders["b"] / "unfit").write_text("")
        with pytest.raises(RuntimeRefused, match="unfit"):
            device.admit(folders["b"], folders["a"])
        assert runtime.starts == 2 and device.reported() == {"a": 1.0}
        device.admit(folders["c"], folders["a"])
        assert runtime.starts == 3 and device.reported() == {}
        device.admit(folders["a"])  # they are all there
        assert runtime.starts == 3
        device.apply(folders["c"])
        assert runtime.loaded == {"c": "c-a"}

    def test_a_renewal_is_no_restart_and_all_is_loaded_again(
        self, device: Device, runtime: SessionScoped, folders: dict[str, Path]
    ) -> None:
        device.stock(folders)
        device.apply(folders["a"])
        device.renew({"a": folders["b"]})
        assert runtime.starts == 2 and runtime.loaded == {}
        device.apply(folders["b"], name="a")
        assert runtime.starts == 2 and runtime.loaded == {"a": "a"}

    def test_unloaded_is_loaded_again(
        self, device: Device, runtime: SessionScoped, folders: dict[str, Path]
    ) -> None:
        device.stock(folders)
        device.apply(folders["a"])
        device.apply(folders["b"])
        device.unload("a")
        assert runtime.loaded == {"b": "a-b-c"}
        device.apply(folders["a"])
        assert runtime.loaded == {"b": "a-b-c", "a": "a-b-c"}


# On the simulated board


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBoard]:
    folder = tmp_path_factory.mktemp("device")
    board = LocalBoard(folder / "board", convert(folder / "model.bin"))
    yield board
    board.host.close()


@pytest.fixture(scope="module")
def real(board: LocalBoard) -> Iterator[Device]:
    with board.runtime() as runtime:
        yield Device(runtime, Folders(board.store))


def test_base_adapter_base_adapter(real: Device) -> None:
    prefill, decode = real.fresh().score(PROMPTS), real.fresh("decode").score(PROMPTS)
    assert prefill.logits.shape == (14, 512)
    assert prefill.finite
    assert np.abs(prefill.logits - decode.logits).max() < 0.5
    real.apply(ADAPTERS / "r8-all")
    assert real.reported() == {"r8-all": 1.0}
    loaded = real.fresh().score(PROMPTS)
    assert np.abs(loaded.logits - prefill.logits).max() > 1
    real.apply(ADAPTERS / "r4-qv", name="a")
    assert real.reported() == {"a": 1.0}
    assert real.fresh().score(PROMPTS).digest != loaded.digest
    real.apply(ADAPTERS / "r8-all")
    assert real.fresh().score(PROMPTS).digest == loaded.digest
    real.clear()
    assert real.reported() == {}
    assert real.fresh().score(PROMPTS).digest == prefill.digest
    assert real.fresh("decode").score(PROMPTS).digest == decode.digest
    assert not any(real.read_slot(s.name).any() for s in real.slots()[:28])


def test_a_bad_adapter_changes_nothing(real: Device, tmp_path: Path) -> None:
    real.apply(ADAPTERS / "r8-all")
    before = real.fresh().score(PROMPTS)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    for name in ("bad", "r8-all"):
        with pytest.raises(RuntimeRefused) as refused:
            real.apply(bad, name=name)
        assert refused.value.vendor_code == "file-missing"
        assert real.fresh().score(PROMPTS).digest == before.digest
        assert real.reported() == {"r8-all": 1.0}
    with pytest.raises(RuntimeRefused) as refused:
        real.apply(ADAPTERS / "r4-qv", scale=0.5)
    assert refused.value.vendor_code == "unsupported-scale"
    real.clear()


def test_a_restart_after_a_death_is_base(board: LocalBoard) -> None:
    with board.runtime() as runtime:
        device = Device(runtime, Folders(board.store))
        base = device.fresh().score(PROMPTS)
        device.apply(ADAPTERS / "r8-all")
        with pytest.raises(RuntimeDied):
            device.fresh().generate([CRASH], 1)
        with pytest.raises(RuntimeDied):
            device.fresh().score(PROMPTS)
        device.restart()
        assert device.fresh().score(PROMPTS).digest == base.digest
        assert device.reported() == {}


def test_a_restart_of_a_board_that_keeps_no_files(board: LocalBoard) -> None:
    with board.runtime() as runtime:
        device = Device(runtime, Folders(board.store))
        device.apply(ADAPTERS / "r8-all")
        loaded = device.fresh().score(PROMPTS)
        shutil.rmtree(board.root / "work")
        device.restart()
        device.apply(ADAPTERS / "r8-all")
        assert device.fresh().score(PROMPTS).digest == loaded.digest


def test_the_harness_adds_little_to_a_request(real: Device) -> None:
    """A request without computing: what the stream and both ends take."""
    session = real.runtime.session()
    session.reset()
    best = min(_time(session.reset) for _ in range(50))
    session.close()
    assert best < 0.003


def _time(call: Any) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin

"""The store on a board: nothing twice, nothing half, nothing damaged."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from ssh_server import Loopback
from ssh_server import Proxy
from ssh_server import serving

import harness
from harness.artifacts import provision
from harness.artifacts import questions
from harness.artifacts.provision import Store
from harness.boards.lease import Lease
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import DiskFull
from harness.errors import HostUnreachable
from harness.errors import ProtocolBroken
from harness.errors import TransferDamaged
from harness.errors import UsageFault
from harness.hosts import channel
from harness.hosts import local
from harness.hosts import transfer
from harness.hosts.local import LocalHost
from harness.hosts.local import LocalProcess


class CountingHost(LocalHost):
    """This machine, counting what is started on it and written to it.

    :ivar sent: bytes.
    :ivar turns: pieces of them; a question is one.
    :ivar cut_after: bytes after which the connection is lost.
    :ivar spoil: what becomes of each piece on its way.
    """

    def __init__(self, root: Path) -> None:
        super().__init__("board", root)
        self.started = 0
        self.sent = 0
        self.turns = 0
        self.cut_after: int | None = None
        self.spoil: Callable[[bytes], bytes] = lambda data: data

    def start(self, argv, **given) -> LocalProcess:  # type: ignore[no-untyped-def, override]
        process = super().start(argv, **given)
        self.started += 1
        write = process.write

        def counted(data: bytes, deadline: Deadline) -> None:
            self.sent += len(data)
            self.turns += 1
            if self.cut_after is not None and self.sent > self.cut_after:
                write(data[: self.cut_after - self.sent], deadline)
                raise HostUnreachable("the connection was lost")
            write(self.spoil(data), deadline)

        process.write = counted  # type: ignore[method-assign, assignment]
        return process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[CountingHost]:
    (tmp_path / "board").mkdir()
    host = CountingHost(tmp_path / "board")
    yield host
    host.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with serving("asyncssh", tmp_path_factory.mktemp("ssh") / "server") as running:
        yield running


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is killed sooner than in earnest."""
    monkeypatch.setattr(channel, "GRACE", 0.3)
    monkeypatch.setattr(local, "GRACE", 0.3)


@pytest.fixture
def there(host: CountingHost, tmp_path: Path) -> Callable[[str], Path]:
    """What a path for the board is on this machine."""
    return lambda path: tmp_path / "board" / path


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    (folder / "sub").mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "weights.safetensors").write_bytes(os.urandom(50_000))
    (folder / "sub" / "ü b.txt").write_text("text")
    (folder / "sub" / "same.json").write_text('{"r": 8}')
    return folder


# A question without contents has a few names of 64 digits.
QUESTION = 2000


def keepers(workdir: str | Path) -> list[psutil.Process]:
    """The processes that answer for the store in an absolute `workdir`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[-1:] == [f"{workdir}/store"]:
                found.append(process)
        except psutil.Error:
            pass  # it has ended meanwhile
    return found


def ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=5)[1]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def whole(store: Path) -> None:
    """Nothing is there but contents under their digests."""
    for path in store.iterdir():
        assert path.name == hashlib.sha256(path.read_bytes()).hexdigest()


def patch_far(
    patch: pytest.MonkeyPatch, module, line: str, after: str = "import os"
) -> None:  # type: ignore[no-untyped-def]
    """Have a program for the far side run `line` behind its import `after`."""
    name = "_KEEPER" if module is questions else "_COURIER"
    text: str = getattr(module, name)
    assert f"{after}\n" in text
    patch.setattr(module, name, text.replace(f"{after}\n", f"{after}\n{line}\n", 1))


class TestFile:
    def test_it_arrives_and_keeps_its_suffix(
        self, host: CountingHost, there: Callable[[str], Path], tmp_path: Path
    ) -> None:
        model = tmp_path / "a model.bmodel"
        model.write_bytes(os.urandom(100_000))
        path = Store(host, "work").put_file(model)
        assert path.startswith("work/store/")
        assert path.endswith(".bmodel")
        assert there(path).read_bytes() == model.read_bytes()

    def test_nothing_is_sent_twice(self, host: CountingHost, tmp_path: Path) -> None:
        model = tmp_path / "m.bmodel"
        model.write_bytes(os.urandom(100_000))
        store = Store(host, "work")
        first = store.put_file(model)
        assert 100_000 < host.sent < 100_000 + QUESTION
        before = host.sent, host.turns
        assert store.put_file(model) == first
        assert (host.sent, host.turns) == before
        # Another run asks once; another name of the same content is only linked.
        copy = shutil.copy(model, tmp_path / "copy.bin")
        other = Store(host, "work")
        assert other.put_file(model) == first
        assert other.put_file(Path(copy)).endswith(".bin")
        assert host.turns == before[1] + 2
        assert host.sent < before[0] + QUESTION

    def test_a_changed_file_is_another_one(
        self, host: CountingHost, there: Callable[[str], Path], tmp_path: Path
    ) -> None:
        store = Store(host, "work")
        file = tmp_path / "f"
        file.write_text("one")
        first = store.put_file(file)
        file.write_text("two")
        second = store.put_file(file)
        assert [there(p).read_text() for p in (first, second)] == ["one", "two"]

    @pytest.mark.parametrize("harm", ["flip", "cut", "folder", "link", "gone"])
    def test_damage_over_there_is_repaired(
        self,
        harm: str,
        host: CountingHost,
        there: Callable[[str], Path],
        tmp_path: Path,
    ) -> None:
        file = tmp_path / "f.bin"
        file.write_bytes(b"content" * 1000)
        path = there(Store(host, "work").put_file(file))
        if harm == "flip":
            path.write_bytes(b"C" + path.read_bytes()[1:])
        elif harm == "cut":
            os.truncate(path, 10)
        else:
            path.unlink()
        if harm == "folder":
            (path / "in").mkdir(parents=True)
        elif harm == "link":
            path.symlink_to(file)
        assert there(Store(host, "work").put_file(file)) == path
        assert path.is_file() and not path.is_symlink()
        assert path.read_bytes() == file.read_bytes()
        assert 14_000 < host.sent < 14_000 + 2 * QUESTION

    def test_no_file(self, host: CountingHost, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "no"):
            with pytest.raises(UsageFault, match="no such file"):
                Store(host, "work").put_file(path)

    def test_a_file_that_changes_under_way(
        self, host: CountingHost, there: Callable[[str], Path], tmp_path: Path
    ) -> None:
        file = tmp_path / "f"
        file.write_bytes(bytes(8 << 20))

        def change(name: str, sent: int, total: int) -> None:
            if sent == 2 << 20:
                with file.open("r+b") as open_file:
                    open_file.seek(6 << 20)
                    open_file.write(b"changed")

        with pytest.raises(UsageFault, match="changed while it was sent"):
            Store(host, "work", change).put_file(file)
        path = Store(host, "work").put_file(file)
        assert there(path).read_bytes() == file.read_bytes()

    def test_a_small_file_that_changes_under_way(
        self, host: CountingHost, there: Callable[[str], Path], tmp_path: Path
    ) -> None:
        file = tmp_path / "f"
        for change in (b"changed", b"grown to more than it was", b""):
            file.write_bytes(b"content")

            def spoil(data: bytes, change: bytes = change) -> bytes:
                file.write_bytes(change)
                return data

            host.spoil = spoil
            with pytest.raises(UsageFault, match="changed while it was sent"):
                Store(host, "work").put_file(file)
        host.spoil = lambda data: file.unlink() or data  # type: ignore[func-returns-value]
        with pytest.raises(UsageFault, match="changed while it was sent"):
            Store(host, "work").put_file(file)
        assert list(there("work/store").iterdir()) == []

    @pytest.mark.parametrize("size", [1, 300_000, 3 << 20])
    def test_damage_on_the_way(
        self,
        size: int,
        host: CountingHost,
        there: Callable[[str], Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # It must not lie there even until somebody removes it.
        patch_far(monkeypatch, questions, "os.unlink = None", "import sys")
        file = tmp_path / "f"
        file.write_bytes(bytes(size - 1) + b"\xff")
        host.spoil = lambda data: data.replace(b"\xff", b"\xfe")
        with pytest.raises(TransferDamaged, match=r"whole|another sha256"):
            Store(host, "work").put_file(file)
        assert list(there("work/store").iterdir()) == []

    def test_progress_of_large_files_only(
        self, host: CountingHost, tmp_path: Path
    ) -> None:
        steps: list[tuple[str, int, int]] = []
        store = Store(host, "work", lambda *step: steps.append(step))
        (tmp_path / "small").write_bytes(bytes(1000))
        (tmp_path / "large").write_bytes(bytes(9 << 20))
        store.put_file(tmp_path / "small")
        store.put_file(tmp_path / "large")
        assert {name for name, _, _ in steps} == {"large"}
        assert steps[-1] == ("large", 9 << 20, 9 << 20)

    @pytest.mark.parametrize("size", [10, 64 << 20])
    def test_no_room(self, size: int, host: CountingHost, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        os.truncate(file, size)
        with pytest.MonkeyPatch.context() as patch:
            # A board with a full disk, as `df` there would show it.
            patch_far(
                patch, questions, "os.statvfs = lambda p: os.statvfs_result([1] * 10)"
            )
            with pytest.raises(DiskFull, match=r"needs [\d,]+ bytes, 1 are free"):
                Store(host, "work").put_file(file)
        assert list((tmp_path / "board" / "work" / "store").iterdir()) == []
        assert host.sent < QUESTION

    def test_no_room_that_only_the_transfer_sees(
        self, host: CountingHost, tmp_path: Path
    ) -> None:
        huge = tmp_path / "huge"
        huge.touch()
        os.truncate(huge, 64 << 20)
        with pytest.MonkeyPatch.context() as patch:
            patch_far(
                patch, transfer, "os.statvfs = lambda p: os.statvfs_result([1] * 10)"
            )
            with pytest.raises(DiskFull, match=r"needs [\d,]+ bytes, 1 are free"):
                Store(host, "work").put_file(huge)
        assert list((tmp_path / "board" / "work" / "store").iterdir()) == []

    @pytest.mark.parametrize("step", ["replace", "link"])
    def test_no_room_that_only_the_write_sees(
        self, step: str, host: CountingHost, adapter: Path, tmp_path: Path
    ) -> None:
        store = Store(host, "work")
        with pytest.MonkeyPatch.context() as patch:
            full = "lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left'))"
            patch_far(
                patch, questions, f"os.{step} = shutil.copyfile = {full}", "import sys"
            )
            with pytest.raises(DiskFull, match=r"bytes, .* are free"):
                store.put_folder(adapter)
        whole(tmp_path / "board" / "work" / "store")
        assert store.put_folder(adapter) == Store(host, "work").put_folder(adapter)


class TestFolder:
    def test_it_arrives_whole(
        self, host: CountingHost, there: Callable[[str], Path], adapter: Path
    ) -> None:
        path = Store(host, "work").put_folder(adapter)
        assert tree(there(path)) == tree(adapter)

    def test_nothing_is_sent_twice(self, host: CountingHost, adapter: Path) -> None:
        store = Store(host, "work")
        first = store.put_folder(adapter)
        contents = 50_000 + len('{"r": 8}') + len("text")  # the same text goes once
        assert contents < host.sent < contents + 2 * QUESTION
        before = host.sent, host.turns
        assert store.put_folder(adapter) == first
        assert (host.sent, host.turns) == before
        assert Store(host, "work").put_folder(adapter) == first
        assert host.turns == before[1] + 1
        (adapter / "adapter_config.json").write_text('{"r": 16}')
        assert store.put_folder(adapter) != first
        assert host.sent < before[0] + 3 * QUESTION

    def test_small_folders_need_one_process(
        self, host: CountingHost, adapter: Path
    ) -> None:
        store = Store(host, "work")
        for number in range(20):
            (adapter / "adapter_config.json").write_text(str(number))
            store.put_folder(adapter)
        assert host.started == 1
        assert host.turns == 40

    def test_many_and_large_contents(
        self, host: CountingHost, there: Callable[[str], Path], tmp_path: Path
    ) -> None:
        folder = tmp_path / "many"
        folder.mkdir()
        for number in range(11):
            (folder / f"{number}").write_bytes(os.urandom(1 << 20))
        (folder / "large").write_bytes(os.urandom(3 << 20))
        (folder / "empty").touch()
        path = Store(host, "work").put_folder(folder)
        assert tree(there(path)) == tree(folder)
        assert 14 << 20 < host.sent < (14 << 20) + 9 * QUESTION
        (folder / "0").unlink()
        (folder / "only large").write_bytes(os.urandom(2 << 20))
        path = Store(host, "work").put_folder(folder)
        assert tree(there(path)) == tree(folder)
        assert 16 << 20 < host.sent < (16 << 20) + 18 * QUESTION

    def test_the_name_tells_content_and_places(
        self, host: CountingHost, adapter: Path
    ) -> None:
        store = Store(host, "work")
        first = store.put_folder(adapter)
        (adapter / "sub" / "same.json").rename(adapter / "sub" / "moved.json")
        assert store.put_folder(adapter) != first

    def test_an_interrupted_upload_leaves_nothing_visible(
        self, host: CountingHost, there: Callable[[str], Path], adapter: Path
    ) -> None:
        (adapter / "large").write_bytes(bytes(2 << 20))
        store = Store(host, "work")
        store.put_folder(adapter)
        total = host.sent
        for cut in (0, 3, 500, QUESTION, 1 << 20, total - 20_000, total - 1):
            shutil.rmtree(there("work/store"))
            store.close()
            host.sent, host.cut_after = 0, cut
            with pytest.raises(HostUnreachable):
                store.put_folder(adapter)
            host.close()  # the far side sees the end, too
            whole(there("work/store"))
        host.cut_after = None
        assert tree(there(store.put_folder(adapter))) == tree(adapter)

    @pytest.mark.parametrize("harm", ["flip", "missing", "extra", "file", "part"])
    def test_damage_over_there_is_repaired(
        self, harm: str, host: CountingHost, there: Callable[[str], Path], adapter: Path
    ) -> None:
        path = there(Store(host, "work").put_folder(adapter))
        if harm == "flip":
            # Through the hard link this harms the stored content as well.
            with (path / "weights.safetensors").open("r+b") as file:
                file.write(b"harm")
        elif harm == "missing":
            (path / "adapter_config.json").unlink()
        elif harm == "extra":
            (path / "left.tmp").write_text("by a loader")
        elif harm == "file":
            shutil.rmtree(path)
            path.write_text("no folder")
        elif harm == "part":
            shutil.rmtree(path)
            (path.parent / f".{path.name}.part").mkdir()
            (path.parent / f".{path.name}.part" / "left").write_text("half")
        assert there(Store(host, "work").put_folder(adapter)) == path
        assert tree(path) == tree(adapter)
        assert not list(path.parent.glob(".*"))

    def test_only_plain_files_are_sent(self, host: CountingHost, adapter: Path) -> None:
        store = Store(host, "work")
        odd = adapter / "sub" / "odd"
        odd.symlink_to("/etc/passwd")
        with pytest.raises(UsageFault, match="odd: a symbolic link"):
            store.put_folder(adapter)
        odd.unlink()
        odd.symlink_to(adapter)
        with pytest.raises(UsageFault, match="odd: a symbolic link"):
            store.put_folder(adapter)
        odd.unlink()
        os.mkfifo(odd)
        with pytest.raises(UsageFault, match="odd: a special file"):
            store.put_folder(adapter)
        assert host.sent == 0

    def test_no_folder_and_nothing_in_it(
        self, host: CountingHost, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageFault, match="no such folder"):
            Store(host, "work").put_folder(tmp_path / "no")
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageFault, match="an empty folder"):
            Store(host, "work").put_folder(tmp_path / "empty")

    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(
        files=st.dictionaries(
            st.text("abcé$' .", min_size=1, max_size=6).filter(lambda t: t.strip(".")),
            st.binary(max_size=40),
            min_size=1,
            max_size=4,
        )
    )
    def test_any_folder_arrives(
        self, files: dict[str, bytes], host: CountingHost, tmp_path: Path
    ) -> None:
        folder = tmp_path / "any"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        path = Store(host, "work").put_folder(folder)
        assert tree(tmp_path / "board" / path) == files


class TestLife:
    """One process over there, however it ends."""

    @pytest.fixture
    def workdir(self, tmp_path: Path) -> Path:
        return tmp_path / "board" / "work"

    def test_close_ends_it(
        self, host: CountingHost, workdir: Path, adapter: Path
    ) -> None:
        store = Store(host, str(workdir))
        assert not keepers(workdir)  # none before it is needed
        store.put_folder(adapter)
        running = keepers(workdir)
        assert len(running) == 1
        store.close()
        assert ended(running)
        store.close()
        shutil.rmtree(workdir)
        assert tree(Path(store.put_folder(adapter))) == tree(adapter)
        (again,) = keepers(workdir)
        host.close()
        assert ended([again])

    def test_it_ends_with_its_input(
        self, host: CountingHost, workdir: Path, adapter: Path
    ) -> None:
        process = host.start([sys.executable, "-c", questions._KEEPER, str(workdir)])
        assert process.read(len(questions.READY), Deadline(9)) == questions.READY
        process.write(struct.pack(">I", 500) + b"{", Deadline(1))
        process.end_input()
        assert process.read(1, Deadline(9)) == b""
        assert process.errors() == ""
        assert process.status() == 0

    def test_killed_between_two_questions(
        self, host: CountingHost, workdir: Path, adapter: Path
    ) -> None:
        store = Store(host, str(workdir))
        path = Path(store.put_folder(adapter))
        (running,) = keepers(workdir)
        running.kill()
        assert ended([running])
        # As after a restart of a board that keeps nothing.
        shutil.rmtree(workdir)
        assert Path(store.put_folder(adapter)) == path
        assert tree(path) == tree(adapter)

    def test_killed_in_the_middle(
        self, host: CountingHost, workdir: Path, adapter: Path
    ) -> None:
        store = Store(host, str(workdir))
        store.put_folder(adapter)
        (running,) = keepers(workdir)
        running.suspend()

        def kill(data: bytes) -> bytes:
            host.spoil = lambda data: data
            running.kill()
            return data

        host.spoil = kill
        (adapter / "adapter_config.json").write_text("another")
        with pytest.raises(CommandFailed) as failed:
            store.put_folder(adapter)
        assert failed.value.where == f"board:{workdir}/store"
        assert "status -9" in str(failed.value)
        assert failed.value.cure
        assert tree(Path(store.put_folder(adapter))) == tree(adapter)

    def test_a_bug_over_there_is_told(
        self,
        host: CountingHost,
        workdir: Path,
        adapter: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        patch_far(monkeypatch, questions, "os.statvfs = None")
        with pytest.raises(CommandFailed, match=r"status 1\): TypeError: .*callable"):
            Store(host, str(workdir)).put_folder(adapter)

    def test_one_that_hangs(
        self,
        host: CountingHost,
        workdir: Path,
        adapter: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store = Store(host, str(workdir))
        store.put_folder(adapter)
        (running,) = keepers(workdir)
        running.suspend()
        monkeypatch.setattr(provision, "_LEAST_SECONDS", 0.3)
        (adapter / "adapter_config.json").write_text("another")
        with pytest.raises(CommandFailed, match=r"did not answer within 0\.3"):
            store.put_folder(adapter)
        assert ended([running])
        monkeypatch.undo()
        assert tree(Path(store.put_folder(adapter))) == tree(adapter)

    def test_forgotten_it_is_looked_for_again(
        self, host: CountingHost, workdir: Path, adapter: Path
    ) -> None:
        store = Store(host, str(workdir))
        paths = store.put_folder(adapter), store.put_file(adapter / "sub" / "same.json")
        shutil.rmtree(workdir)
        store.forget()
        assert store.put_folder(adapter) == paths[0]
        assert store.put_file(adapter / "sub" / "same.json") == paths[1]
        assert tree(Path(paths[0])) == tree(adapter)
        assert Path(paths[1]).read_text() == '{"r": 8}'
        assert host.started == 1

    def test_two_stores_at_once(
        self, host: CountingHost, workdir: Path, tmp_path: Path
    ) -> None:
        """They make the same folders of the same contents at the same time."""
        folders = []
        for number in range(15):
            folder = tmp_path / f"f{number}"
            folder.mkdir()
            for file in range(20):
                (folder / f"{file}").write_text(f"{number} {file}")
            folders.append(folder)

        def put(store: Store) -> list[str]:
            return [store.put_folder(folder) for folder in folders]

        stores = [Store(host, str(workdir)) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(put, stores)
        assert first == second
        assert len(keepers(workdir)) == 2
        for folder, path in zip(folders, first, strict=True):
            assert tree(Path(path)) == tree(folder)
        assert not list((workdir / "store").glob(".*"))
        stores[0].close()
        assert len(keepers(workdir)) == 1
        stores[1].forget()
        assert put(stores[1]) == first


class TestOverSsh:
    def test_the_connection_is_lost(
        self, server: Loopback, tmp_path: Path, adapter: Path
    ) -> None:
        workdir = tmp_path / "work"
        proxy = Proxy(server.port)
        host = server.host(proxy.port)
        store = Store(host, str(workdir))
        path = Path(store.put_folder(adapter))
        (first,) = keepers(workdir)

        # Between two questions: it is made again, and all is looked for again.
        shutil.rmtree(workdir)
        proxy.cut()
        assert ended([first])
        assert Path(store.put_folder(adapter)) == path
        assert tree(path) == tree(adapter)

        # In the middle of one.
        (second,) = keepers(workdir)
        second.suspend()
        (adapter / "adapter_config.json").write_text("another")
        with ThreadPoolExecutor(1) as pool:
            put = pool.submit(store.put_folder, adapter)
            with pytest.raises(TimeoutError):
                put.result(0.3)
            proxy.cut()
            with pytest.raises(HostUnreachable) as lost:
                put.result(20)
        assert lost.value.where and lost.value.cure
        assert tree(Path(store.put_folder(adapter))) == tree(adapter)
        second.resume()  # it finds its input at an end
        assert ended([second])
        host.close()
        assert ended(keepers(workdir))
        proxy.close()

    def test_killed_in_the_middle(
        self, server: Loopback, tmp_path: Path, adapter: Path
    ) -> None:
        workdir = tmp_path / "work"
        host = server.host()
        store = Store(host, str(workdir))
        store.put_folder(adapter)
        (running,) = keepers(workdir)
        running.suspend()
        (adapter / "adapter_config.json").write_text("another")
        with ThreadPoolExecutor(1) as pool:
            put = pool.submit(store.put_folder, adapter)
            with pytest.raises(TimeoutError):
                put.result(0.3)
            running.kill()
            with pytest.raises(CommandFailed, match="status -9"):
                put.result(20)
        assert tree(Path(store.put_folder(adapter))) == tree(adapter)
        store.close()
        assert not keepers(workdir)
        host.close()


class TestDistrust:
    @pytest.fixture
    def shell(self, tmp_path: Path) -> Iterator[Callable[[str], LocalHost]]:
        """A host whose Python is a shell script."""
        hosts = []

        def made(script: str) -> LocalHost:
            python = tmp_path / "python"
            python.write_text(f"#!/bin/sh\n{script}\n")
            python.chmod(0o755)
            hosts.append(LocalHost("board", tmp_path, python=str(python)))
            return hosts[-1]

        yield made
        for host in hosts:
            host.close()

    @pytest.mark.parametrize(
        "answer",
        [
            *("noise", "[]", "{}", "null", "[" * 60_000, '{"whole": true}', '"\\ud800'),
            '{"whole": 1, "missing": []}',
            '{"whole": false, "missing": {}}',
            '{"whole": false, "missing": [7]}',
            '{"whole": false, "missing": [-1]}',
            '{"whole": false, "missing": [0, 0]}',
            '{"whole": false, "missing": [[]]}',
            '{"whole": true, "missing": [0]}',
            '{"full": ["a", "b"]}',
        ],
    )
    def test_an_odd_answer_is_refused(
        self, answer: str, adapter: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        host = shell("cat answer; exec cat >/dev/null")
        frame = struct.pack(">I", len(answer)) + answer.encode()
        Path(host.python).with_name("answer").write_bytes(questions.READY + frame)
        store = Store(host, "work")
        with pytest.raises(ProtocolBroken, match=r"work/store.*boards\.toml"):
            store.put_folder(adapter)
        # The next question goes to another one.
        host.python = sys.executable
        assert store.put_folder(adapter)

    @pytest.mark.parametrize("length", [1 << 17, 0xFFFFFFFF])
    def test_an_answer_without_end_is_refused(
        self, length: int, adapter: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        host = shell("cat answer; exec sleep 61")
        head = questions.READY + struct.pack(">I", length)
        Path(host.python).with_name("answer").write_bytes(head)
        with pytest.raises(ProtocolBroken):
            Store(host, "work").put_folder(adapter)

    def test_a_lie_about_contents_ends(
        self, adapter: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        host = shell("cat answer; exec cat >/dev/null")
        text = json.dumps({"whole": False, "missing": [0, 1]}).encode()
        frame = struct.pack(">I", len(text)) + text
        told = questions.READY + 3 * frame
        Path(host.python).with_name("answer").write_bytes(told)
        with pytest.raises(TransferDamaged, match=r"of 3 contents, 2 do not arrive"):
            Store(host, "work").put_folder(adapter)

    def test_a_greeting_comes_first(
        self, adapter: Path, tmp_path: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        greeting = r"""echo "Welcome: $*"; printf 'no end of line \0'"""
        host = shell(f'{greeting}; exec {sys.executable} "$@"')
        path = Store(host, "work").put_folder(adapter)
        assert tree(tmp_path / path) == tree(adapter)

    def test_a_greeting_without_end_is_refused(
        self, adapter: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        with pytest.raises(ProtocolBroken):
            Store(shell("yes"), "work").put_folder(adapter)

    def test_no_answer(
        self,
        adapter: Path,
        shell: Callable[[str], LocalHost],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(questions, "_START_SECONDS", 0.3)
        with pytest.raises(CommandFailed, match=r"did not answer within 0\.3 s"):
            Store(shell("exec sleep 61"), "work").put_folder(adapter)

    @pytest.mark.parametrize(
        ("script", "told"),
        [
            ("echo out; echo first >&2; echo last >&2; exit 3", r"status 3\): last - "),
            ("echo This account is closed.; exit 1", r"status 1\): This account is"),
            ("exit 0", r"status 0\): it said nothing"),
            ("exec no-such-python", r"status 127\): .*not found"),
        ],
    )
    def test_no_python(
        self, script: str, told: str, adapter: Path, shell: Callable[[str], LocalHost]
    ) -> None:
        with pytest.raises(CommandFailed, match=told):
            Store(shell(script), "work").put_folder(adapter)

    def test_no_place_for_a_store(self, host: CountingHost, adapter: Path) -> None:
        Path(host.address.removeprefix("local:"), "work").write_text("a file")
        with pytest.raises(CommandFailed, match=r"work/store.*boards.toml"):
            Store(host, "work").put_folder(adapter)


@pytest.mark.parametrize(
    "place", ["hosts/courier.py", "artifacts/keeper.py", "boards/holder.py"]
)
def test_what_runs_over_there_is_python_3_8(place: str) -> None:
    source = (Path(harness.__file__).parent / place).read_text("utf-8")
    ast.parse(source, feature_version=(3, 8))
    assert "harness" not in source  # it stands alone


def test_it_runs_on_python_3_8(adapter: Path, tmp_path: Path) -> None:
    old = shutil.which("python3.8") or "python3.8"
    host = LocalHost("board", tmp_path, python=old)
    if host.run([old, "-c", ""], deadline=Deadline(10)).status:
        pytest.skip("no python3.8 runs on this machine's PATH")
    path = Store(host, "work").put_folder(adapter)
    assert tree(tmp_path / path) == tree(adapter)
    (source,) = adapter.glob("*.safetensors")
    assert host.digest(f"{path}/{source.name}", deadline=Deadline(10))
    host.get(f"{path}/{source.name}", tmp_path / "b", deadline=Deadline(10), limit=9**9)
    assert (tmp_path / "b").read_bytes() == source.read_bytes()
    with Lease(host, "work", "me") as lease:
        lease.check()

"""The store on a board: nothing twice, nothing half, nothing damaged."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import harness
from harness.artifacts.provision import Store
from harness.boards.lease import Lease
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import DiskFull
from harness.errors import HostUnreachable
from harness.errors import ProtocolBroken
from harness.errors import UsageFault
from harness.hosts.local import LocalHost


class CountingHost(LocalHost):
    """This machine, counting what is sent and asked."""

    def __init__(self, root: Path) -> None:
        super().__init__("board", root)
        self.sent = 0
        self.asked = 0
        self.fail_after: int | None = None

    def put(self, source: Path, target: str, **given) -> None:  # type: ignore[no-untyped-def, override]
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise HostUnreachable("the connection was lost")
        self.sent += source.stat().st_size
        super().put(source, target, **given)

    def run(self, argv, **given):  # type: ignore[no-untyped-def, override]
        self.asked += 1
        return super().run(argv, **given)


@pytest.fixture
def host(tmp_path: Path) -> CountingHost:
    (tmp_path / "board").mkdir()
    return CountingHost(tmp_path / "board")


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


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
        assert (host.sent, host.asked) == (100_000, 1)
        assert store.put_file(model) == first
        assert (host.sent, host.asked) == (100_000, 1)
        # Another run asks once; another name of the same content is only linked.
        copy = shutil.copy(model, tmp_path / "copy.bin")
        other = Store(host, "work")
        assert other.put_file(model) == first
        assert other.put_file(Path(copy)).endswith(".bin")
        assert (host.sent, host.asked) == (100_000, 3)

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
        assert host.sent == 14_000

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

    def test_no_room(self, host: CountingHost, tmp_path: Path) -> None:
        huge = tmp_path / "huge"
        huge.touch()
        os.truncate(huge, 64 << 20)
        small = Store(host, "work")
        with pytest.MonkeyPatch.context() as patch:
            # A board with a full disk, as `df` there would show it.
            full = "import os\nos.statvfs = lambda p: os.statvfs_result([1] * 10)\n"
            from harness.hosts import transfer

            patch.setattr(
                transfer,
                "_COURIER",
                transfer._COURIER.replace("import errno\n", f"import errno\n{full}", 1),
            )
            with pytest.raises(DiskFull, match=r"needs [\d,]+ bytes, 1 are free"):
                small.put_file(huge)
        assert list((tmp_path / "board" / "work" / "store").iterdir()) == []


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
        assert (host.sent, host.asked) == (contents, 2)
        assert store.put_folder(adapter) == first
        assert (host.sent, host.asked) == (contents, 2)
        assert Store(host, "work").put_folder(adapter) == first
        assert (host.sent, host.asked) == (contents, 3)
        (adapter / "adapter_config.json").write_text('{"r": 16}')
        assert store.put_folder(adapter) != first
        assert host.sent == contents + len('{"r": 16}')

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
        whole = Store(LocalHost("x", there("elsewhere").parent), "spare")
        name = Path(whole.put_folder(adapter)).name
        for successes in (0, 1, 2):
            host.fail_after = successes
            with pytest.raises(HostUnreachable):
                Store(host, "work").put_folder(adapter)
            assert not there(f"work/store/{name}").exists()
            shutil.rmtree(there("work/store"))
        host.fail_after = None
        assert tree(there(Store(host, "work").put_folder(adapter))) == tree(adapter)

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


class TestDistrust:
    @pytest.mark.parametrize(
        "answer",
        ["noise", "[]", '{"folder": true}', '{"folder": 1, "missing": [7]}', "{}"],
    )
    def test_an_odd_answer_is_refused(
        self, answer: str, adapter: Path, tmp_path: Path
    ) -> None:
        liar = tmp_path / "python"
        liar.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n")
        liar.chmod(0o755)
        host = LocalHost("board", tmp_path, python=str(liar))
        with pytest.raises(ProtocolBroken):
            Store(host, "work").put_folder(adapter)

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

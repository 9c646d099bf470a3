"""The cache of converted models, with real converters as processes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from made_adapters import BASE
from made_adapters import write_base

from harness.artifacts.artifact import Artifact
from harness.artifacts.convert import convert
from harness.deadline import Deadline
from harness.errors import ConversionRefused
from harness.errors import Infrastructure
from harness.errors import UsageFault


# Writes its arguments as the model, after counting the call in a file.
CONVERTER = """
import hashlib, json, pathlib, sys, time
*options, base, out = sys.argv[1:]
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write("call\\n")
time.sleep(float((here / "wait").read_text()) if (here / "wait").exists() else 0)
model = json.dumps([options, pathlib.Path(base).name]).encode()
pathlib.Path(out).write_bytes(model)
sidecar = {"sha256": hashlib.sha256(model).hexdigest(), "digests": {}}
pathlib.Path(out + ".json").write_text(json.dumps(sidecar))
print("half way")
print("done")
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


@pytest.fixture
def converter(tmp_path: Path) -> Path:
    folder = tmp_path / "tool"
    folder.mkdir()
    (folder / "converter.py").write_text(CONVERTER)
    return folder


def run(folder: Path, base: Path, options: str = "", **more: Any) -> Artifact:
    command = f"{{python}} {folder / 'converter.py'} {options}"
    cache = folder.parent / "cache"
    return convert(command, base, cache, Deadline(30), **more)


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def script(folder: Path, text: str) -> Path:
    (folder / "converter.py").write_text(text)
    return folder


# A converter of adapters: refuses folders that hold a file `bad`, writes the contents
# of the others into the bundle, in the order given.
BUNDLER = """
import hashlib, json, pathlib, sys
base, out, *given = sys.argv[1:]
with pathlib.Path(__file__).with_name("calls").open("a") as calls:
    calls.write("call\\n")
found = []
for word in given:
    name, _, folder = word.partition("=")
    files = sorted(pathlib.Path(folder).iterdir())
    if any(file.name == "bad" for file in files):
        sys.exit(print(f"{name}: bad - mend it", file=sys.stderr) or 2)
    found.append([name, [file.read_text() for file in files]])
bundle = json.dumps(found).encode()
pathlib.Path(out).write_bytes(bundle)
sidecar = {"sha256": hashlib.sha256(bundle).hexdigest(), "adapters": dict(found)}
pathlib.Path(out + ".json").write_text(json.dumps(sidecar))
"""


def left_over(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")


class TestCache:
    def test_made_once(self, converter: Path, base: Path) -> None:
        first, second = run(converter, base), run(converter, base)
        assert first == second
        assert calls(converter) == 1
        model = first.path.read_bytes()
        assert hashlib.sha256(model).hexdigest() == first.digest
        assert first.sidecar["sha256"] == first.digest
        assert json.loads(model) == [[], "base"]
        assert left_over(converter.parent / "cache") == [first.path.parent.name]

    def test_progress(self, converter: Path, base: Path) -> None:
        lines: list[str] = []
        run(converter, base, progress=lines.append)
        assert lines == ["half way", "done"]

    def test_options_are_split_like_a_shell_does(
        self, converter: Path, base: Path
    ) -> None:
        artifact = run(converter, base, "--rank 32 'a b' $HOME")
        options, _ = json.loads(artifact.path.read_bytes())
        assert options == ["--rank", "32", "a b", "$HOME"]

    def test_another_command(self, converter: Path, base: Path) -> None:
        assert run(converter, base).path != run(converter, base, "--rank 8").path
        assert calls(converter) == 2

    def test_same_base_elsewhere(self, converter: Path, base: Path) -> None:
        first = run(converter, base)
        moved = base.rename(base.with_name("moved"))
        assert run(converter, moved) == first

    @pytest.mark.parametrize(
        "file", ["model.safetensors", "tokenizer.json", "chat_template.jinja"]
    )
    def test_another_base(self, converter: Path, base: Path, file: str) -> None:
        first = run(converter, base)
        raw = bytearray((base / file).read_bytes())
        raw[-1] ^= 1
        (base / file).write_bytes(raw)
        assert run(converter, base).path != first.path

    def test_changed_script(self, converter: Path, base: Path) -> None:
        first = run(converter, base)
        script(converter, CONVERTER.replace("half way", "half"))
        assert run(converter, base).path != first.path

    def test_changed_module(
        self, converter: Path, base: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = converter / "my_compiler_package"
        package.mkdir()
        for name in ("__init__.py", "part.py"):
            (package / name).write_text("")
        (package / "tool.py").write_text(CONVERTER)
        monkeypatch.syspath_prepend(str(converter))
        monkeypatch.setenv("PYTHONPATH", str(converter))
        command = "{python} -m my_compiler_package.tool"

        def made() -> Path:
            cache = converter.parent / "cache"
            return convert(command, base, cache, Deadline(30)).path

        first = made()
        assert made() == first
        (package / "part.py").write_text("CHANGED = True")
        assert made() != first
        assert "my_compiler_package" not in sys.modules

    @pytest.mark.parametrize("file", ["model", "model.json"])
    @pytest.mark.parametrize("damage", ["gone", "cut"])
    def test_damaged_cache_is_made_again(
        self, converter: Path, base: Path, file: str, damage: str
    ) -> None:
        first = run(converter, base)
        path = first.path.with_name(file)
        raw = path.read_bytes()
        path.unlink()
        if damage == "cut":
            path.write_bytes(raw[:-3])
        assert run(converter, base) == first
        assert path.read_bytes() == raw
        assert calls(converter) == 2

    def test_workers_do_not_convert_twice(self, converter: Path, base: Path) -> None:
        (converter / "wait").write_text("0.5")
        made: list[object] = []
        workers = [
            threading.Thread(target=lambda: made.append(run(converter, base)))
            for _ in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert calls(converter) == 1
        assert made[0] == made[1] == made[2]

    def test_leavings_of_a_killed_worker(self, converter: Path, base: Path) -> None:
        key = run(converter, base).path.parent
        stale = key.parent / f".{key.name}-killed"
        key.rename(stale)
        run(converter, base)
        assert left_over(key.parent) == [key.name]


class TestAdapters:
    """Adapters that are converted for a base, several into one bundle."""

    @pytest.fixture
    def bundler(self, converter: Path) -> Path:
        return script(converter, BUNDLER)

    @pytest.fixture
    def adapters(self, tmp_path: Path) -> dict[str, Path]:
        folders = {name: tmp_path / "adapters" / name for name in ("one", "two")}
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            (folder / "weights").write_text(f"of {name}")
        return folders

    def test_they_come_in_their_order(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        made = run(bundler, base, adapters=adapters, suffix=".bundle")
        assert made.path.name == "model.bundle"
        assert json.loads(made.path.read_bytes()) == [
            ["one", ["of one"]],
            ["two", ["of two"]],
        ]
        assert run(bundler, base, adapters=adapters, suffix=".bundle") == made
        assert calls(bundler) == 1

    @pytest.mark.parametrize(
        "change", ["names", "exchanged", "order", "content", "file", "fewer", "none"]
    )
    def test_another_bundle(
        self, bundler: Path, base: Path, adapters: dict[str, Path], change: str
    ) -> None:
        first = run(bundler, base, adapters=adapters)
        one, two = adapters.values()
        match change:
            case "names":
                adapters = {"one": one, "three": two}
            case "exchanged":
                adapters = {"one": two, "two": one}
            case "order":
                adapters = {"two": two, "one": one}
            case "content":
                (two / "weights").write_text("of 2")
            case "file":
                (two / "weights").rename(two / "weight")
            case "fewer":
                adapters = {"one": one}
            case _:
                adapters = {}
        second = run(bundler, base, adapters=adapters)
        assert second.path != first.path and calls(bundler) == 2
        names = [name for name, _ in json.loads(second.path.read_bytes())]
        assert names == list(adapters)

    def test_the_same_ones_elsewhere(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        first = run(bundler, base, adapters=adapters)
        moved = adapters["one"].rename(adapters["one"].with_name("moved"))
        assert run(bundler, base, adapters={**adapters, "one": moved}) == first
        assert calls(bundler) == 1

    def test_another_base(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        first = run(bundler, base, adapters=adapters)
        (base / "tokenizer.json").write_text('{"version": "2"}')
        assert run(bundler, base, adapters=adapters).path != first.path

    def test_refused_again_each_time_and_nothing_left(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        (adapters["two"] / "bad").write_text("")
        for count in (1, 2):
            with pytest.raises(ConversionRefused, match="two: bad - mend it"):
                run(bundler, base, adapters=adapters)
            assert calls(bundler) == count
        assert left_over(bundler.parent / "cache") == []

    def test_damaged_bundle_is_made_again(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        first = run(bundler, base, adapters=adapters)
        first.path.write_bytes(b"[]")
        assert run(bundler, base, adapters=adapters) == first
        assert json.loads(first.path.read_bytes()) and calls(bundler) == 2

    def test_a_folder_that_is_gone(
        self, bundler: Path, base: Path, adapters: dict[str, Path]
    ) -> None:
        with pytest.raises(UsageFault, match="nowhere"):
            run(bundler, base, adapters={"x": adapters["one"] / "nowhere"})
        assert calls(bundler) == 0


class TestFolders:
    """A model that is a folder: some files for the board, some for the reference."""

    TEXT = """
import hashlib, json, pathlib, sys
base, out = map(pathlib.Path, sys.argv[1:])
(out / "board").mkdir(parents=True)
(out / "board" / "model.bin").write_bytes(b"model")
pathlib.Path(__file__).with_name("calls").open("a").write("call\\n")
line = hashlib.sha256(b"model").hexdigest() + " board/model.bin\\n"
sidecar = {"sha256": hashlib.sha256(line.encode()).hexdigest()}
out.with_name(out.name + ".json").write_text(json.dumps(sidecar))
"""

    def test_made_once(self, converter: Path, base: Path) -> None:
        folder = script(converter, self.TEXT)
        first = run(folder, base)
        assert first.for_board == first.path / "board"
        assert run(folder, base) == first and calls(folder) == 1

    @pytest.mark.parametrize("damage", ["cut", "gone", "more"])
    def test_damaged_cache_is_made_again(
        self, converter: Path, base: Path, damage: str
    ) -> None:
        first = run(script(converter, self.TEXT), base)
        file = first.for_board / "model.bin"
        match damage:
            case "cut":
                file.write_bytes(b"mode")
            case "gone":
                file.unlink()
            case _:
                file.with_name("more").write_bytes(b"")
        assert run(converter, base) == first and calls(converter) == 2
        assert [p.name for p in first.for_board.iterdir()] == ["model.bin"]
        assert file.read_bytes() == b"model"


class TestRefusals:
    def test_refused(self, converter: Path, base: Path) -> None:
        text = "[conversion-refused] config.json: a bias - give a base without"
        script(converter, f"import sys; print({text!r}, file=sys.stderr); sys.exit(2)")
        with pytest.raises(ConversionRefused) as refused:
            run(converter, base)
        assert str(refused.value).count("[conversion-refused]") == 1
        assert refused.value.cause == "config.json: a bias - give a base without"
        assert left_over(converter.parent / "cache") == []

    def test_traceback_with_status_2_is_no_refusal(
        self, converter: Path, base: Path
    ) -> None:
        script(
            converter,
            "import sys; print('usage:\\nerror', file=sys.stderr); sys.exit(2)",
        )
        with pytest.raises(Infrastructure, match=r"usage: \| error"):
            run(converter, base)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("raise KeyError('some weight')", "some weight"),
            ("import os; os.kill(os.getpid(), 9)", "signal 9"),
            ("import sys; sys.exit(3)", "it said nothing"),
            ("pass", "no such file"),
            (CONVERTER.replace(".hexdigest()", ".hexdigest()[::-1]"), "sidecar says"),
            (CONVERTER.replace('"sha256"', '"sha1"'), "sidecar says"),
            (CONVERTER.replace("json.dumps(sidecar)", "'{'"), "not JSON"),
        ],
    )
    def test_failed(self, converter: Path, base: Path, text: str, says: str) -> None:
        with pytest.raises(Infrastructure, match=says) as failed:
            run(script(converter, text), base)
        assert "\n" not in str(failed.value)
        assert left_over(converter.parent / "cache") == []

    def test_much_output_is_bounded(self, converter: Path, base: Path) -> None:
        text = "import sys; sys.stderr.write('x' * 10_000_000); sys.exit(1)"
        with pytest.raises(Infrastructure) as failed:
            run(script(converter, text), base)
        assert len(str(failed.value)) < 2000

    def test_too_slow_ends_with_its_children(self, converter: Path, base: Path) -> None:
        script(
            converter,
            "import os, pathlib, subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; "
            "time.sleep(60)'])\n"
            "pathlib.Path(__file__).with_name('pid').write_text(str(child.pid))\n"
            "print('compiling layer 3', file=sys.stderr, flush=True)\n"
            "time.sleep(60)\n",
        )
        command = f"{{python}} {converter / 'converter.py'}"
        started = time.monotonic()
        with pytest.raises(Infrastructure, match=r"longer than 2 s: compiling layer 3"):
            convert(command, base, converter.parent / "cache", Deadline(2))
        assert time.monotonic() - started < 8
        child = int((converter / "pid").read_text())
        assert not _alive(child)

    def test_lock_is_waited_for_until_the_deadline(
        self, converter: Path, base: Path
    ) -> None:
        (converter / "wait").write_text("3")
        first = threading.Thread(target=lambda: run(converter, base))
        first.start()
        while calls(converter) == 0:
            time.sleep(0.02)
        command = f"{{python}} {converter / 'converter.py'} "
        with pytest.raises(Infrastructure, match="still converting"):
            convert(command, base, converter.parent / "cache", Deadline(0.3))
        first.join()
        assert calls(converter) == 1

    @pytest.mark.parametrize(
        ("command", "says"),
        [
            ("", "empty"),
            ("  ", "empty"),
            ("no-such-tool", "no program"),
            ("'", "split"),
        ],
    )
    def test_command(self, tmp_path: Path, base: Path, command: str, says: str) -> None:
        with pytest.raises(UsageFault, match=says):
            convert(command, base, tmp_path / "cache", Deadline(5))

    def test_no_base(self, tmp_path: Path, converter: Path) -> None:
        with pytest.raises(UsageFault):
            run(converter, tmp_path / "nowhere")
        assert calls(converter) == 0

    def test_cache_that_cannot_be(self, tmp_path: Path, base: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(Infrastructure, match="cache"):
            convert("{python} -V", base, tmp_path / "file" / "cache", Deadline(5))


def _alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaps here does not."""
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True


class TestSimulatedBoard:
    COMMAND = "{python} -m harness.simulator.bm1688.convert"

    def test_fixture(self, tmp_path: Path) -> None:
        artifact = convert(self.COMMAND, BASE, tmp_path, Deadline(60))
        assert artifact.sidecar["reserved_rank"] == 32
        assert artifact.path.stat().st_size > 1_000_000

    def test_refusal_of_a_base_with_bias(self, tmp_path: Path) -> None:
        base = write_base(tmp_path / "base", bias=True)
        with pytest.raises(ConversionRefused):
            convert(self.COMMAND, base, tmp_path / "cache", Deadline(60))

"""Runs a platform's converter, once per base, command and version of it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from typing import Any

from filelock import FileLock
from filelock import Timeout

from harness.artifacts.model import read_json
from harness.deadline import Deadline
from harness.errors import ConversionRefused
from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.golden.identity import base_identity


__all__ = ["Artifact", "convert"]

MODEL = "model"
SIDECAR = MODEL + ".json"
# The exit status that means "this base cannot be converted", with the reason as
# the one line on stderr.
REFUSED = 2
# Of each stream this much is kept for a message: a compiler's last words.
TAIL_LINES = 40
LINE = 4096  # bytes of a line; longer ones are cut into several
STEP = 0.05  # seconds between two looks at the deadline and the process


@dataclass(frozen=True)
class Artifact:
    """What a converter made.

    :param path: the model file.
    :param digest: its sha256 in hex.
    :param sidecar: what the converter recorded beside it.
    """

    path: Path
    digest: str
    sidecar: Mapping[str, Any]


def convert(
    command: str,
    base: Path,
    cache: Path,
    deadline: Deadline,
    progress: Callable[[str], None] | None = None,
) -> Artifact:
    """The model that `command BASE OUT` makes of `base`, from the cache if there.

    The cache is keyed by the command, the base's identity and the content of every
    program file the command names; workers that ask for one key wait for each
    other.

    :param command: split as a shell does, without running one; `{python}` stands
        for this Python.
    :param progress: called with each line the converter prints, in a thread.
    :raises ConversionRefused: the converter says the base cannot be converted.
    :raises UsageFault: the command is empty or names no program; the base is
        damaged.
    :raises Infrastructure: the converter failed, took too long, or what it wrote
        is not what its sidecar says.
    """
    argv = _argv(command)
    base = base.resolve()
    cache = cache.resolve()
    key = _key(argv, base)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{key}.lock", deadline):
            folder = cache / key
            return _cached(folder) or _made(
                [*argv, str(base)], folder, deadline, progress
            )
    except OSError as error:
        raise Infrastructure(
            f"the cache of models: {error.strerror or error}",
            where=str(error.filename or cache),
            cure="give a folder that can be written and has room",
        ) from None


def _cached(folder: Path) -> Artifact | None:
    """The model in the cache; one that was damaged since is removed."""
    if not folder.exists():
        return None
    try:
        return _read(folder)
    except Infrastructure:
        shutil.rmtree(folder)
        return None


def _made(
    command: Sequence[str],
    folder: Path,
    deadline: Deadline,
    progress: Callable[[str], None] | None,
) -> Artifact:
    """The model made now, in `folder` whole or not at all; its lock is held."""
    for stale in folder.parent.glob(f".{folder.name}-*"):  # a worker was killed
        shutil.rmtree(stale, ignore_errors=True)
    making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _run([*command, str(making / MODEL)], deadline, progress)
        made = _read(making)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return Artifact(folder / MODEL, made.digest, made.sidecar)


def _argv(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageFault(
            f"the converter's command cannot be split: {error}", where=command
        ) from None
    argv = [word.replace("{python}", sys.executable) for word in words]
    if not argv:
        raise UsageFault(
            "the converter's command is empty", cure="give `converter` in boards.toml"
        )
    program = shutil.which(argv[0])
    if program is None:
        raise UsageFault(
            f"no program {argv[0]!r}",
            where=command,
            cure="install the converter or correct the command in boards.toml",
        )
    return [program, *argv[1:]]


def _key(argv: Sequence[str], base: Path) -> str:
    """What the result depends on, as sha256 in hex."""
    digest = hashlib.sha256()
    identity = base_identity(base).to_json()
    digest.update(json.dumps([list(argv), identity], sort_keys=True).encode())
    for file in sorted(set(_programs(argv))):
        digest.update(f"\n{file} ".encode() + _sha256(file).encode())
    return digest.hexdigest()


def _programs(argv: Sequence[str]) -> Iterator[Path]:
    """The program files a command names: scripts, and the sources of `-m module`."""
    for word in argv:
        if Path(word).is_file():
            yield Path(word)
    if "-m" in argv[:-1] and Path(argv[0]).name.startswith("python"):
        # The whole package: the module may import anything of it.
        top = argv[argv.index("-m") + 1].partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)  # of a top level, imports nothing
        except (ImportError, ValueError):
            spec = None
        if spec is not None:
            for place in spec.submodule_search_locations or ():
                yield from Path(place).rglob("*.py")
            if not spec.submodule_search_locations and spec.origin:
                yield Path(spec.origin)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path, deadline: Deadline) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=deadline.remaining)
    except Timeout:
        raise Infrastructure(
            "another process was still converting when the time was up",
            where=str(path),
            cure="wait for it, or allow more time",
        ) from None
    try:
        yield
    finally:
        lock.release()


class _Tail:
    """The last lines of a stream, read in a thread so that the writer never waits."""

    def __init__(self, stream: IO[bytes], line: Callable[[str], None] | None) -> None:
        self._stream = stream
        self._line = line
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while raw := self._stream.readline(LINE):
                text = raw.decode("utf-8", "replace").rstrip()
                if text:
                    self._lines.append(text)
                    if self._line is not None:
                        self._line(text)
        except (OSError, ValueError):
            pass  # closed under it: the process group was ended

    def lines(self) -> list[str]:
        """What was read; waits a moment for the end of the stream."""
        self._thread.join(timeout=2.0)
        return list(self._lines)


def _run(
    argv: Sequence[str], deadline: Deadline, progress: Callable[[str], None] | None
) -> None:
    where = shlex.join(argv)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a compiler has children; all end with it
        )
    except OSError as error:
        raise UsageFault(f"cannot start: {error.strerror}", where=where) from None
    assert process.stdout is not None and process.stderr is not None
    output = _Tail(process.stdout, progress)
    errors = _Tail(process.stderr, progress)
    try:
        while not (ended := _ended(process.pid)) and not deadline.expired:
            time.sleep(STEP)
    finally:
        _end(process)
    said = errors.lines()
    if not ended:
        raise Infrastructure(
            f"the converter took longer than {deadline.seconds:g} s: "
            f"{_last(said or output.lines())}",
            where=where,
            cure="allow more time",
        )
    if process.returncode == REFUSED and len(said) == 1:
        # The harness' own converters print their error's code in front.
        raise ConversionRefused(re.sub(r"^\[[a-z-]+\] ", "", said[0]), where=argv[0])
    if process.returncode != 0:
        status = process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"failed ({status})"
        raise Infrastructure(
            f"the converter {how}: {_last(said or output.lines())}", where=where
        )


def _ended(pid: int) -> bool:
    """Whether a child ended; it stays a zombie, so that its number stays ours."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all its children that are still there."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(lines: Sequence[str]) -> str:
    return " | ".join(lines[-5:])[-1000:] or "it said nothing"


def _read(folder: Path) -> Artifact:
    """What lies in a folder of the cache, checked against its own record."""
    path = folder / MODEL
    try:
        sidecar = read_json(folder / SIDECAR, "the converter must write OUT.json")
    except UsageFault as error:
        raise Infrastructure(error.cause, where=error.where, cure=error.cure) from None
    if not path.is_file():
        raise Infrastructure("the converter wrote no model", where=str(path))
    digest = _sha256(path)
    if sidecar.get("sha256") != digest:
        raise Infrastructure(
            f"the model is {digest[:12]}, its sidecar says "
            f"{str(sidecar.get('sha256'))[:12]}",
            where=str(path),
            cure="the converter must record the sha256 of what it wrote",
        )
    return Artifact(path, digest, sidecar)

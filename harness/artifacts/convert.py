"""Runs a platform's converters, once per input, command and version of it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from filelock import FileLock
from filelock import Timeout

from harness.artifacts.artifact import Artifact
from harness.artifacts.command import run
from harness.artifacts.command import words_of
from harness.artifacts.content import Content
from harness.artifacts.content import folder_digest
from harness.artifacts.model import Base
from harness.cache import prune
from harness.deadline import Deadline
from harness.errors import Infrastructure
from harness.golden.identity import BaseIdentity
from harness.golden.identity import base_identity


__all__ = ["bundle_of", "convert", "model_of"]

MODEL = "model"
# RKNN3 looks for its bundles by this suffix.
BUNDLE = ".lora_weight"
NONE: Mapping[str, Path] = {}
# Reading, converting and writing a 2B checkpoint takes minutes; an hour means
# that the converter hangs.
CONVERT_S = 3600.0
# Bundles that are kept for the next run: those of one run over adapters of 50 MB for
# a 2B model take 20 GB.
BUNDLES_BYTES = 40 << 30


def model_of(command: str, base: Base, cache: Path) -> Artifact:
    """The model that a platform's converter makes of a base.

    :raises ConversionRefused, UsageFault, Infrastructure: as `convert`.
    """
    return convert(command, base.folder, cache, Deadline(CONVERT_S))


def bundle_of(
    command: str, base: Base, adapters: Mapping[str, Path], cache: Path
) -> Artifact:
    """The bundle that a platform's converter makes of adapters for a base.

    :raises ConversionRefused, UsageFault: as `convert`.
    :raises Infrastructure: as `convert`, or its sidecar names another base.
    """
    made = convert(
        command,
        base.folder,
        cache,
        Deadline(CONVERT_S),
        adapters=adapters,
        suffix=BUNDLE,
    )
    if not made.matches(base.identity):
        raise Infrastructure(
            "the bundle's sidecar names another base",
            where=str(made.path),
            cure="let the converter record the digests of BASE",
        )
    prune(cache, BUNDLES_BYTES)
    return made


def convert(
    command: str,
    base: Path,
    cache: Path,
    deadline: Deadline,
    progress: Callable[[str], None] | None = None,
    adapters: Mapping[str, Path] = NONE,
    *,
    suffix: str = "",
) -> Artifact:
    """What `command BASE OUT [NAME=FOLDER ...]` makes, from the cache if there.

    The cache is keyed by the command, the base's identity, the adapters' names and
    contents and the content of every program file the command names; workers that
    ask for one key wait for each other.

    :param command: split as a shell does, without running one; `{python}` stands
        for this Python.
    :param progress: called with each line the converter prints, in a thread.
    :param adapters: PEFT folders by the name the board shall know them by.
    :param suffix: of the file made, which some vendors' loaders look at.
    :raises ConversionRefused: the converter says that base or adapters cannot be
        converted.
    :raises UsageFault: the command is empty or names no program; the base is
        damaged.
    :raises Infrastructure: the converter failed, took too long, or what it wrote
        is not what its sidecar says.
    """
    argv = words_of(command)
    base = base.resolve()
    cache = cache.resolve()
    key = _key(argv, base, adapters)
    given = [f"{name}={folder.resolve()}" for name, folder in adapters.items()]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{key}.lock", deadline):
            folder = cache / key
            name = MODEL + suffix
            return _cached(folder, name) or _made(
                lambda out: run(
                    [*argv, str(base), str(out), *given], deadline, progress
                ),
                folder,
                name,
            )
    except OSError as error:
        raise Infrastructure(
            f"the cache of models: {error.strerror or error}",
            where=str(error.filename or cache),
            cure="give a folder that can be written and has room",
        ) from None


def _cached(folder: Path, name: str) -> Artifact | None:
    """The model in the cache; one that was damaged since is removed."""
    if not folder.exists():
        return None
    try:
        found = Artifact.read(folder / name)
        os.utime(folder)  # what is in use is not what is pruned first
        return found
    except Infrastructure:
        shutil.rmtree(folder)
        return None


def _made(make: Callable[[Path], None], folder: Path, name: str) -> Artifact:
    """The model made now, in `folder` whole or not at all; its lock is held."""
    for stale in folder.parent.glob(f".{folder.name}-*"):  # a worker was killed
        shutil.rmtree(stale, ignore_errors=True)
    making = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(making / name)
        made = Artifact.read(making / name)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return Artifact(folder / name, made.digest, made.sidecar)


def _key(argv: Sequence[str], base: Path, adapters: Mapping[str, Path]) -> str:
    """What the result depends on, as sha256 in hex."""
    digest = hashlib.sha256()
    parts: list[object] = [list(argv), _identity(base, _stamps(base)).to_json()]
    if adapters:
        # As they are: damaged ones have no identity of an adapter.
        parts += [[name, folder_digest(f)] for name, f in adapters.items()]
    digest.update(json.dumps(parts, sort_keys=True).encode())
    for file in sorted(set(_programs(argv))):
        digest.update(f"\n{file} ".encode() + Content.of(file).digest.encode())
    return digest.hexdigest()


def _stamps(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What changes when a file of the folder is written anew."""
    found = ((p.name, p.stat()) for p in sorted(folder.glob("*")) if p.is_file())
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in found)


@lru_cache(maxsize=4)  # a base of gigabytes is hashed once, not for every bundle
def _identity(base: Path, stamps: object) -> BaseIdentity:
    return base_identity(base)


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

"""Whether a board is fit to be tested: one question before anything is sent."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.boards.words import printable
from harness.deadline import Deadline
from harness.errors import CommandFailed


if TYPE_CHECKING:
    from harness.hosts.host import Host

__all__ = ["Health", "preflight"]

# Readable by Python 2 as well, to be told apart from no Python at all.
_QUESTION = """
import json, os, platform, sys, time
try:
    import numpy
    version = numpy.__version__
except ImportError as error:
    version = None
path = os.path.abspath(sys.argv[1])
while not os.path.exists(path):
    path = os.path.dirname(path)
space = os.statvfs(path)
print(json.dumps({
    "python": list(sys.version_info[:3]), "numpy": version, "time": time.time(),
    "free": space.f_bavail * space.f_frsize, "kernel": platform.release(),
    "arch": platform.machine(),
}))
"""

# Importing numpy from a slow card takes seconds on the first time.
_SECONDS = 30.0

_OLDEST = (3, 8)


@dataclass(frozen=True)
class Health:
    """What a board says of itself.

    :param python: version, e.g. `3.8.18`.
    :param numpy: version.
    :param free: bytes free where the harness works.
    :param skew: seconds its clock is ahead of ours.
    :param kernel: release of its kernel.
    :param arch: e.g. `aarch64`.
    """

    python: str
    numpy: str
    free: int
    skew: float
    kernel: str
    arch: str


def preflight(host: Host, workdir: str = ".harness") -> Health:
    """Ask a board once whether a probe can run on it.

    :raises HostUnreachable: no connection.
    :raises CommandFailed: no Python, one older than 3.8, or no numpy over there.
    """
    asked = time.time()
    done = host.run(
        [host.python, "-c", _QUESTION, workdir], deadline=Deadline(_SECONDS)
    )
    middle = (asked + time.time()) / 2
    if done.status:
        said = done.errors.strip().splitlines()[-1:]
        raise CommandFailed(
            f"{host.python} does not run over there (status {done.status}): "
            f"{printable(said[0]) if said else 'it said nothing'}",
            where=host.name,
            cure="install Python >= 3.8, or set python = in boards.toml",
        )
    try:
        # Lines before it may come from the login shell's start-up files.
        told = json.loads(done.output.decode("utf-8", "replace").splitlines()[-1])
        python = tuple(int(part) for part in told["python"][:3])
        numpy = told["numpy"]
        free, skew = int(told["free"]), float(told["time"]) - middle
        kernel, arch = str(told["kernel"]), str(told["arch"])
    except (ValueError, LookupError, TypeError):
        raise CommandFailed(
            "its answer about itself is noise",
            where=host.name,
            cure="see what python = in boards.toml runs over there",
        ) from None
    version = ".".join(map(str, python))
    if python < _OLDEST:
        raise CommandFailed(
            f"{host.python} over there is Python {version}, the probe needs 3.8",
            where=host.name,
            cure="install a newer one and set python = in boards.toml",
        )
    if not isinstance(numpy, str):
        raise CommandFailed(
            f"{host.python} over there (Python {version}) has no numpy",
            where=host.name,
            cure=f"run {host.python} -m pip install numpy over there, "
            "or set python = in boards.toml",
        )
    return Health(
        version,
        printable(numpy, 40),
        free,
        skew,
        printable(kernel, 80),
        printable(arch, 40),
    )

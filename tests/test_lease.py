"""The lease: one holder a board, free within seconds of the holder's death."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_server import Loopback
from ssh_server import Proxy
from ssh_server import serving

from harness.boards.health import preflight
from harness.boards.lease import Lease
from harness.deadline import Deadline
from harness.errors import CommandFailed
from harness.errors import LeaseHeld
from harness.errors import LeaseLost
from harness.hosts.local import LocalHost
from harness.hosts.ssh import SshHost


HOLDER = """
import json, sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from ssh_server import Loopback
from harness.boards.lease import Lease
from harness.errors import LeaseLost
host = Loopback("asyncssh", Path({folder!r}), {port}).host()
lease = Lease(host, {workdir!r}, "the other one")
lease.acquire()
print("held", flush=True)
sys.stdin.readline()
try:
    lease.check()
    print("still", flush=True)
except LeaseLost as error:
    print(error, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with serving("asyncssh", tmp_path_factory.mktemp("ssh") / "server") as running:
        yield running


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def host(server: Loopback) -> Iterator[SshHost]:
    made = server.host()
    yield made
    made.close()


@pytest.fixture
def other(server: Loopback, tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another machine (another cache folder) that holds the lease in `tmp_path`."""
    source = HOLDER.format(
        tests=str(Path(__file__).parent),
        folder=str(server.folder),
        port=server.port,
        workdir=str(tmp_path / "work"),
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, "HARNESS_CACHE": str(tmp_path / "far")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def free_within(lease: Lease, seconds: float) -> float:
    """Acquire as soon as it is free; seconds that took."""
    began = time.monotonic()
    while True:
        try:
            lease.acquire()
            return time.monotonic() - began
        except LeaseHeld:
            assert time.monotonic() - began < seconds, "the board stays held"
            time.sleep(0.1)


def test_a_second_machine_is_refused_with_the_owner(
    other: subprocess.Popen, host: SshHost, tmp_path: Path
) -> None:
    lease = Lease(host, str(tmp_path / "work"), "me")
    for wait in (0, 4.5):  # also after the time a silent holder is given
        time.sleep(wait)
        with pytest.raises(LeaseHeld) as caught:
            lease.acquire()
        told = str(caught.value)
        assert "held by the other one since" in told
        assert time.strftime("%Y-%m-%d") in told


def test_it_is_free_after_release(host: SshHost, tmp_path: Path) -> None:
    for _ in range(2):
        with Lease(host, str(tmp_path / "work"), "me") as lease:
            lease.check()
            holder = json.loads((tmp_path / "work" / "lease").read_text())
            assert holder["owner"] == "me"
    with pytest.raises(LeaseLost, match="not held"):
        lease.check()


def test_it_is_kept_as_long_as_it_is_held(host: SshHost, tmp_path: Path) -> None:
    with Lease(host, str(tmp_path / "work"), "me") as lease:
        time.sleep(5.5)
        lease.check()
        with (tmp_path / "work" / "lease").open("rb") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_kill_9_of_the_holder_frees_the_board(
    other: subprocess.Popen, host: SshHost, tmp_path: Path
) -> None:
    other.send_signal(signal.SIGKILL)
    lease = Lease(host, str(tmp_path / "work"), "me")
    took = free_within(lease, 5.0)
    print(f"free after {took:.2f} s")
    lease.release()


def test_a_holder_that_falls_silent_loses_it_and_learns_so(
    other: subprocess.Popen, host: SshHost, tmp_path: Path
) -> None:
    other.send_signal(signal.SIGSTOP)
    lease = Lease(host, str(tmp_path / "work"), "me")
    took = free_within(lease, 7.0)
    assert took > 2.5  # the last beat may be a second old
    other.send_signal(signal.SIGCONT)
    assert other.stdin and other.stdout
    other.stdin.write("\n")
    other.stdin.flush()
    assert "[lease-lost]" in other.stdout.readline()
    lease.check()
    lease.release()


def test_a_lost_connection_is_a_lost_lease(server: Loopback, tmp_path: Path) -> None:
    proxy = Proxy(server.port)
    host = server.host(port=proxy.port)
    lease = Lease(host, str(tmp_path / "work"), "me")
    lease.acquire()
    proxy.cut()
    end = Deadline(5)
    with pytest.raises(LeaseLost, match="connection"):
        while not end.expired:
            lease.check()
            time.sleep(0.05)
    lease.release()
    with Lease(host, str(tmp_path / "work"), "me again") as again:
        again.check()
    host.close()
    proxy.close()


def test_workers_of_one_machine_queue(host: SshHost, tmp_path: Path) -> None:
    order: list[str] = []
    first = Lease(host, str(tmp_path / "work"), "first")
    first.acquire()

    def wait() -> None:
        with Lease(host, str(tmp_path / "work"), "second", queue=20):
            order.append("second")

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    order.append("first")
    first.release()
    waiting.join(10)
    assert order == ["first", "second"]


def test_a_queue_that_takes_too_long_names_the_owner(
    host: SshHost, tmp_path: Path
) -> None:
    with Lease(host, str(tmp_path / "work"), "slow one"):
        with pytest.raises(LeaseHeld, match="held by slow one since"):
            Lease(host, str(tmp_path / "work"), "me", queue=0.2).acquire()


def test_boards_have_leases_of_their_own(host: SshHost, tmp_path: Path) -> None:
    with Lease(host, str(tmp_path / "a"), "me"):
        with Lease(host, str(tmp_path / "b"), "me", queue=0.2) as second:
            second.check()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"noise",
        b"[1]",
        b"\xff\xfe",
        b'{"owner": "\\u001b[2J' + b"x" * 500 + b'", "since": "never"}',
        b'{"owner": "' + b"x" * 9000 + b'"}',
    ],
)
def test_what_a_lease_file_says_is_not_trusted(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "lease"
    path.write_bytes(content)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LeaseHeld) as caught:
            Lease(LocalHost("board", tmp_path), "work", "me").acquire()
    told = str(caught.value)
    assert len(told) < 400
    assert told.isprintable()


def test_an_owner_is_one_printable_line(tmp_path: Path) -> None:
    host = LocalHost("board", tmp_path)
    with Lease(host, "work", "a\n\x1b[31m" + "b" * 500):
        holder = json.loads((tmp_path / "work" / "lease").read_text())
    assert holder["owner"].isprintable()
    assert len(holder["owner"]) <= 120


def test_a_board_without_room_for_a_lease(tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file where the folder should be")
    with pytest.raises(CommandFailed, match=r"work.*boards.toml"):
        Lease(LocalHost("board", tmp_path), "work", "me").acquire()
    with pytest.raises(CommandFailed, match=r"not found.*boards.toml"):
        Lease(LocalHost("board", tmp_path, python="no-python"), "w", "me").acquire()


class TestPreflight:
    def test_what_a_board_says_of_itself(self, host: SshHost, tmp_path: Path) -> None:
        import numpy

        found = preflight(host, str(tmp_path / "not" / "yet"))
        assert found.python == ".".join(map(str, sys.version_info[:3]))
        assert found.numpy == numpy.__version__
        assert found.free > 0
        assert abs(found.skew) < 2
        assert found.arch == os.uname().machine
        assert found.kernel == os.uname().release

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ('{"python": [3, 7, 9], "numpy": "1", ', r"Python 3.7.9.*needs 3.8"),
            ('{"python": [2, 7, 18], "numpy": null, ', r"Python 2.7.18.*needs 3.8"),
            ('{"python": [3, 8, 0], "numpy": null, ', r"no numpy.*pip install"),
            ('{"python": "three", "numpy": "1", ', "noise"),
            ("[1] ", "noise"),
        ],
    )
    def test_an_unfit_board(self, answer: str, said: str, tmp_path: Path) -> None:
        rest = '"free": 1, "time": 1.5, "kernel": "k", "arch": "a"}'
        liar = tmp_path / "python"
        liar.write_text(f"#!/bin/sh\necho 'motd'\necho '{answer}{rest}'\n")
        liar.chmod(0o755)
        with pytest.raises(CommandFailed, match=said):
            preflight(LocalHost("board", tmp_path, python=str(liar)))

    def test_no_python(self, tmp_path: Path) -> None:
        with pytest.raises(CommandFailed, match=r"not found.*install Python >= 3.8"):
            preflight(LocalHost("board", tmp_path, python="no-python"))

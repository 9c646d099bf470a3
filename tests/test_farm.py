"""A simulated board as a machine: SSH, commands, files, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import paramiko
import psutil
import pytest

from harness.boards.simulated import FaultElsewhere
from harness.boards.simulated import SimulatedBoard
from harness.boards.simulated import start
from harness.deadline import Deadline
from harness.errors import Infrastructure
from harness.errors import UsageFault


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedBoard]:
    root = tmp_path_factory.mktemp("board")
    made = start("sim", "bm1688", root, None, Deadline(30))
    yield made
    made.stop()


def connect(
    board: SimulatedBoard, key: paramiko.PKey | None = None, user: str = "board"
) -> paramiko.SSHClient:
    """A client that trusts only the board's own known_hosts."""
    client = paramiko.SSHClient()
    client.load_host_keys(str(board.known_hosts))
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.connect(
        "127.0.0.1",
        int(board.host.rpartition(":")[2]),
        user,
        pkey=key or paramiko.Ed25519Key.from_private_key_file(str(board.identity)),
        allow_agent=False,
        look_for_keys=False,
        timeout=20,
    )
    transport = client.get_transport()
    assert transport is not None
    transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


@pytest.fixture(scope="module")
def client(board: SimulatedBoard) -> Iterator[paramiko.SSHClient]:
    made = connect(board)
    yield made
    made.close()


def run(
    client: paramiko.SSHClient, command: str, data: bytes = b""
) -> tuple[int, bytes, bytes]:
    stdin, stdout, stderr = client.exec_command(command, timeout=20)
    with contextlib.suppress(OSError):  # a command may end before it has read all
        stdin.channel.sendall(data)
        stdin.channel.shutdown_write()
    output, errors = stdout.read(), stderr.read()
    return stdout.channel.recv_exit_status(), output, errors


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = Deadline(seconds)
    while not (done := condition()) and not deadline.expired:
        time.sleep(0.02)
    return done


class TestCommands:
    def test_status_and_streams(self, client: paramiko.SSHClient) -> None:
        status, output, errors = run(client, "echo out; echo err >&2; exit 7")
        assert (status, output, errors) == (7, b"out\n", b"err\n")

    def test_late_errors_after_stdout_closed(self, client: paramiko.SSHClient) -> None:
        command = "exec >&-; sleep 0.2; echo late >&2; exit 3"
        assert run(client, command) == (3, b"", b"late\n")

    def test_binary_both_ways(self, client: paramiko.SSHClient) -> None:
        data = os.urandom(5_000_000)
        assert run(client, "cat", data) == (0, data, b"")

    def test_a_command_that_reads_nothing(self, client: paramiko.SSHClient) -> None:
        assert run(client, "exit 5", bytes(100_000))[0] == 5

    def test_killed_by_a_signal(self, client: paramiko.SSHClient) -> None:
        # paramiko gives -1 for an exit signal.
        assert run(client, "kill -9 $$")[0] == -1

    def test_starts_in_its_root(
        self, board: SimulatedBoard, client: paramiko.SSHClient
    ) -> None:
        _, output, _ = run(client, "pwd; echo $HOME")
        root = str(Path(board.workdir).parent)
        assert output.decode().split() == [root, root]

    def test_environment_is_its_own(
        self, board: SimulatedBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("A_SECRET", "of the host")
        other = start("own", "bm1688", tmp_path, None, Deadline(30))
        try:
            with connect(other) as client:
                assert b"A_SECRET" not in run(client, "env")[1]
        finally:
            other.stop()

    def test_many_at_once(self, client: paramiko.SSHClient) -> None:
        channels = []
        for _ in range(8):
            stdin, stdout, _ = client.exec_command("cat", timeout=20)
            channels.append((stdin, stdout))
        for number, (stdin, stdout) in enumerate(channels):
            stdin.write(f"{number}")
            stdin.channel.shutdown_write()
            assert stdout.read() == f"{number}".encode()

    def test_python_finds_the_runtime(self, client: paramiko.SSHClient) -> None:
        command = "PYTHONPATH=/somewhere python3 -c 'import bmrt; bmrt.Runtime()'"
        assert run(client, command) == (0, b"", b"")

    def test_each_platform_has_its_own_runtime(self, tmp_path: Path) -> None:
        made = start("rk", "rk1828", tmp_path, None, Deadline(30))
        command = (
            "python3 -c 'from rknn3lite.api import RKNN3Lite, rknn3_types;"
            'print(RKNN3Lite.__module__, hasattr(rknn3_types, "RKNN3InferParam"))\''
        )
        try:
            with connect(made) as client:
                status, output, errors = run(client, command)
                assert run(client, "python3 -c 'import bmrt'")[0] == 1
        finally:
            made.stop()
        assert status == 0, errors
        assert output.decode().split()[0] == "harness.simulator.rk1828.lite"

    def test_no_shell(self, client: paramiko.SSHClient) -> None:
        transport = client.get_transport()
        assert transport is not None
        channel = transport.open_session()
        channel.settimeout(20)
        channel.invoke_shell()
        assert channel.recv_exit_status() == 1

    def test_no_forwarding(self, client: paramiko.SSHClient) -> None:
        transport = client.get_transport()
        assert transport is not None
        with pytest.raises(paramiko.ChannelException):
            transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1))


class TestFiles:
    def test_relative_paths_start_in_the_root(
        self, board: SimulatedBoard, client: paramiko.SSHClient
    ) -> None:
        with client.open_sftp() as files:
            assert files.normalize(".") == str(Path(board.workdir).parent)
            with files.open("work/file", "wb") as file:
                file.write(b"\0\xff" * 100_000)
            files.posix_rename("work/file", "work/other")
        assert run(client, "wc -c < work/other")[1].strip() == b"200000"


class TestKeys:
    def test_another_key_is_refused(self, board: SimulatedBoard) -> None:
        with pytest.raises(paramiko.AuthenticationException):
            connect(board, paramiko.ECDSAKey.generate())

    def test_another_user_is_refused(self, board: SimulatedBoard) -> None:
        with pytest.raises(paramiko.AuthenticationException):
            connect(board, user="root")

    def test_password_is_refused(self, board: SimulatedBoard) -> None:
        address = ("127.0.0.1", int(board.host.rpartition(":")[2]))
        with paramiko.Transport(address) as transport:
            with pytest.raises(paramiko.BadAuthenticationType):
                transport.connect(username="board", password="board")

    def test_each_board_has_its_own_keys(
        self, board: SimulatedBoard, tmp_path: Path
    ) -> None:
        other = start("other", "bm1688", tmp_path, None, Deadline(30))
        try:
            assert other.identity.read_text() != board.identity.read_text()
            assert other.identity.stat().st_mode & 0o077 == 0
            known = board.known_hosts.read_text().split()
            theirs = other.known_hosts.read_text().split()
            assert known[1] == "ssh-ed25519" and known[2] != theirs[2]
            assert known[0] != theirs[0]
            # The first board's key under the second's address.
            other.known_hosts.write_text(" ".join([theirs[0], *known[1:]]))
            with pytest.raises(paramiko.BadHostKeyException):
                connect(other)
        finally:
            other.stop()


class TestEnd:
    def test_a_dropped_connection_ends_its_commands(
        self, board: SimulatedBoard
    ) -> None:
        client = connect(board)
        _, stdout, _ = client.exec_command("sleep 1000 & echo $!; sleep 1000")
        number = int(stdout.readline())
        assert psutil.pid_exists(number)
        client.close()
        assert eventually(lambda: not psutil.pid_exists(number))

    def test_stop_ends_board_and_commands(self, tmp_path: Path) -> None:
        made = start("sim", "bm1688", tmp_path, None, Deadline(30))
        client = connect(made)
        _, stdout, _ = client.exec_command("echo $$; exec sleep 1000")
        number = int(stdout.readline())
        made.stop()
        assert made.process.returncode == 0
        assert eventually(lambda: not psutil.pid_exists(number))
        client.close()

    def test_dies_with_its_parent(self, tmp_path: Path) -> None:
        """Also when the parent is killed and cannot say goodbye."""
        script = (
            "import pathlib, sys, time\n"
            "from harness.boards.simulated import start\n"
            "from harness.deadline import Deadline\n"
            "b = start('s', 'bm1688', pathlib.Path(sys.argv[1]), None, Deadline(30))\n"
            "print(b.process.pid, flush=True)\n"
            "time.sleep(1000)\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert parent.stdout is not None
        farm = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()

        def gone() -> bool:
            # Without an init of its own a container keeps it as a zombie.
            return not farm.is_running() or farm.status() == psutil.STATUS_ZOMBIE

        assert eventually(gone)


class TestStart:
    def test_device_fault(self, tmp_path: Path) -> None:
        made = start("sim", "bm1688", tmp_path, "noisy", Deadline(30))
        made.stop()
        assert made.loader is None
        assert "Noisy" in (tmp_path / "fault.json").read_text()

    def test_loader_fault(self, tmp_path: Path) -> None:
        made = start("sim", "bm1688", tmp_path, "layer-shifted", Deadline(30))
        made.stop()
        assert made.loader is not None
        path, _, name = made.loader.partition(":")
        assert Path(path).is_file() and name == "LayerShifted"
        assert not (tmp_path / "fault.json").exists()

    def test_own_fault_from_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "mine.py").write_text(
            "from harness.simulator.bm1688.device import Device\n"
            "class Mine(Device):\n    pass\n"
        )
        monkeypatch.chdir(tmp_path)
        made = start("sim", "bm1688", tmp_path / "root", "mine:Mine", Deadline(30))
        try:
            with connect(made) as client:
                command = (
                    "python3 -c 'from harness.simulator.bm1688.device import chosen;"
                    "print(type(chosen(None)).__name__)'"
                )
                assert run(client, command) == (0, b"Mine\n", b"")
        finally:
            made.stop()

    def test_converter_fault(self, tmp_path: Path) -> None:
        made = start("sim", "rk1828", tmp_path, "drops-k-proj", Deadline(30))
        made.stop()
        assert made.bundler == "harness.simulator.faults.converters:ConversionDropsK"
        assert made.loader is None and not (tmp_path / "fault.json").exists()

    @pytest.mark.parametrize("platform", ["bm1688", "rk1828"])
    def test_a_name_is_a_fault_of_the_boards_platform(
        self, tmp_path: Path, platform: str
    ) -> None:
        made = start("sim", platform, tmp_path, "adapter-ignored", Deadline(30))
        made.stop()
        assert made.bundler is None and made.loader is None
        told = json.loads((tmp_path / "fault.json").read_text())
        spec = f"harness.simulator.faults.{platform}:AdapterIgnored"
        assert told == {"device": spec}

    @pytest.mark.parametrize(
        ("platform", "fault"),
        [
            ("bm1688", "session-leak"),
            ("bm1688", "drops-k-proj"),
            ("rk1828", "no-slots"),
            ("rk1828", "residue-larger-rank"),
        ],
    )
    def test_fault_of_another_platform(
        self, tmp_path: Path, platform: str, fault: str
    ) -> None:
        with pytest.raises(FaultElsewhere, match=f"{platform}: '{fault}'") as elsewhere:
            start("sim", platform, tmp_path, fault, Deadline(30))
        assert elsewhere.value.code == "fault-elsewhere" and elsewhere.value.cure
        assert not (tmp_path / "fault.json").exists()

    def test_unknown_fault(self, tmp_path: Path) -> None:
        with pytest.raises(UsageFault, match="stale-name") as unknown:
            start("sim", "bm1688", tmp_path, "nonsense", Deadline(30))
        assert not isinstance(unknown.value, FaultElsewhere)

    def test_unknown_platform(self, tmp_path: Path) -> None:
        with pytest.raises(UsageFault, match="abacus"):
            start("sim", "abacus", tmp_path, None, Deadline(30))

    def test_too_slow(self, tmp_path: Path) -> None:
        with pytest.raises(Infrastructure, match="said nothing"):
            start("sim", "bm1688", tmp_path, None, Deadline(0))

    def test_cannot_start(self, tmp_path: Path) -> None:
        (tmp_path / "bin").write_text("in the way")
        with pytest.raises(Infrastructure, match="FileExistsError"):
            start("sim", "bm1688", tmp_path, None, Deadline(30))

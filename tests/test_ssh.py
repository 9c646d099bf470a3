"""Hosts: this machine, an asyncssh server and a real sshd behave the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ssh_server import SSHD
from ssh_server import Loopback
from ssh_server import Proxy
from ssh_server import free_port
from ssh_server import keygen
from ssh_server import serving

from harness.boards.address import Address
from harness.boards.inventory import Board
from harness.boards.lease import Lease
from harness.deadline import Deadline
from harness.errors import AuthenticationRefused
from harness.errors import CommandFailed
from harness.errors import DiskFull
from harness.errors import HostKeyChanged
from harness.errors import HostUnreachable
from harness.errors import TransferDamaged
from harness.errors import UsageFault
from harness.hosts import channel
from harness.hosts import connection
from harness.hosts import local
from harness.hosts import open_host
from harness.hosts.host import Host
from harness.hosts.local import LocalHost
from harness.hosts.ssh import SshHost


SOON = 20.0
needs_sshd = pytest.mark.skipif(
    not SSHD.exists(), reason=f"{SSHD} is missing (apt-get install openssh-server)"
)
both_servers = pytest.mark.parametrize(
    "kind", ["asyncssh", pytest.param("openssh", marks=needs_sshd)]
)
HOSTS = ["local", "asyncssh", pytest.param("openssh", marks=needs_sshd)]


def soon() -> Deadline:
    return Deadline(SOON)


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    running: dict[str, Loopback] = {}
    with ExitStack() as stack:
        for kind in ("asyncssh", "openssh") if SSHD.exists() else ("asyncssh",):
            folder = tmp_path_factory.mktemp(kind)
            running[kind] = stack.enter_context(serving(kind, folder / "server"))
        yield running


@pytest.fixture(scope="module")
def server(servers: dict[str, Loopback]) -> Loopback:
    """One server, for what the client alone decides."""
    return servers["asyncssh"]


@pytest.fixture(scope="module", params=HOSTS)
def host(
    request: pytest.FixtureRequest, servers: dict[str, Loopback]
) -> Iterator[Host]:
    made = LocalHost("board") if request.param == "local" else None
    made = made or servers[request.param].host()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not end by itself is killed sooner than in earnest."""
    monkeypatch.setattr(channel, "GRACE", 0.5)
    monkeypatch.setattr(local, "GRACE", 0.5)


class TestRun:
    def test_status_output_and_errors_come_back(self, host: Host) -> None:
        done = host.run(["sh", "-c", "echo out; echo err >&2; exit 3"], deadline=soon())
        assert (done.status, done.output, done.errors) == (3, b"out\n", "err\n")

    def test_arguments_arrive_as_they_are(self, host: Host) -> None:
        words = ["a b", "", "$HOME", "'", '"', "\\", "*", "é", "a\nb", "-n", "!x"]
        show = "import sys; print(ascii(sys.argv[1:]))"
        done = host.run([*python(show), *words], deadline=soon())
        assert done.output.decode().strip() == ascii(words)

    def test_environment_is_set_and_not_expanded(self, host: Host) -> None:
        show = "import os; print(os.environ['ONE'], os.environ['TWO'])"
        env = {"ONE": "1 $HOME", "TWO": "'2'"}
        done = host.run(python(show), deadline=soon(), env=env)
        assert done.output == b"1 $HOME '2'\n"

    def test_stdin_is_fed_to_its_end(self, host: Host) -> None:
        data = os.urandom(3_000_000)
        done = host.run(["sha256sum"], deadline=soon(), stdin=data)
        assert done.output.split()[0].decode() == hashlib.sha256(data).hexdigest()

    def test_a_filter_that_answers_while_fed_is_no_deadlock(self, host: Host) -> None:
        done = host.run(["cat"], deadline=soon(), stdin=bytes(8_000_000))
        assert (done.status, len(done.output)) == (0, 1 << 20)

    def test_a_command_that_reads_nothing_may_be_fed(self, host: Host) -> None:
        done = host.run(["true"], deadline=soon(), stdin=bytes(8_000_000))
        assert done.status == 0

    def test_death_by_signal_is_told(self, host: Host) -> None:
        done = host.run(["sh", "-c", "kill -9 $$"], deadline=soon())
        assert done.status == -9

    def test_a_missing_command_is_a_status(self, host: Host) -> None:
        done = host.run(["no-such-command-here"], deadline=soon())
        assert done.status == 127
        assert "not found" in done.errors

    def test_what_hangs_is_ended_over_there(self, host: Host, tmp_path: Path) -> None:
        note = tmp_path / "pid"
        hang = ["sh", "-c", f"echo $$ >{note}; echo stuck >&2; sleep 61; :"]
        began = time.monotonic()
        with pytest.raises(CommandFailed, match=r"did not end within 1 s.*stuck"):
            host.run(hang, deadline=Deadline(1))
        assert time.monotonic() - began < 8
        assert not alive(int(note.read_text()))


class TestProcess:
    def test_round_trips(self, host: Host) -> None:
        process = host.start(["cat"])
        for size in (1, 70_000, 600_000):
            data = os.urandom(size)
            process.write(data, soon())
            assert process.read(size, soon()) == data
        assert process.status() is None
        process.close()
        assert process.status() == 0

    def test_odd_sizes_come_in_order(self, host: Host) -> None:
        data = os.urandom(1_000_003)
        process = host.start(["cat"])
        process.write(memoryview(data), soon())
        sizes = [1, 3, 65_537, 4, 200_000]
        parts = [process.read(size, soon()) for size in sizes]
        parts.append(process.read(len(data) - sum(sizes), soon()))
        process.close()
        assert b"".join(parts) == data

    def test_the_end_is_a_short_read(self, host: Host) -> None:
        process = host.start(["echo", "abc"])
        assert process.read(100, soon()) == b"abc\n"
        assert process.read(1, soon()) == b""
        process.write(b"too late", soon())
        process.close()

    def test_silence_is_a_time_out_and_loses_nothing(self, host: Host) -> None:
        process = host.start(["cat"])
        process.write(b"ab", soon())
        with pytest.raises(TimeoutError):
            process.read(3, Deadline(0.5))
        process.write(b"c", soon())
        assert process.read(3, soon()) == b"abc"
        process.close()

    def test_a_reader_that_does_not_read_is_a_time_out(self, host: Host) -> None:
        process = host.start(["sleep", "60"])
        with pytest.raises(TimeoutError):
            process.write(bytes(30_000_000), Deadline(0.7))
        process.close()

    def test_a_flood_on_stderr_stops_nothing(self, host: Host) -> None:
        flood = "import sys; sys.stderr.write('x' * 99 + '\\n'); "
        source = (
            f"import sys\nfor _ in range(100_000): {flood}\n"
            "print('last', file=sys.stderr); print('done')"
        )
        process = host.start(python(source))
        assert process.read(5, soon()) == b"done\n"
        assert process.read(1, soon()) == b""
        said = process.errors()
        assert len(said) <= 64 << 10
        assert said.endswith("last\n")
        process.close()

    def test_close_ends_a_program_at_the_end_of_its_stdin(self, host: Host) -> None:
        process = host.start(["sh", "-c", "echo $$; cat >/dev/null; exit 5"])
        number = int(line(process))
        process.close()
        assert process.status() == 5
        assert not alive(number)

    def test_close_ends_one_that_does_not_listen(self, host: Host) -> None:
        deaf = "trap '' TERM; echo $$; while :; do sleep 0.2; done"
        process = host.start(["sh", "-c", deaf])
        number = int(line(process))
        began = time.monotonic()
        process.close()
        assert time.monotonic() - began < 8
        assert not alive(number)

    def test_close_of_the_host_ends_what_was_started(
        self, servers: dict[str, Loopback]
    ) -> None:
        for running in servers.values():
            one = running.host()
            process = one.start(["sh", "-c", "echo $$; exec cat"])
            number = int(line(process))
            one.close()
            assert not alive(number)
            with pytest.raises(HostUnreachable):
                one.run(["true"], deadline=soon())


class TestTransfer:
    def test_there_and_back(self, host: Host, tmp_path: Path) -> None:
        source = tmp_path / "a b'ü"
        source.write_bytes(os.urandom(3_333_333))
        there = str(tmp_path / "new folder" / "c*$d")
        steps: list[tuple[int, int]] = []
        host.put(
            source, there, deadline=soon(), progress=lambda *step: steps.append(step)
        )
        assert steps[-1] == (3_333_333, 3_333_333)
        assert host.digest(there, deadline=soon()) == sha256(source)
        host.get(there, tmp_path / "back", deadline=soon(), limit=4_000_000)
        assert (tmp_path / "back").read_bytes() == source.read_bytes()
        assert sorted(p.name for p in Path(there).parent.iterdir()) == ["c*$d"]

    def test_an_empty_file(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        host.put(tmp_path / "empty", str(tmp_path / "there"), deadline=soon())
        host.get(str(tmp_path / "there"), tmp_path / "back", deadline=soon(), limit=0)
        assert (tmp_path / "back").read_bytes() == b""

    def test_put_replaces_and_clears_what_a_power_cut_left(
        self, host: Host, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"new")
        there = tmp_path / "there"
        there.mkdir()
        (there / "file").write_bytes(b"old")
        (there / ".file.0123.part").write_bytes(b"half")
        host.put(source, str(there / "file"), deadline=soon())
        assert {p.name: p.read_bytes() for p in there.iterdir()} == {"file": b"new"}

    def test_digest_of_nothing(self, host: Host, tmp_path: Path) -> None:
        assert host.digest(str(tmp_path / "no"), deadline=soon()) is None
        assert host.digest(str(tmp_path), deadline=soon()) is None

    def test_free_space_of_a_place_to_be(self, host: Host, tmp_path: Path) -> None:
        free = host.free_space(str(tmp_path / "not" / "yet"), deadline=soon())
        assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)

    def test_a_file_over_the_limit_is_not_taken(
        self, host: Host, tmp_path: Path
    ) -> None:
        (tmp_path / "big").write_bytes(bytes(1001))
        with pytest.raises(TransferDamaged, match=r"1001 bytes, more than the 1000"):
            host.get(str(tmp_path / "big"), tmp_path / "x", deadline=soon(), limit=1000)
        assert [p.name for p in tmp_path.iterdir()] == ["big"]

    def test_a_fifo_is_no_file_and_no_wait(self, host: Host, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(CommandFailed, match=r"not a regular file"):
            host.get(str(tmp_path / "fifo"), tmp_path / "x", deadline=soon(), limit=9)

    def test_what_is_missing_is_named(self, host: Host, tmp_path: Path) -> None:
        with pytest.raises(CommandFailed, match=r"/no: No such file"):
            host.get(str(tmp_path / "no"), tmp_path / "x", deadline=soon(), limit=9)
        with pytest.raises(UsageFault, match=r"No such file"):
            host.put(tmp_path / "no", "x", deadline=soon())

    def test_no_room_is_said_before_anything_is_sent(
        self, host: Host, tmp_path: Path
    ) -> None:
        huge = tmp_path / "huge"
        huge.touch()
        os.truncate(huge, 8 << 40)  # a hole: nothing of it is on the disk
        there = tmp_path / "there" / "file"
        with pytest.raises(DiskFull, match=r"needs [\d,]+ bytes, [\d,]+ are free"):
            host.put(huge, str(there), deadline=soon())
        assert not there.parent.exists()

    def test_room_that_goes_away_meanwhile(
        self, host: Host, tmp_path: Path, small_disk: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(5_000_000))

        def fill(sent: int, total: int) -> None:
            if not (small_disk / "other").exists():
                (small_disk / "other").write_bytes(bytes(4_500_000))

        with pytest.raises(DiskFull):
            host.put(source, str(small_disk / "f"), deadline=soon(), progress=fill)
        assert [p.name for p in small_disk.iterdir()] == ["other"]
        (small_disk / "other").unlink()

    def test_a_slow_link_ends_at_the_deadline(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(bytes(1 << 20))
        slow = tmp_path / "python"
        slow.write_text("#!/bin/sh\nsleep 60\n")
        slow.chmod(0o755)
        stuck = LocalHost("board", tmp_path, python=str(slow))
        with pytest.raises(CommandFailed, match=r"did not end within 0.5 s"):
            stuck.put(source, str(tmp_path / "there"), deadline=Deadline(0.5))

    def test_no_python_over_there(self, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x")
        bare = LocalHost("board", tmp_path, python="no-such-python")
        with pytest.raises(CommandFailed, match=r"not found.*install Python"):
            bare.put(source, "there", deadline=soon())

    @pytest.mark.parametrize(
        ("fault", "said"), [("damage", "another sha256"), ("cut", "bytes arrived")]
    )
    def test_damage_on_the_way_leaves_nothing(
        self, fault: str, said: str, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(2_000_000))
        there = tmp_path / "there"
        there.mkdir()
        (there / "file").write_bytes(b"old")
        with serving("asyncssh", tmp_path / "server", fault) as running:
            faulty = running.host()
            with pytest.raises(TransferDamaged, match=said):
                faulty.put(source, str(there / "file"), deadline=soon())
            faulty.close()
        assert {p.name: p.read_bytes() for p in there.iterdir()} == {"file": b"old"}

    @both_servers
    def test_a_connection_cut_in_the_middle_leaves_nothing(
        self, kind: str, servers: dict[str, Loopback], tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(os.urandom(30_000_000))
        there = tmp_path / "there"
        proxy = Proxy(servers[kind].port)
        one = servers[kind].host(port=proxy.port)

        def cut(sent: int, total: int) -> None:
            if sent > 10_000_000:
                proxy.cut()

        with pytest.raises(HostUnreachable):
            one.put(source, str(there / "file"), deadline=soon(), progress=cut)
        end = Deadline(5)
        while any(there.iterdir()) and not end.expired:
            time.sleep(0.05)
        assert not any(there.iterdir())
        one.close()
        proxy.close()


class TestTrust:
    def test_a_changed_host_key(self, server: Loopback, tmp_path: Path) -> None:
        keygen(tmp_path / "other")
        key = (tmp_path / "other.pub").read_text()
        known = tmp_path / "known_hosts"
        known.write_text(f"# ours\n\n[127.0.0.1]:{server.port} {key}")
        with pytest.raises(HostKeyChanged) as caught:
            server.host(known_hosts=known).run(["true"], deadline=soon())
        told = str(caught.value)
        assert f"{known}:3" in told
        assert f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f {known}" in told

    def test_a_key_of_another_kind_is_a_changed_one(
        self, server: Loopback, tmp_path: Path
    ) -> None:
        command = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f"]
        subprocess.run([*command, str(tmp_path / "other")], check=True)
        key = (tmp_path / "other.pub").read_text()
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{server.port} {key}")
        with pytest.raises(HostKeyChanged, match=rf"{known}:1"):
            server.host(known_hosts=known).run(["true"], deadline=soon())

    def test_an_unknown_host(self, server: Loopback, tmp_path: Path) -> None:
        known = tmp_path / "known_hosts"
        known.write_text("127.0.0.1 ssh-ed25519 damaged\nnonsense\n@revoked x y z\n")
        with pytest.raises(HostKeyChanged, match=rf"ssh-keyscan -p {server.port}"):
            server.host(known_hosts=known).run(["true"], deadline=soon())

    def test_no_known_hosts(self, server: Loopback, tmp_path: Path) -> None:
        with pytest.raises(HostKeyChanged, match=r"No such file.*ssh-keyscan"):
            server.host(known_hosts=tmp_path / "no").run(["true"], deadline=soon())

    def test_hashed_names_are_understood(
        self, server: Loopback, tmp_path: Path
    ) -> None:
        known = tmp_path / "known_hosts"
        key = (server.folder / "host_key.pub").read_text()
        known.write_text(f"[127.0.0.1]:{server.port} {key}")
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(known)],
            check=True,
            capture_output=True,
        )
        assert "127.0.0.1" not in known.read_text()
        one = server.host(known_hosts=known)
        assert one.run(["true"], deadline=soon()).status == 0
        one.close()

    @both_servers
    def test_a_user_key_that_is_not_allowed(
        self, kind: str, servers: dict[str, Loopback], tmp_path: Path
    ) -> None:
        keygen(tmp_path / "stranger")
        one = servers[kind].host(identity=tmp_path / "stranger")
        with pytest.raises(AuthenticationRefused, match=r"authorized_keys"):
            one.run(["true"], deadline=soon())

    def test_identities_that_cannot_be_used(
        self, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        keygen(tmp_path / "locked", passphrase="secret-words")
        (tmp_path / "noise").write_text("no key")
        for name, said in [
            ("locked", "encrypted.*ssh-add"),
            ("noise", "no private key in"),
            ("missing", "No such file"),
        ]:
            with pytest.raises(AuthenticationRefused, match=said):
                server.host(identity=tmp_path / name).run(["true"], deadline=soon())
        with pytest.raises(AuthenticationRefused, match=r"agent holds no key"):
            server.host(identity=None).run(["true"], deadline=soon())

    def test_the_agent_opens_an_encrypted_identity(
        self, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "agent"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(place)])
        try:
            end = Deadline(5)
            while not place.exists() and not end.expired:
                time.sleep(0.02)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
            plain = server.folder / "identity"
            subprocess.run(["ssh-add", "-q", str(plain)], check=True)
            locked = tmp_path / "locked"
            shutil.copy(plain, locked)
            shutil.copy(f"{plain}.pub", f"{locked}.pub")
            change = ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(locked)]
            subprocess.run(change, check=True, capture_output=True)
            for identity in (locked, None):
                one = server.host(identity=identity)
                assert one.run(["true"], deadline=soon()).status == 0
                one.close()
        finally:
            agent.terminate()
            agent.wait(5)


class TestReach:
    def test_a_port_where_nobody_listens(self, server: Loopback) -> None:
        with pytest.raises(HostUnreachable, match=r"refused.*boards.toml"):
            server.host(port=free_port()).run(["true"], deadline=soon())

    def test_a_name_that_does_not_exist(self, server: Loopback) -> None:
        known = server.folder / "known"
        key = (server.folder / "host_key.pub").read_text()
        known.write_text(f"no-such-host.invalid {key}")
        lost = SshHost(
            "board",
            Address("u", "no-such-host.invalid"),
            identity=server.folder / "identity",
            known_hosts=known,
        )
        with pytest.raises(HostUnreachable, match=r"cannot connect"):
            lost.run(["true"], deadline=soon())

    @pytest.mark.parametrize("greeting", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
    def test_a_port_that_speaks_no_ssh(
        self, greeting: bytes, server: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
        with socket.create_server(("127.0.0.1", 0)) as silent:

            def greet() -> None:
                link, _ = silent.accept()
                link.sendall(greeting)
                time.sleep(4)

            threading.Thread(target=greet, daemon=True).start()
            began = time.monotonic()
            with pytest.raises(HostUnreachable, match=r"no SSH connection"):
                server.host(port=silent.getsockname()[1]).run(["true"], deadline=soon())
            assert time.monotonic() - began < 3

    def test_a_server_that_opens_no_session(self, tmp_path: Path) -> None:
        with serving("asyncssh", tmp_path / "server", "refuse") as running:
            with pytest.raises(HostUnreachable, match=r"opens no further session"):
                running.host().run(["true"], deadline=soon())

    @both_servers
    def test_a_lost_connection_is_told_and_made_again(
        self, kind: str, servers: dict[str, Loopback]
    ) -> None:
        proxy = Proxy(servers[kind].port)
        one = servers[kind].host(port=proxy.port)
        process = one.start(["cat"])
        process.write(b"a", soon())
        assert process.read(1, soon()) == b"a"
        threading.Timer(0.2, proxy.cut).start()
        with pytest.raises(HostUnreachable, match=r"connection was lost"):
            process.read(1, soon())
        with pytest.raises(HostUnreachable):
            process.write(b"b", soon())
        assert process.status() == -1
        assert one.run(["echo", "back"], deadline=soon()).output == b"back\n"
        assert proxy.accepted == 2
        one.close()
        proxy.close()

    def test_a_connection_lost_at_any_moment_of_a_write_is_told(
        self, server: Loopback
    ) -> None:
        proxy = Proxy(server.port)
        one = server.host(port=proxy.port)
        for number in range(15):
            process = one.start(["sh", "-c", "cat >/dev/null"])
            threading.Timer(0.01 + 0.001 * number, proxy.cut).start()
            with pytest.raises(HostUnreachable, match=r"connection was lost"):
                while True:
                    process.write(bytes(40_000), soon())
            process.close()
        one.close()
        proxy.close()

    @both_servers
    def test_a_command_is_never_run_twice(
        self, kind: str, servers: dict[str, Loopback], tmp_path: Path
    ) -> None:
        proxy = Proxy(servers[kind].port)
        one = servers[kind].host(port=proxy.port)
        note = tmp_path / "note"
        threading.Timer(1.0, proxy.cut).start()
        with pytest.raises(HostUnreachable):
            one.run(["sh", "-c", f"echo x >>{note}; cat; sleep 3"], deadline=soon())
        assert note.read_text() == "x\n"
        one.close()
        proxy.close()

    def test_nothing_of_a_loss_reaches_stderr(self, server: Loopback) -> None:
        script = f"""
import socket, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from ssh_server import Loopback, Proxy
from harness.deadline import Deadline
from harness.errors import HarnessError
server = Loopback("asyncssh", Path({str(server.folder)!r}), {server.port})
proxy = Proxy(server.port)
host = server.host(port=proxy.port)
process = host.start(["cat"])
proxy.close()
for _ in range(2):
    try:
        process.read(1, Deadline(5))
    except HarnessError as error:
        print(error)
    try:
        host.run(["true"], deadline=Deadline(5))
    except HarnessError as error:
        print(error)
host.close()
# paramiko logs this one with a traceback.
rude = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: rude.accept()[0].close(), daemon=True).start()
try:
    server.host(port=rude.getsockname()[1]).run(["true"], deadline=Deadline(5))
except HarnessError as error:
    print(error)
"""
        done = subprocess.run(
            python(script), capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 5

    def test_a_board_of_the_inventory(self, server: Loopback) -> None:
        board = Board(
            name="b",
            platform="bm1688",
            host=server.host().address,
            identity=server.folder / "identity",
            known_hosts=server.folder / f"known_hosts_{server.port}",
            model="/m",
        )
        one = open_host(board)
        assert one.run(["echo", "hi"], deadline=soon()).output == b"hi\n"
        one.close()

    def test_a_simulated_board_that_does_not_run(self) -> None:
        board = Board(
            name="s", platform="bm1688", simulated=True, base=Path("b"), convert="c"
        )
        with pytest.raises(UsageFault, match=r"start it first"):
            open_host(board)


class TestSpeed:
    @both_servers
    def test_round_trip_and_a_row_of_logits(
        self, kind: str, servers: dict[str, Loopback]
    ) -> None:
        one = servers[kind].host()
        source = """
import os
while True:
    asked = os.read(0, 8)
    if not asked: break
    left = memoryview(bytes(int.from_bytes(asked, "little")))
    while left: left = left[os.write(1, left):]
"""
        process = one.start(python(source))
        best = {}
        for size in (1, 600_000):
            times = []
            for _ in range(40):
                began = time.perf_counter()
                process.write(size.to_bytes(8, "little"), soon())
                assert len(process.read(size, soon())) == size
                times.append(time.perf_counter() - began)
            best[size] = min(times) * 1e3
        one.close()
        print(f"{kind}: ping {best[1]:.2f} ms, 600 kB {best[600_000]:.2f} ms")
        assert best[1] < 1.0
        # 42 ms is what a connection without TCP_NODELAY takes.
        assert best[600_000] < 20.0

    @pytest.mark.slow
    @both_servers
    def test_more_than_two_gigabytes_over_one_connection(
        self,
        kind: str,
        servers: dict[str, Loopback],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        one = servers[kind].host()
        source = tmp_path / "source"
        back = tmp_path / "back"
        there = str(tmp_path / "there")
        piece = os.urandom(1 << 20)
        with source.open("wb") as file:
            for _ in range(2100):
                file.write(piece)
        # The lease's heartbeats go over the same connection meanwhile.
        with Lease(one, str(tmp_path / "work"), "me") as lease:
            for verb in ("put", "get"):
                began = time.monotonic()
                if verb == "put":
                    one.put(source, there, deadline=Deadline(600))
                else:
                    one.get(there, back, deadline=Deadline(600), limit=3 << 30)
                rate = source.stat().st_size / (time.monotonic() - began) / 1e6
                print(f"{kind}: {verb} {rate:.0f} MB/s")
                lease.check()
        one.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, check=False, capture_output=True).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def alive(number: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    end = Deadline(3)
    while not end.expired:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def line(process: object) -> bytes:
    """A line of a process' stdout."""
    found = b""
    while not found.endswith(b"\n"):
        found += process.read(1, soon())  # type: ignore[attr-defined]
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

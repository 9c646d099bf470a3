"""One SSH connection: TCP, host key, user key."""

from __future__ import annotations

import logging
import signal
import socket
import time
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.message import Message

from harness.boards.address import Address
from harness.deadline import Deadline
from harness.errors import AuthenticationRefused
from harness.errors import HostUnreachable
from harness.hosts.identity import identities
from harness.hosts.known_hosts import KnownHosts
from harness.hosts.piped import WINDOW


__all__ = ["CONNECT_SECONDS", "Connection", "connect"]

# A board on the same network answers in milliseconds, a slow one needs a second
# for the key exchange; nobody waits longer than this for one that is away.
CONNECT_SECONDS = 10.0

# Seconds after which a peer that takes no byte, or acknowledges none, is gone.
_STALL_SECONDS = 15.0

# One pass over the data instead of two. With 64 MiB to and from an sshd on loopback a
# second of our CPU carries about a third more than with paramiko's first choice,
# aes128-ctr and hmac-sha2-256; what it saves a board depends on its AES instructions.
_CIPHER = "aes128-gcm@openssh.com"

# What paramiko reports goes here and nowhere else unless somebody listens: it logs
# tracebacks of lost connections, which reach our callers as typed errors.
_LOG = logging.getLogger("harness.hosts.ssh")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
_KEYS_LOG = logging.getLogger("paramiko")
_KEYS_LOG.addHandler(logging.NullHandler())


class _Socket(socket.socket):
    """A TCP socket whose send gives up on a peer that takes nothing.

    paramiko repeats a send that timed out until the connection is closed.
    """

    _stuck: float | None = None

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            count = super().send(data, flags)
        except TimeoutError:
            now = time.monotonic()
            if self._stuck is None:
                self._stuck = now
            elif now - self._stuck > _STALL_SECONDS:
                raise ConnectionAbortedError("the peer takes no data") from None
            raise
        self._stuck = None
        return count


class Connection(paramiko.Transport):  # type: ignore[misc]  # it has no types
    """A transport that also hears of signals and knows a close from a loss.

    paramiko drops `exit-signal`, and shows a channel that the peer closed and a
    connection that was cut as the same end of stream.
    """

    @staticmethod
    def _on_request(channel: paramiko.Channel, message: Message) -> None:
        start = message.packet.tell()
        if message.get_text() == "exit-signal":
            message.get_boolean()
            name = "SIG" + message.get_text()
            number = signal.Signals.__members__.get(name, signal.SIGHUP)
            channel.exit_status = -int(number)
            channel.status_event.set()
            return
        message.packet.seek(start)
        channel._handle_request(message)

    @staticmethod
    def _on_close(channel: paramiko.Channel, message: Message) -> None:
        channel.closed_by_peer = True
        channel._handle_close(message)

    _channel_handler_table = paramiko.Transport._channel_handler_table | {
        MSG_CHANNEL_REQUEST: _on_request,
        MSG_CHANNEL_CLOSE: _on_close,
    }


def connect(
    name: str, address: Address, identity: Path | None, known_hosts: Path
) -> Connection:
    """An authenticated connection, within ten seconds.

    :param name: the board, for messages.
    :raises HostUnreachable: no answer, refused, or no SSH server.
    :raises HostKeyChanged: the host's key is unknown or another one.
    :raises AuthenticationRefused: our key is unusable or refused.
    """
    where = f"{name} ({address})"
    deadline = Deadline(CONNECT_SECONDS)
    known = KnownHosts(known_hosts, address, where)
    keys = identities(identity, where)
    connection = Connection(_open(address, where, deadline), default_window_size=WINDOW)
    try:
        connection.set_log_channel(_LOG.name)
        connection.banner_timeout = deadline.remaining
        connection.handshake_timeout = deadline.remaining
        connection.auth_timeout = deadline.remaining
        options = connection.get_security_options()
        first = [a for a in known.algorithms() if a in options.key_types]
        rest = [name for name in options.ciphers if name != _CIPHER]
        options.ciphers = (_CIPHER, *rest)
        options.key_types = first + [a for a in options.key_types if a not in first]
        try:
            connection.start_client(timeout=deadline.remaining)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(
                f"no SSH connection: {error or 'it hung up during the key exchange'}",
                where=where,
                cure="see whether an SSH server listens on this port",
            ) from None
        # paramiko returns without a word when the time is up.
        if not connection.initial_kex_done:
            raise HostUnreachable(
                f"no SSH connection: no key exchange within {CONNECT_SECONDS:g} s",
                where=where,
                cure="see whether an SSH server listens on this port",
            )
        known.check(connection.get_remote_server_key())
        _authenticate(connection, address, keys, where, deadline)
        connection.set_keepalive(5)
    except BaseException:
        connection.close()
        raise
    return connection


def _open(address: Address, where: str, deadline: Deadline) -> _Socket:
    try:
        plain = socket.create_connection(
            (address.host, address.port), timeout=deadline.remaining
        )
    except OSError as error:
        reason = "no answer" if isinstance(error, TimeoutError) else error.strerror
        raise HostUnreachable(
            f"cannot connect: {reason or error}",
            where=where,
            cure="see whether the board is powered and on the network, "
            "and host = in boards.toml",
        ) from None
    link = _Socket(fileno=plain.detach())
    # Without it a request of two small packets waits 40 ms for an acknowledgement.
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A board that lost its power acknowledges nothing: the kernel then ends
        # the connection, at the latest after the next keep-alive.
        milliseconds = int(_STALL_SECONDS * 1000)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return link


def _authenticate(
    connection: Connection,
    address: Address,
    keys: list[paramiko.PKey],
    where: str,
    deadline: Deadline,
) -> None:
    tried = []
    for key in keys:
        tried.append(key.fingerprint)
        connection.auth_timeout = deadline.remaining
        try:
            connection.auth_publickey(address.user, key)
        except paramiko.BadAuthenticationType as error:
            kinds = ", ".join(error.allowed_types)
            raise AuthenticationRefused(
                f"the host takes no keys, only: {kinds}",
                where=where,
                cure="allow PubkeyAuthentication over there",
            ) from None
        except paramiko.AuthenticationException:
            if connection.is_active():
                continue
            break
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(
                f"the connection was lost while logging in: {error or 'hung up'}",
                where=where,
                cure="see the SSH server's log over there",
            ) from None
        if connection.is_authenticated():
            return
    raise AuthenticationRefused(
        f"user {address.user} is refused with {' and '.join(tried)}",
        where=where,
        cure=f"add the public key to ~{address.user}/.ssh/authorized_keys over there",
    )

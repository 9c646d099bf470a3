"""The host keys that are trusted: an OpenSSH known_hosts file, read strictly."""

from __future__ import annotations

from pathlib import Path

import paramiko

from harness.boards.address import Address
from harness.errors import HostKeyChanged
from harness.errors import HostKeyUnknown


__all__ = ["KnownHosts"]


class KnownHosts:
    """The keys a known_hosts file has for one host.

    Lines that OpenSSH skips (comments, unknown key types, damaged ones) are skipped
    here too; `@revoked` and `@cert-authority` lines trust nothing.

    :param path: the file.
    :param address: the host.
    :param where: the board, for messages.
    :raises HostKeyChanged: the file is not there.
    """

    def __init__(self, path: Path, address: Address, where: str) -> None:
        self._path = path
        self._address = address
        self._where = where
        self._keys: list[tuple[int, paramiko.PKey]] = []
        try:
            lines = path.read_text("utf-8", "replace").splitlines()
        except OSError as error:
            raise HostKeyUnknown(
                f"cannot read {path}: {error.strerror}",
                where=where,
                cure=self._scan(),
            ) from None
        for number, text in enumerate(lines, 1):
            line = text.strip()
            if not line or line.startswith(("#", "@")):
                continue
            try:
                entry = paramiko.hostkeys.HostKeyEntry.from_line(line, number)
            except (
                paramiko.SSHException,
                paramiko.hostkeys.InvalidHostKey,
                ValueError,
            ):
                continue
            if entry is None or entry.key is None:
                continue
            # One entry in a HostKeys of its own: it knows hashed names, and the
            # line number stays ours.
            one = paramiko.HostKeys()
            one._entries.append(entry)
            if one.lookup(address.known_as):
                self._keys.append((number, entry.key))
        if not self._keys:
            raise HostKeyUnknown(
                f"no key of {address.known_as} in {path}",
                where=where,
                cure=self._scan(),
            )

    def algorithms(self) -> list[str]:
        """Signature algorithms of the known keys, for the negotiation."""
        names: list[str] = []
        for _, key in self._keys:
            name = key.get_name()
            # RSA keys sign with SHA-2 today; `ssh-rsa` is the key's own type.
            rsa = ["rsa-sha2-512", "rsa-sha2-256"]
            names += rsa if name == "ssh-rsa" else [name]
        return list(dict.fromkeys(names))

    def check(self, key: paramiko.PKey) -> None:
        """Trust `key` or refuse it.

        :raises HostKeyChanged: it is none of the known ones.
        """
        if any(known == key for _, known in self._keys):
            return
        same = [n for n, known in self._keys if known.get_name() == key.get_name()]
        line = (same or [number for number, _ in self._keys])[0]
        port = f"-p {self._address.port} " if self._address.port != 22 else ""
        raise HostKeyChanged(
            f"the host shows {key.get_name()} {key.fingerprint}, which is not the key "
            f"in {self._path}:{line}",
            where=self._where,
            cure="if the board was installed anew, run ssh-keygen -R "
            f"'{self._address.known_as}' -f {self._path} and ssh-keyscan {port}"
            f"{self._address.host} >> {self._path}; otherwise somebody is in between",
        )

    def _scan(self) -> str:
        port = f"-p {self._address.port} " if self._address.port != 22 else ""
        return (
            f"run ssh-keyscan {port}{self._address.host} >> {self._path} and compare "
            "the key with the board's own"
        )

"""Where a board is reached: ssh://user@host:port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit


__all__ = ["Address"]

_FORM = "ssh://user@host:port"


@dataclass(frozen=True)
class Address:
    """User, host name or IP address, and TCP port of an SSH server."""

    user: str
    host: str
    port: int = 22

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `ssh://user@host[:port]`; IPv6 as `ssh://user@[::1]:22`.

        :raises ValueError: what is wrong with `text`; never repeats a password.
        """
        if not text.startswith("ssh://"):
            raise ValueError(f"not of the form {_FORM}")
        parts = urlsplit(text)
        if parts.password is not None:
            raise ValueError("a password has no place here; only keys are used")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"nothing may follow the port in {_FORM}")
        if not parts.username:
            raise ValueError(f"the user is missing in {_FORM}")
        if not parts.hostname:
            raise ValueError(f"the host is missing in {_FORM}")
        port = parts.port  # raises ValueError outside 0..65535
        if port == 0:
            raise ValueError("port 0 cannot be connected to")
        # A leading dash or a space would change a command built from it.
        for part in (parts.username, parts.hostname):
            if part.startswith("-") or any(c.isspace() or c < " " for c in part):
                raise ValueError(f"{part!r} is neither a user nor a host")
        return cls(parts.username, parts.hostname, port or 22)

    @property
    def known_as(self) -> str:
        """The name in known_hosts files: `host`, or `[host]:port` off port 22."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{self.user}@{host}:{self.port}"

"""Who we are to a board: a private key from a file or from the agent."""

from __future__ import annotations

from pathlib import Path

import paramiko

from harness.errors import AuthenticationRefused


__all__ = ["identities"]

# OpenSSH's MaxAuthTries: with more keys the server hangs up in our face.
_MAX_TRIES = 6


def identities(path: Path | None, where: str) -> list[paramiko.PKey]:
    """The keys to try, at least one.

    Never asks for a passphrase: an encrypted file is used through the agent.

    :param path: private key file; None: all keys of the agent.
    :param where: the board, for messages.
    :raises AuthenticationRefused: no such file, no key in it, or an encrypted one
        that the agent does not hold.
    """
    if path is None:
        keys = list(paramiko.Agent().get_keys())[:_MAX_TRIES]
        if not keys:
            raise AuthenticationRefused(
                "no identity is named and the agent holds no key",
                where=where,
                cure="set identity = in boards.toml, or run ssh-add",
            )
        return list(keys)
    try:
        return [paramiko.PKey.from_path(path)]
    except OSError as error:
        raise AuthenticationRefused(
            f"cannot read the identity {path}: {error.strerror}",
            where=where,
            cure="correct identity = in boards.toml",
        ) from None
    except Exception as error:  # cryptography has an exception per kind of damage
        if not _encrypted(error):
            raise AuthenticationRefused(
                f"no private key in {path}",
                where=where,
                cure="name the private key's file, an OpenSSH or PEM one",
            ) from None
    held = _held_by_agent(path)
    if held is None:
        raise AuthenticationRefused(
            f"the identity {path} is encrypted and the agent does not hold it",
            where=where,
            cure=f"run ssh-add {path}",
        )
    return [held]


def _encrypted(error: Exception) -> bool:
    """Whether a key could not be loaded for want of its passphrase."""
    return (
        isinstance(error, paramiko.PasswordRequiredException | TypeError)
        or "password" in str(error).lower()
    )


def _held_by_agent(path: Path) -> paramiko.PKey | None:
    """The agent's key of this file, told by the public half beside it."""
    try:
        public = path.with_name(path.name + ".pub").read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        return None
    for key in paramiko.Agent().get_keys():
        if len(public) > 1 and key.get_base64() == public[1]:
            return key
    return None

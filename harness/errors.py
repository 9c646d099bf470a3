"""Everything that can go wrong, by whose fault it is.

Three families, never mixed: `UsageFault` (what the user gave), `Infrastructure`
(ours or the lab's: a check that meets one is ERROR or MISS) and `RuntimeFault`
(what the software under test said or did). A board that is *wrong* is none of
these: that is `harness.verdict.BoardWrong`, an AssertionError.
"""

from __future__ import annotations


__all__ = [
    "AuthenticationRefused",
    "CommandFailed",
    "ConversionRefused",
    "DiskFull",
    "HarnessError",
    "HostKeyChanged",
    "HostKeyUnknown",
    "HostUnreachable",
    "Infrastructure",
    "LeaseHeld",
    "LeaseLost",
    "ProtocolBroken",
    "RuntimeDied",
    "RuntimeFault",
    "RuntimeHung",
    "RuntimeRefused",
    "TransferDamaged",
    "UsageFault",
]


class HarnessError(Exception):
    """An error in one line: where, what, and the cure.

    :param cause: what happened, one line, no secrets.
    :param where: the board, file (with line) or step it happened in.
    :param cure: what the reader can do about it.
    """

    code = "harness"

    def __init__(self, cause: str, *, where: str = "", cure: str = "") -> None:
        self.cause = " ".join(str(cause).split())
        self.where = where
        self.cure = cure
        super().__init__(self.cause, where, cure)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        cure = f" - {self.cure}" if self.cure else ""
        return f"[{self.code}] {place}{self.cause}{cure}"


class UsageFault(HarnessError):
    """Bad input from the user: configuration, adapter folder, option."""

    code = "usage"


class ConversionRefused(UsageFault):
    """The converter refuses this base or adapter, and says why."""

    code = "conversion-refused"


class Infrastructure(HarnessError):
    """Ours or the lab's fault; says nothing about the board's LoRA."""

    code = "infrastructure"


class HostUnreachable(Infrastructure):
    code = "host-unreachable"


class HostKeyChanged(Infrastructure):
    code = "host-key-changed"


class HostKeyUnknown(HostKeyChanged):
    """Nobody has vouched for the host's key yet."""

    code = "host-key-unknown"


class AuthenticationRefused(Infrastructure):
    code = "authentication-refused"


class CommandFailed(Infrastructure):
    code = "command-failed"


class TransferDamaged(Infrastructure):
    code = "transfer-damaged"


class DiskFull(Infrastructure):
    code = "disk-full"


class LeaseHeld(Infrastructure):
    code = "lease-held"


class LeaseLost(Infrastructure):
    code = "lease-lost"


class ProtocolBroken(Infrastructure):
    """The probe's stream is not the protocol (size, version, syntax)."""

    code = "protocol-broken"


class RuntimeFault(HarnessError):
    """What the runtime under test said or did."""

    code = "runtime"


class RuntimeRefused(RuntimeFault):
    """The runtime refused a request and lives.

    :param vendor_code: the vendor's own code, as text.
    """

    code = "runtime-refused"

    def __init__(
        self, cause: str, *, where: str = "", cure: str = "", vendor_code: str = ""
    ) -> None:
        super().__init__(cause, where=where, cure=cure)
        self.vendor_code = vendor_code


class RuntimeDied(RuntimeFault):
    code = "runtime-died"


class RuntimeHung(RuntimeFault):
    code = "runtime-hung"

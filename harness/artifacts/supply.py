"""How adapters reach a board: each on its own, or in bundles that are made ahead."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Protocol

from harness.artifacts.artifact import Artifact
from harness.artifacts.content import folder_digest
from harness.artifacts.provision import Store
from harness.errors import ConversionRefused
from harness.errors import RuntimeRefused


__all__ = ["Bundles", "Folders", "Make", "Supply"]

Adapters = Mapping[str, Path]
Make = Callable[[Adapters], Artifact]
"""Makes a bundle of adapter folders by name; raises `ConversionRefused`."""


class Supply(Protocol):
    """Puts adapters on a board. All methods raise what `Store` raises."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the converter says of its work, for the sign-off page."""

    def has(self, adapters: Adapters) -> bool:
        """Whether these are at hand, or can be had at once."""

    def stock(self, adapters: Adapters) -> bool:
        """Have these adapters at hand, and maybe no others any more.

        :returns: whether the software must start again to see them.
        :raises RuntimeRefused: the converter does not take them together.
        """

    def admit(self, name: str, folder: Path) -> None:
        """See whether an adapter can be had at all; nothing at hand changes.

        :raises RuntimeRefused: the converter does not take it.
        """

    def find(self, name: str, folder: Path) -> str | None:
        """Path over there of what holds this adapter; None: it is not at hand.

        :raises RuntimeRefused: the converter does not take it.
        """

    def held(self, name: str) -> str | None:
        """Digest of an adapter as the board holds it, None: it is held as it is."""

    def forget(self) -> None:
        """Look again for everything over there, as after a restart."""


class Folders:
    """Every adapter as the PEFT folder it is, sent when it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing is converted."""
        return {}

    def has(self, adapters: Adapters) -> bool:
        """They always can be had."""
        return True

    def stock(self, adapters: Adapters) -> bool:
        """Nothing to do ahead."""
        return False

    def admit(self, name: str, folder: Path) -> None:
        """Whoever loads it will say."""

    def find(self, name: str, folder: Path) -> str | None:
        """The folder over there."""
        return self._store.put_folder(folder)

    def held(self, name: str) -> str | None:
        """No conversion, no other content."""
        return None

    def forget(self) -> None:
        """Look again for everything over there."""
        self._store.forget()


class Bundles:
    """One bundle of named adapters at a time, made by the platform's converter.

    :param make: makes a bundle, from a cache where it was made before.
    :ivar bundle: the one at hand.
    """

    def __init__(self, store: Store, make: Make) -> None:
        self._store = store
        self._make = make
        self.bundle: Artifact | None = None
        self._at_hand: dict[str, str] = {}
        # By digest: what could be converted, and why what could not.
        self._taken: set[str] = set()
        self._refused: dict[str, ConversionRefused] = {}
        self._made: list[str] = []
        # Where the bundle lies over there, once it does; and whether that is known.
        self._there = ""
        self._known = False

    @property
    def facts(self) -> Mapping[str, Any]:
        """The sidecar, without what differs from bundle to bundle; and all digests."""
        sidecar = self.bundle.sidecar if self.bundle else {}
        common = {k: v for k, v in sidecar.items() if k not in ("adapters", "sha256")}
        return {**common, "made": sorted(set(self._made))}

    def has(self, adapters: Adapters) -> bool:
        """Whether the bundle holds all that the converter did not refuse."""
        return self._sound(adapters).items() <= self._at_hand.items()

    def stock(self, adapters: Adapters) -> bool:
        """Have a bundle of these; what the converter refuses is left out of it."""
        wanted = self._sound(adapters)
        sound = {name: adapters[name] for name in wanted}
        if not sound:
            return False
        try:
            bundle = self._make(sound)
        except ConversionRefused as refusal:
            # Who is at fault? Everybody new alone, then the sound ones together.
            for name, folder in sound.items():
                self._try(name, folder, wanted[name])
            if self._refused.keys() & wanted.values():
                return self.stock(adapters)
            raise _refusal(refusal) from refusal
        self.bundle, self._at_hand = bundle, wanted
        self._made.append(bundle.digest)
        self._taken.update(wanted.values())
        if self._there:
            # Of bundles that take turns only one must have room over there.
            self.drop(self._there)
            self._there, self._known = "", False
        return True

    def admit(self, name: str, folder: Path) -> None:
        """Convert it alone, unless it was converted before."""
        digest = folder_digest(folder)
        self._try(name, folder, digest)
        if refusal := self._refused.get(digest):
            raise _refusal(refusal) from refusal

    def find(self, name: str, folder: Path) -> str | None:
        """The bundle over there, where it holds this content under this name."""
        digest = folder_digest(folder)
        if refusal := self._refused.get(digest):
            raise _refusal(refusal) from refusal
        if self.bundle is None or self._at_hand.get(name) != digest:
            return None
        if not self._known:
            self._there, self._known = self.put(self.bundle.path), True
        return self._there

    def put(self, bundle: Path) -> str:
        """A bundle's path over there."""
        return self._store.put_file(bundle)

    def drop(self, there: str) -> None:
        """Take a bundle away again."""
        self._store.drop(there)

    def held(self, name: str) -> str | None:
        """What the sidecar says of the adapter after quantisation."""
        adapters = self.bundle.sidecar.get("adapters") if self.bundle else None
        entry = adapters.get(name) if isinstance(adapters, dict) else None
        digest = entry.get("dequantised") if isinstance(entry, dict) else None
        return None if digest is None else str(digest)

    def forget(self) -> None:
        """Look again for everything over there; the bundle stays the same."""
        self._known = False
        self._store.forget()

    def _sound(self, adapters: Adapters) -> dict[str, str]:
        """Digests of the contents by name, without what was refused."""
        digests = {name: folder_digest(folder) for name, folder in adapters.items()}
        return {n: d for n, d in digests.items() if d not in self._refused}

    def _try(self, name: str, folder: Path, digest: str) -> None:
        """Convert one adapter alone, to know whether it can be."""
        if digest in self._refused or digest in self._taken:
            return
        try:
            self._make({name: folder})
            self._taken.add(digest)
        except ConversionRefused as refusal:
            self._refused[digest] = refusal


def _refusal(refusal: ConversionRefused) -> RuntimeRefused:
    """The converter belongs to what is under test: its refusal is the board's."""
    return RuntimeRefused(
        f"not converted: {refusal.cause}",
        where=refusal.where,
        cure="mend what it names",
        vendor_code="converter",
    )

"""The stored right answers: final hidden states of base and adapters.

Layout of a golden folder::

    golden.json                 `harness.golden.index.GoldenIndex`
    states/NAME.safetensors     `hidden` float32 and `hidden_device` bfloat16,
                                `[rows, H]`, after the last norm

Logits are made on load as hidden x lm_head^T in float32, with the lm_head of the
base: the full vocabulary at a fraction of its size. The device's lm_head likewise
multiplies bfloat16 values, accumulates in float32 and gives float32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.errors import UsageFault
from harness.golden.identity import config_digest
from harness.golden.identity import lm_head_digest
from harness.golden.identity import lm_head_of
from harness.golden.identity import weights_digest
from harness.golden.index import MAKE
from harness.golden.index import NAME
from harness.golden.index import AdapterEntry
from harness.golden.index import GoldenIndex
from harness.golden.index import StateFile
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.tensors import TensorFile


__all__ = ["STATES", "GoldenMissing", "GoldenStore", "Reference", "logits_of"]

STATES = "states"
# Rows of logits made at a time: 256 x 151,936 float32 are 148 MiB.
ROWS = 256


class GoldenMissing(UsageFault):
    """The golden holds no answer for this adapter or these prompts."""

    code = "golden-missing"


@dataclass(frozen=True, eq=False)
class Reference:
    """The right logits of one state.

    :param exact: the float32 reference.
    :param device: the same reference evaluated in device arithmetic; its distance
        from `exact` is the numeric floor.
    """

    exact: Scores
    device: Scores

    def on(self, prompts: PromptSet) -> Reference:
        """The same answers on a subset made by `PromptSet.few`.

        :raises GoldenMissing: a prompt is not in the golden.
        """
        try:
            return Reference(self.exact.on(prompts), self.device.on(prompts))
        except ValueError as error:
            raise GoldenMissing(
                f"the golden is for other prompts: {error}", cure=MAKE
            ) from error


class GoldenStore:
    """A golden folder that was checked, together with the base it is for."""

    def __init__(self, folder: Path, base: Path, index: GoldenIndex) -> None:
        """Use `open`; this checks nothing."""
        self.folder = folder
        self.index = index
        self._base = base
        self._references: dict[tuple[str, str], Reference] = {}

    @classmethod
    def open(cls, folder: Path, base: Path) -> GoldenStore:
        """Open a golden for the base in folder `base`.

        :raises UsageFault: a file is missing, malformed or damaged, or the golden
            is for another base.
        """
        store = cls(folder, base, GoldenIndex.read(folder))
        store._check_base()
        for state in store.index.states.values():
            store._check_file(state)
        return store

    @property
    def base_digest(self) -> str:
        """sha256 of the base's weights, as `weights_digest` gives it."""
        return self.index.base["weights"]

    @property
    def lm_head_digest(self) -> str:
        """sha256 of the base's output projection."""
        return self.index.base["lm_head"]

    @property
    def scheme(self) -> str:
        """The device arithmetic of `Reference.device`, such as `bf16`."""
        return self.index.scheme

    @property
    def prompts(self) -> PromptSet:
        """The main prompts."""
        return self.index.prompts

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the packages that made the golden."""
        return self.index.versions

    @property
    def adapters(self) -> Mapping[str, AdapterEntry]:
        """Effect and numeric floor of each adapter, by digest."""
        return self.index.adapters

    @cached_property
    def key(self) -> str:
        """sha256 over all that a result derived from this golden may depend on.

        The base, the scheme, the prompts and the versions of the reference; add an
        adapter's digest for what is derived from that adapter.
        """
        parts = [
            sorted(self.index.base.items()),
            self.scheme,
            self.prompts.digest,
            sorted(self.versions.items()),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def check_versions(self, versions: Mapping[str, str]) -> None:
        """Refuse to be mixed with results of another reference.

        :param versions: of the reference at hand, as `PeftReference.versions`.
        :raises UsageFault: they are not those that made this golden.
        """
        for package, made in sorted(self.versions.items()):
            if versions.get(package) != made:
                raise UsageFault(
                    f"made with {package} {made}, here is {versions.get(package)}",
                    where=str(self.folder / NAME),
                    cure=f"install that version, or {MAKE}",
                )

    def has(self, digest: str) -> bool:
        """Whether there is an answer for the adapter with this digest."""
        return digest in self.adapters

    def base(self, domain: str | None = None) -> Reference:
        """The base on the main prompts, or on the samples of a domain.

        :param domain: a domain's name or the digest of the adapter it belongs to.
        :raises GoldenMissing: no such samples.
        """
        return self._reference("", self._domain(domain))

    def adapter(self, digest: str, domain: str | None = None) -> Reference:
        """The adapter with this digest, on the main prompts or on a domain's.

        :raises GoldenMissing: no such adapter or samples.
        """
        self.entry(digest)
        return self._reference(digest, self._domain(domain))

    def entry(self, digest: str) -> AdapterEntry:
        """Name, effect and numeric floor of an adapter.

        :raises GoldenMissing: no such adapter.
        """
        if digest not in self.adapters:
            raise self._missing(f"no answer for the adapter {digest[:12]}")
        return self.adapters[digest]

    def domain_prompts(self, digest: str) -> PromptSet | None:
        """The adapter's own domain samples, or None when it has none.

        :raises GoldenMissing: no such adapter.
        """
        domain = self.entry(digest).domain
        return None if domain is None else self.index.domains[domain]

    @cached_property
    def lm_head(self) -> np.ndarray:
        """The base's output projection widened, float32 `[vocab, H]`."""
        return lm_head_of(self._base).astype(np.float32)

    def _domain(self, domain: str | None) -> str:
        if domain is None:
            return ""
        entry = self.adapters.get(domain)
        name = entry.domain if entry else domain
        if name is None or name not in self.index.domains:
            raise self._missing(f"no samples of the domain {domain!r}")
        return name

    def _reference(self, digest: str, domain: str) -> Reference:
        key = (digest, domain)
        if key not in self._references:
            state = self.index.states.get(key)
            if state is None:
                raise self._missing(
                    f"no state of {digest[:12] or 'the base'} on "
                    f"{domain or 'the main prompts'}"
                )
            file = TensorFile(self.folder / STATES / state.file)
            prompts = self.index.domains[domain] if domain else self.prompts
            self._references[key] = Reference(
                self._scores(file, "hidden", prompts),
                self._scores(file, "hidden_device", prompts),
            )
        return self._references[key]

    def _scores(self, file: TensorFile, name: str, prompts: PromptSet) -> Scores:
        hidden = file.array(name)
        if hidden.shape != (prompts.rows, self.lm_head.shape[1]):
            raise UsageFault(
                f"{name} {hidden.shape} does not fit the prompts and the base",
                where=str(file.path),
                cure=MAKE,
            )
        logits = logits_of(hidden, self.lm_head)
        logits.setflags(write=False)  # shared by everyone who asks
        return Scores(prompts, logits)

    def _check_base(self) -> None:
        for what, digest in (
            ("config", config_digest),
            ("lm_head", lm_head_digest),
            ("weights", weights_digest),
        ):
            want, found = self.index.base[what], digest(self._base)
            if want != found:
                raise UsageFault(
                    f"the golden is for a base with {what} {want[:12]}, "
                    f"{self._base} has {found[:12]}",
                    where=str(self.folder / NAME),
                    cure=f"give the base it was made for, or {MAKE}",
                )

    def _check_file(self, state: StateFile) -> None:
        path = self.folder / STATES / state.file
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise UsageFault(
                f"cannot read: {error.strerror or error}", where=str(path), cure=MAKE
            ) from error
        if digest.hexdigest() != state.sha256:
            raise UsageFault(
                "damaged: its sha256 is not the one in golden.json",
                where=str(path),
                cure=f"copy it again from its source, or {MAKE}",
            )

    def _missing(self, cause: str) -> GoldenMissing:
        return GoldenMissing(cause, where=str(self.folder), cure=MAKE)


def logits_of(hidden: np.ndarray, lm_head: np.ndarray) -> np.ndarray:
    """hidden x lm_head^T in float32, `[rows, vocab]`.

    :param hidden: `[rows, H]`, any float dtype; widened exactly.
    :param lm_head: float32 `[vocab, H]`.
    """
    wide = hidden.astype(np.float32)
    logits = np.empty((len(wide), len(lm_head)), np.float32)
    for start in range(0, len(wide), ROWS):
        rows = slice(start, start + ROWS)
        np.matmul(wide[rows], lm_head.T, out=logits[rows])
    return logits

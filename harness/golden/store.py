"""The stored right answers: final hidden states of base and adapters.

Layout of a golden folder::

    golden.json                 `harness.golden.index.GoldenIndex`
    states/NAME.safetensors     `hidden` float32 and `hidden_device` in the dtype of
                                the scheme, `[rows, H]`, after the last norm

Logits are made on load as hidden x lm_head^T in float32, with the lm_head of the
base: the full vocabulary at a fraction of its size. The device's lm_head likewise
multiplies its values and accumulates in float32; what it gives is rounded to the
dtype of the scheme's logits (`harness.golden.arithmetic`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from harness.errors import UsageFault
from harness.golden.arithmetic import scheme_of
from harness.golden.identity import lm_head_of
from harness.golden.identity import weights_digest
from harness.golden.index import MAKE
from harness.golden.index import NAME
from harness.golden.index import STATES
from harness.golden.index import AdapterEntry
from harness.golden.index import GoldenIndex
from harness.golden.prompts import PromptSet
from harness.golden.scores import Scores
from harness.golden.tensors import TensorFile


__all__ = ["GoldenMissing", "GoldenStore", "Reference", "logits_of"]

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
    """A golden folder that was checked, together with the base it is for.

    :param reference_base: that base's folder.
    """

    def __init__(self, folder: Path, reference_base: Path, index: GoldenIndex) -> None:
        """Use `open`; this checks no file."""
        self.folder = folder
        self.reference_base = reference_base
        self.index = index
        self._device_logits = scheme_of(index.scheme).logits
        self._references: dict[tuple[str, str], Reference] = {}

    @classmethod
    def open(cls, folder: Path, base: Path, *others: Path) -> GoldenStore:
        """Open a golden for the base in folder `base`, or in one of `others`.

        A board that quantises has two bases: the one it was given and that one
        multiplied out. `reference_base` is the first the golden is for.

        :raises UsageFault: a file is missing, malformed or damaged, or the golden
            is for none of these bases.
        """
        index = GoldenIndex.read(folder)
        differences = []
        for candidate in (base, *others):
            if difference := index.difference(candidate):
                differences.append(difference)
                continue
            for state in index.states.values():
                state.check(folder / STATES)
            return cls(folder, candidate, index)
        made = f" made from weights {index.source[:12]}" if index.source else ""
        raise UsageFault(
            f"the golden is for a base{made} with {'; with '.join(differences)}",
            where=str(folder / NAME),
            cure=f"give the base it was made for, or {MAKE}",
        )

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
        """The device arithmetic of `Reference.device`, `bf16` or `w4a16`."""
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

        The bases, the scheme, the prompts and the versions of the reference; add an
        adapter's digest for what is derived from that adapter.
        """
        parts = [
            sorted(self.index.base.items()),
            self.index.device_base,
            self.scheme,
            self.prompts.digest,
            sorted(self.versions.items()),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def check_floor(self, scheme: str, held: Path | None) -> None:
        """See that the numeric floor is that of what a board computes.

        :param scheme: the board's.
        :param held: the base as it holds it after quantisation, None: as it is.
        :raises UsageFault: the floor was computed in another scheme, or without the
            quantisation.
        """
        if scheme != self.scheme:
            raise UsageFault(
                f"the golden's floor is that of {self.scheme}, the board is {scheme}",
                where=str(self.folder),
                cure=f"make it with `harness golden --scheme {scheme}`",
            )
        if held is None or self.reference_base == held:
            return
        if self.index.device_base != weights_digest(held):
            raise UsageFault(
                "made on the original base, without the floor of the quantised one",
                where=str(self.folder),
                cure=f"make it on {held}, or with `harness golden --device-base` of it",
            )

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
        return lm_head_of(self.reference_base).astype(np.float32)

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
                self._scores(file, "hidden", prompts, np.float32),
                self._scores(file, "hidden_device", prompts, self._device_logits),
            )
        return self._references[key]

    def _scores(
        self, file: TensorFile, name: str, prompts: PromptSet, dtype: DTypeLike
    ) -> Scores:
        hidden = file.array(name)
        if hidden.shape != (prompts.rows, self.lm_head.shape[1]):
            raise UsageFault(
                f"{name} {hidden.shape} does not fit the prompts and the base",
                where=str(file.path),
                cure=MAKE,
            )
        logits = logits_of(hidden, self.lm_head, dtype)
        logits.setflags(write=False)  # shared by everyone who asks
        return Scores(prompts, logits)

    def _missing(self, cause: str) -> GoldenMissing:
        return GoldenMissing(cause, where=str(self.folder), cure=MAKE)


def logits_of(
    hidden: np.ndarray, lm_head: np.ndarray, dtype: DTypeLike = np.float32
) -> np.ndarray:
    """hidden x lm_head^T, summed in float32, float32 `[rows, vocab]`.

    :param hidden: `[rows, H]`, any float dtype; widened exactly.
    :param lm_head: float32 `[vocab, H]`.
    :param dtype: that the logits are rounded to.
    """
    wide = hidden.astype(np.float32)
    logits = np.empty((len(wide), len(lm_head)), np.float32)
    for start in range(0, len(wide), ROWS):
        rows = slice(start, start + ROWS)
        np.matmul(wide[rows], lm_head.T, out=logits[rows])
        logits[rows] = logits[rows].astype(dtype, copy=False)
    return logits

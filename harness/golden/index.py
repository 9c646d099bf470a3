"""The index of a golden: who it is for, its prompts, its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageFault
from harness.golden.gap import Gap
from harness.golden.identity import config_digest
from harness.golden.identity import lm_head_digest
from harness.golden.identity import weights_digest
from harness.golden.prompts import PromptSet


__all__ = ["AdapterEntry", "GoldenIndex", "StateFile", "prompts_of"]

FORMAT = 1
NAME = "golden.json"
STATES = "states"  # the folder of the hidden states
# Digests of weights beside the base's own.
OTHERS = ("device_base", "source")
MAKE = "make it with `harness golden`"


@dataclass(frozen=True)
class AdapterEntry:
    """One adapter of a golden.

    :param digest: `adapter_digest` of its folder.
    :param name: its folder's name when the golden was made.
    :param domain: name of its domain samples, or None.
    :param gap: its effect and its numeric floor on the main prompts.
    """

    digest: str
    name: str
    domain: str | None
    gap: Gap


@dataclass(frozen=True)
class StateFile:
    """The hidden states of base or adapter on one set of prompts.

    :param adapter: the adapter's digest, empty for the base.
    :param domain: the domain's name, empty for the main prompts.
    :param file: name in the folder `states`.
    :param sha256: of the file.
    """

    adapter: str
    domain: str
    file: str
    sha256: str

    def check(self, folder: Path) -> None:
        """Read it through, in the folder of the states.

        :raises UsageFault: it is missing or damaged.
        """
        path = folder / self.file
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise _fault(path, f"cannot read: {error.strerror or error}") from error
        if digest.hexdigest() != self.sha256:
            raise UsageFault(
                "damaged: its sha256 is not the one in golden.json",
                where=str(path),
                cure=f"copy it again from its source, or {MAKE}",
            )


@dataclass(frozen=True)
class GoldenIndex:
    """golden.json.

    :param base: sha256 of the base's `weights`, `config`, `lm_head`.
    :param scheme: the device arithmetic, `bf16` or `w4a16`.
    :param versions: of the packages that made it.
    :param domains: domain samples by the domain's name.
    :param adapters: by digest.
    :param states: by adapter digest and domain, both empty for the base on the
        main prompts.
    :param device_base: sha256 of the weights the device arithmetic was given, empty
        where they are the base's.
    :param source: sha256 of the weights the base was made from by quantising them
        and multiplying them out, empty for a base that was not.
    """

    base: Mapping[str, str]
    scheme: str
    versions: Mapping[str, str]
    prompts: PromptSet
    domains: Mapping[str, PromptSet]
    adapters: Mapping[str, AdapterEntry]
    states: Mapping[tuple[str, str], StateFile]
    device_base: str = ""
    source: str = ""

    @classmethod
    def read(cls, folder: Path) -> GoldenIndex:
        """The index of a golden folder.

        :raises UsageFault: missing, not JSON, malformed, damaged, other format.
        """
        path = folder / NAME
        try:
            value = json.loads(path.read_bytes())
        except OSError as error:
            raise _fault(path, f"cannot read: {error.strerror or error}") from error
        except ValueError as error:
            raise _fault(path, f"not JSON: {error}") from error
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise _fault(path, f"not a golden of format {FORMAT}")
        if value.pop("sha256", None) != _digest(value):
            raise _fault(path, "damaged: its content does not have its own sha256")
        try:
            return cls._from_json(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _fault(path, f"malformed: {error!r}") from error

    def write(self, folder: Path) -> None:
        """Write golden.json with a sha256 of its own content."""
        value = self._to_json()
        value["sha256"] = _digest(value)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        (folder / NAME).write_text(text + "\n")

    def difference(self, base: Path) -> str:
        """In what the base in this folder is not the golden's; empty where it is.

        :raises UsageFault: a file of the base is missing or malformed.
        """
        for what, digest in (
            ("config", config_digest),
            ("lm_head", lm_head_digest),
            ("weights", weights_digest),
        ):
            want, found = self.base[what], digest(base)
            if want != found:
                return f"{what} {want[:12]}, {base} has {found[:12]}"
        return ""

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "base": dict(self.base),
            "scheme": self.scheme,
            "versions": dict(self.versions),
            "prompts": self.prompts.to_json(),
            "domains": {k: v.to_json() for k, v in self.domains.items()},
            "adapters": [
                {
                    "digest": a.digest,
                    "name": a.name,
                    "domain": a.domain,
                    "gap": a.gap.to_json(),
                }
                for a in self.adapters.values()
            ],
            "states": [dict(vars(s)) for s in self.states.values()],
            # Left out where empty, as in goldens that are older than they are.
            **{k: v for k in OTHERS if (v := getattr(self, k))},
        }

    @classmethod
    def _from_json(cls, value: dict[str, Any]) -> GoldenIndex:
        states = [
            StateFile(*(str(s[k]) for k in ("adapter", "domain", "file", "sha256")))
            for s in value["states"]
        ]
        if any(Path(s.file).name != s.file for s in states):
            raise ValueError("a state's file is outside the folder")
        return cls(
            base={k: str(value["base"][k]) for k in ("weights", "config", "lm_head")},
            scheme=str(value["scheme"]),
            versions={str(k): str(v) for k, v in value["versions"].items()},
            prompts=PromptSet.from_json(value["prompts"]),
            domains={
                str(k): PromptSet.from_json(v) for k, v in value["domains"].items()
            },
            adapters={
                str(a["digest"]): AdapterEntry(
                    str(a["digest"]),
                    str(a["name"]),
                    None if a["domain"] is None else str(a["domain"]),
                    Gap(**{k: float(v) for k, v in a["gap"].items()}),
                )
                for a in value["adapters"]
            },
            states={(s.adapter, s.domain): s for s in states},
            **{k: str(value.get(k, "")) for k in OTHERS},
        )


def prompts_of(folder: Path) -> tuple[PromptSet, dict[str, PromptSet]]:
    """The prompts of a golden, and its domain samples by adapter name.

    Needs no base: it is how the prompts of one golden are used for another.

    :raises UsageFault: the folder holds no readable golden.
    """
    index = GoldenIndex.read(folder)
    return index.prompts, {
        a.name: index.domains[a.domain]
        for a in index.adapters.values()
        if a.domain is not None
    }


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _fault(path: Path, cause: str) -> UsageFault:
    return UsageFault(cause, where=str(path), cure=MAKE)

"""A LoRA adapter as PEFT saves it: a configuration and safetensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import safe_open

from harness.artifacts.model import place_of
from harness.artifacts.model import read_json
from harness.errors import UsageFault
from harness.golden.identity import adapter_digest
from harness.golden.tensors import TensorFile
from harness.probes.names import TensorName
from harness.probes.peft import LIMIT
from harness.probes.peft import Config
from harness.probes.peft import ConfigError


__all__ = ["CONFIG", "FLOATS", "PREFIX", "WEIGHTS", "Adapter", "Facts", "Module"]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# PEFT writes every tensor under its own two wrappers.
PREFIX = "base_model.model."
# Floating dtypes that a slot's value can be computed from; 8-bit floats have no
# PEFT reader and need a scale the file does not carry.
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Facts:
    """What the file's header says about a tensor; `dtype` as safetensors spells it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Module:
    """A module the adapter changes: y += scale · B(A x).

    :param path: module path in the base (`model.language_model.layers.0.…`).
    :param layer: text layer, -1 outside the text layers.
    :param name: last part of the path (`q_proj`).
    :param rank: rank after rank_pattern, as the configuration says.
    :param alpha: alpha after alpha_pattern.
    :param scale: alpha / rank, or alpha / sqrt(rank) with rsLoRA (R03).
    :param in_features: columns of A.
    :param out_features: rows of B.
    :param dtype: dtype of A and B, `A/B` where they differ.
    """

    path: str
    layer: int
    name: str
    rank: int
    alpha: float
    scale: float
    in_features: int
    out_features: int
    dtype: str


@dataclass(frozen=True)
class Adapter:
    """An adapter folder that could be read; whether it fits is `preflight`'s word.

    :param name: the folder's name.
    :param digest: sha256 of its content (`harness.golden.identity`).
    :param config: the fields of its configuration, as they stand.
    :param tensors: every tensor in the file, in the file's order.
    :param modules: the modules with an A and a B of two dimensions each.
    """

    folder: Path
    name: str
    digest: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Facts]
    modules: tuple[Module, ...]
    rules: Config

    @classmethod
    def open(cls, folder: Path) -> Adapter:
        """Read a PEFT folder; tensor data stays on disk until asked for.

        :raises UsageFault: no folder, no or malformed configuration, not LoRA,
            no, empty, cut or pickled weights.
        """
        folder = Path(folder)
        config = _config(folder)
        rules = _rules(config, folder / CONFIG)
        tensors = _tensors(folder)
        return cls(
            folder=folder,
            name=folder.resolve().name,
            digest=adapter_digest(folder),
            config=MappingProxyType(config),
            tensors=MappingProxyType(tensors),
            modules=tuple(_modules(tensors, rules)),
            rules=rules,
        )

    def data(self, tensor: str) -> np.ndarray:
        """A floating tensor's values in its own dtype (`ml_dtypes.bfloat16` too).

        :raises UsageFault: the file changed or holds no such floating tensor.
        """
        facts = self.tensors.get(tensor)
        where = str(self.folder / WEIGHTS)
        if facts is None or facts.dtype not in FLOATS:
            raise UsageFault(f"no floating tensor {tensor[:200]!r}", where=where)
        try:
            return self._file.array(tensor)
        except OSError as error:
            raise UsageFault(
                error.strerror or str(error), where=where, cure=_AGAIN
            ) from None

    @cached_property
    def _file(self) -> TensorFile:
        """The weights' header, read once for all tensors."""
        return TensorFile(self.folder / WEIGHTS)

    def factors(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        """A `[rank, in]` and B `[out, rank]` of a module, in their own dtype."""
        return self.data(tensor_of(path, "A")), self.data(tensor_of(path, "B"))

    @cached_property
    def effective(self) -> bool:
        """Whether it changes the base at all: in some module neither A nor B is 0."""
        return any(
            module.scale and all(np.any(f) for f in self.factors(module.path))
            for module in self.modules
        )

    def width(self) -> tuple[bool, int, int]:
        """How much of a board it touches: modules, then the sum of their ranks.

        One that changes nothing touches least of all.
        """
        ranks = sum(module.rank for module in self.modules)
        return self.effective, len(self.modules), ranks

    @property
    def facts(self) -> dict[str, Any]:
        """What the sign-off page says of it (R03)."""

        def spread(values: Iterable[float]) -> str:
            found = sorted(set(values))
            ends = found[:1] if len(found) == 1 else (found[0], found[-1])
            return " to ".join(f"{value:g}" for value in ends)

        return {
            "rank": spread(module.rank for module in self.modules),
            "alpha": spread(module.alpha for module in self.modules),
            "scale": spread(module.scale for module in self.modules),
            "rslora": self.rules.rslora,
            "modules": len(self.modules),
            "names": sorted({module.name for module in self.modules}),
            "dtype": sorted({module.dtype for module in self.modules}),
            "base": str(self.config.get("base_model_name_or_path", ""))[:200],
        }

    def pairs(self) -> dict[str, set[str]]:
        """The factors (`A`, `B`) present by module path, whatever their shape."""
        return _pairs(self.tensors)


_AGAIN = "copy the adapter again and compare its sha256"


def tensor_of(path: str, factor: str) -> str:
    """PEFT's name of a module's factor in the file."""
    return f"{PREFIX}{path}.lora_{factor}.weight"


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise UsageFault(
            what, where=str(folder), cure=f"give the folder that holds {CONFIG}"
        )
    cure = "give the folder that PEFT's save_pretrained wrote"
    if not (folder / CONFIG).exists():
        # PEFT saves an adapter that is not called `default` one level down.
        inner = sorted(p.parent.name for p in folder.glob(f"*/{CONFIG}"))
        if inner:
            cure = f"the adapter lies in its sub-folder {inner[0]!r}"
    return read_json(folder / CONFIG, cure, LIMIT)


def _rules(config: Mapping[str, Any], path: Path) -> Config:
    """PEFT's rules for rank, alpha and targets; variants are preflight's to name."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UsageFault(
            f"peft_type is {kind!r:.40}, not LORA",
            where=str(path),
            cure="only LoRA adapters fit into low-rank slots",
        )
    # Config refuses the first variant it meets; here all are to be listed later,
    # so it sees only the fields that decide rank, alpha and targets.
    plain = {k: v for k, v in config.items() if k in _DECIDING}
    try:
        return Config({"peft_type": "LORA", **plain})
    except ConfigError as error:
        raise UsageFault(
            str(error), where=str(path), cure="correct the field or export again"
        ) from None


_DECIDING = frozenset(
    (
        "alpha_pattern",
        "exclude_modules",
        "layers_to_transform",
        "lora_alpha",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    )
)


def _tensors(folder: Path) -> dict[str, Facts]:
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / "adapter_model.bin").exists():
            raise UsageFault(
                "only adapter_model.bin, a pickle, which can run code when read",
                where=str(folder),
                cure="load it with PEFT where you trust it and save it again with "
                "save_pretrained(..., safe_serialization=True)",
            )
        raise UsageFault(
            f"no {WEIGHTS}", where=str(folder), cure="copy the whole adapter folder"
        )
    try:
        if path.stat().st_size == 0:
            raise UsageFault("the file is empty", where=str(path), cure=_AGAIN)
        with safe_open(path, "np") as opened:
            # safetensors checks that the data is covered without holes.
            tensors = {
                name: Facts(
                    opened.get_slice(name).get_dtype(),
                    tuple(opened.get_slice(name).get_shape()),
                )
                for name in opened.offset_keys()
            }
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise UsageFault(
            f"cut or damaged: {reason}", where=str(path), cure=_AGAIN
        ) from None
    if not tensors:
        raise UsageFault("the file holds no tensor", where=str(path), cure=_AGAIN)
    return tensors


def _pairs(tensors: Mapping[str, Facts]) -> dict[str, set[str]]:
    pairs: dict[str, set[str]] = {}
    for name in tensors:
        if found := TensorName.parse(name):
            pairs.setdefault(found.module, set()).add(found.place.factor)
    return pairs


def _modules(tensors: Mapping[str, Facts], rules: Config) -> list[Module]:
    modules = []
    for path, factors in _pairs(tensors).items():
        if factors != {"A", "B"}:
            continue
        a, b = (tensors[tensor_of(path, f)] for f in "AB")
        if len(a.shape) != 2 or len(b.shape) != 2:
            continue
        rank, alpha = rules.rank_of(path), rules.alpha_of(path)
        modules.append(
            Module(
                path=path,
                layer=place_of(path).layer,
                name=path.rpartition(".")[2],
                rank=rank,
                alpha=alpha,
                scale=alpha / (math.sqrt(rank) if rules.rslora else rank),
                in_features=a.shape[1],
                out_features=b.shape[0],
                dtype=a.dtype if a.dtype == b.dtype else f"{a.dtype}/{b.dtype}",
            )
        )
    return modules

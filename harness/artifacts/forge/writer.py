"""Adapters in memory, and adapter folders written from them."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import tensor_of
from harness.errors import UsageFault


__all__ = ["Draft", "Part", "read_files", "serialise", "times", "write_folder"]

DTYPES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int8): "I8",
}


@dataclass(frozen=True, eq=False)
class Part:
    """One module: A `[rank, in]`, B `[out, rank]` and its alpha."""

    a: np.ndarray
    b: np.ndarray
    alpha: float

    @property
    def rank(self) -> int:
        """Rows of A."""
        return int(self.a.shape[0])

    def padded(self, rank: int, alpha: float) -> Part:
        """Zero rows and columns up to `rank`, and another alpha."""
        extra = rank - self.rank
        return Part(
            np.pad(self.a, ((0, extra), (0, 0))),
            np.pad(self.b, ((0, 0), (0, extra))),
            alpha,
        )


@dataclass(frozen=True, eq=False)
class Draft:
    """An adapter to be written.

    :param config: fields that are kept as they are; rank, alpha, their patterns
        and `use_rslora` are written from the parts.
    :param parts: by module path, in the order of the file.
    """

    config: Mapping[str, Any]
    parts: Mapping[str, Part]
    rslora: bool

    @classmethod
    def of(cls, adapter: Adapter) -> Draft:
        """An adapter, to make others from.

        :raises UsageFault: it holds more than sound pairs of A and B.
        """
        parts = {}
        for module in adapter.modules:
            a, b = adapter.factors(module.path)
            if a.shape[0] != module.rank or b.shape[1] != module.rank:
                raise UsageFault(
                    f"the rank of {module.path} is not the configured {module.rank}",
                    where=str(adapter.folder),
                    cure=_SOUND,
                )
            parts[module.path] = Part(a, b, module.alpha)
        if 2 * len(parts) != len(adapter.tensors) or not parts:
            raise UsageFault(
                "it holds tensors that are no A and B of a module",
                where=str(adapter.folder),
                cure=_SOUND,
            )
        return cls(dict(adapter.config), parts, adapter.rules.rslora)

    def scale(self, path: str) -> float:
        """The effective scale of a module: alpha/r, rsLoRA alpha/sqrt(r)."""
        part = self.parts[path]
        return part.alpha / (math.sqrt(part.rank) if self.rslora else part.rank)

    def each(self, change: Callable[[str, Part], Part]) -> Draft:
        """Every part changed."""
        return replace(self, parts={p: change(p, q) for p, q in self.parts.items()})

    def only(self, keep: Callable[[str], bool]) -> Draft:
        """The modules for which `keep` holds, and the targets to match."""
        return self.on({p: q for p, q in self.parts.items() if keep(p)})

    def on(self, parts: Mapping[str, Part]) -> Draft:
        """Other modules; the configuration names each of them in full."""
        return replace(
            self,
            parts=dict(parts),
            config={
                **self.config,
                "target_modules": sorted(parts),
                "exclude_modules": None,
                "layers_to_transform": None,
                "layers_pattern": None,
            },
        )

    def plain(self) -> Draft:
        """The same scales without rsLoRA."""
        return replace(
            self.each(lambda path, q: replace(q, alpha=self.scale(path) * q.rank)),
            rslora=False,
        )

    def fields(self) -> dict[str, Any]:
        """The configuration, as saved: r and alpha of most modules, then patterns."""
        ranks = {path: part.rank for path, part in self.parts.items()}
        alphas = {path: number(part.alpha) for path, part in self.parts.items()}
        rank, alpha = _most(ranks.values()), _most(alphas.values())
        return {
            **self.config,
            "r": rank,
            "lora_alpha": alpha,
            "use_rslora": self.rslora,
            "rank_pattern": {p: r for p, r in ranks.items() if r != rank},
            "alpha_pattern": {p: a for p, a in alphas.items() if a != alpha},
        }

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors by their name in the file, A before B."""
        return {
            tensor_of(path, factor): values
            for path, part in self.parts.items()
            for factor, values in (("A", part.a), ("B", part.b))
        }

    def files(
        self,
        fields: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, bytes]:
        """The two files, with other fields or tensors where given."""
        return {
            CONFIG: dump(self.fields() if fields is None else fields),
            WEIGHTS: serialise(self.tensors() if tensors is None else tensors),
        }

    def write(self, target: Path) -> Path:
        """Write the folder.

        :raises UsageFault: `target` exists and is not empty, or cannot be written.
        """
        return write_folder(target, self.files())


_SOUND = "forge from an adapter that `harness inspect` finds fit"


def number(value: float) -> int | float:
    """A number as people write it: whole ones without a point."""
    return int(value) if float(value).is_integer() else float(value)


def times(values: np.ndarray, power: float) -> np.ndarray:
    """Values times a power of two, in their own dtype."""
    with np.errstate(over="ignore"):
        return (values.astype(np.float64) * power).astype(values.dtype)


def _most(values: Iterable[Any]) -> Any:
    items = list(values)
    return max(dict.fromkeys(items), key=items.count)  # the first of equals


def dump(fields: Mapping[str, Any]) -> bytes:
    """A configuration as PEFT writes it: sorted, indent 2."""
    return json.dumps(dict(fields), indent=2, sort_keys=True).encode() + b"\n"


def serialise(tensors: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file with the tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {
            "dtype": DTYPES[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [start, end],
        }
    data = b"".join(np.ascontiguousarray(v).tobytes() for v in tensors.values())
    return with_header(header, data)


def with_header(header: Mapping[str, Any], data: bytes) -> bytes:
    """A safetensors file from a header and the bytes behind it."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    return struct.pack("<Q", len(text)) + text + data


def read_files(adapter: Adapter) -> dict[str, bytes]:
    """The adapter's two files as they are."""
    return {name: (adapter.folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def write_folder(target: Path, files: Mapping[str, bytes]) -> Path:
    """Write a folder whole or not at all.

    :raises UsageFault: `target` exists and is not an empty folder, or it cannot
        be written.
    """
    target = Path(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageFault(
                "exists and is not an empty folder",
                where=str(target),
                cure="give a new folder; nothing is overwritten",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            for name, data in files.items():
                (making / name).write_bytes(data)
            making.chmod(0o755)
            os.rename(making, target)  # replaces an empty folder, nothing else
        finally:
            shutil.rmtree(making, ignore_errors=True)
    except OSError as error:
        raise UsageFault(
            f"cannot write: {error.strerror or error}", where=str(target)
        ) from None
    return target

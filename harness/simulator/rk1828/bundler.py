"""PEFT adapters -> what a bundle holds; every step can be done wrong by a subclass."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import PREFIX
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import Module
from harness.artifacts.adapter import tensor_of
from harness.artifacts.finding import shown
from harness.artifacts.fit import fit
from harness.artifacts.forge.writer import with_header
from harness.artifacts.model import Base
from harness.errors import ConversionRefused
from harness.golden.tensors import TensorFile
from harness.simulator.rk1828.bundlefile import MOST_ADAPTERS
from harness.simulator.rk1828.quantise import METHODS
from harness.simulator.rk1828.quantise import fp16
from harness.simulator.rk1828.quantise import roundtrip


__all__ = ["BITS", "Bundler", "Scheme", "Spelling"]

# `lora_quantized_dtype` of the vendor's toolkit; float16 is no quantisation.
BITS = {"float16": 0, "int8": 8, "int6": 6, "int4": 4}


@dataclass(frozen=True)
class Scheme:
    """How the factors are kept.

    :param dtype: of `BITS`.
    :param method: of `METHODS`, None for float16.
    :raises ConversionRefused: they do not go together.
    """

    dtype: str = "float16"
    method: str | None = None

    def __post_init__(self) -> None:
        if (self.method is None) != (self.dtype == "float16"):
            raise ConversionRefused(
                f"dtype {self.dtype} with method {self.method}",
                cure=f"give a method ({', '.join(METHODS)}) with an integer dtype only",
            )


@dataclass(frozen=True)
class Spelling:
    """What stands before and behind a module's path (`lora_prefix`, `lora_postfix_a`).

    :raises ConversionRefused: A and B would have one name.
    """

    prefix: str = PREFIX
    postfix_a: str = ".lora_A.weight"
    postfix_b: str = ".lora_B.weight"

    def __post_init__(self) -> None:
        if self.postfix_a == self.postfix_b:
            raise ConversionRefused(
                f"A and B both end in {shown(self.postfix_a)}",
                cure="give two different postfixes",
            )

    def as_peft(self, folder: Path, target: Path) -> Path:
        """A folder whose tensors have PEFT's names: `folder` itself, or `target`.

        :param target: a new folder, made where names differ.
        :raises ConversionRefused: a tensor is named in another way.
        :raises UsageFault: the folder is damaged.
        """
        if self == Spelling():
            return folder
        Adapter.open(folder)  # damage is reported where it is
        file = TensorFile(folder / WEIGHTS)
        start = min(tensor.start for tensor in file.tensors.values())
        header = {
            self._name(name, file.path): {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [
                    tensor.start - start,
                    tensor.start - start + tensor.size,
                ],
            }
            for name, tensor in file.tensors.items()
        }
        target.mkdir()
        shutil.copyfile(folder / CONFIG, target / CONFIG)
        with file.path.open("rb") as source, (target / WEIGHTS).open("wb") as copy:
            copy.write(with_header(header, b""))
            source.seek(start)
            shutil.copyfileobj(source, copy)
        return target

    def _name(self, name: str, where: Path) -> str:
        for factor, postfix in (("A", self.postfix_a), ("B", self.postfix_b)):
            path = name.removeprefix(self.prefix).removesuffix(postfix)
            if path and name == f"{self.prefix}{path}{postfix}":
                return tensor_of(path, factor)
        raise ConversionRefused(
            f"tensor {shown(name)} is not {self.prefix}…{self.postfix_a} nor "
            f"…{self.postfix_b}: it would be left out",
            where=str(where),
            cure="give the prefix and the postfixes of this file",
        )


class Bundler:
    """The sound converter of adapters.

    :param base: the base they were trained on.
    :param out: the bundle to write.
    :param asked: the scheme that was asked for.
    :param most_rank: ranks above it are refused.
    """

    def __init__(self, base: Base, out: Path, asked: Scheme, most_rank: int) -> None:
        self.base = base
        self.out = out
        self.most_rank = most_rank
        self.scheme = self.chosen(asked)

    def chosen(self, asked: Scheme) -> Scheme:
        """The scheme that is used where this one was asked for."""
        return asked

    def admit(self, folders: Mapping[str, Path]) -> dict[str, Path]:
        """The adapters that go into the bundle, in order.

        :raises ConversionRefused: they are none or too many.
        """
        if not 1 <= len(folders) <= MOST_ADAPTERS:
            raise ConversionRefused(
                f"{len(folders)} adapters",
                cure=f"a bundle holds 1 to {MOST_ADAPTERS}",
            )
        return dict(folders)

    def open(self, name: str, folder: Path) -> Adapter:
        """An adapter that can be converted without loss of a tensor or a value.

        :raises UsageFault: it cannot, or is damaged.
        """
        adapter = Adapter.open(folder)
        found = fit(adapter, self.base.linears, self.most_rank, "f32")
        reasons = [f.text for f in found if f.severity == "unfit"]
        reasons = reasons or list(self._beyond_fp16(adapter))
        if reasons:
            more = f" (and {len(reasons) - 1} more)" if reasons[1:] else ""
            raise ConversionRefused(
                reasons[0] + more,
                where=str(folder),
                cure="export it as plain LoRA for this base",
            )
        return adapter

    def modules(self, adapter: Adapter) -> list[Module]:
        """The modules that are converted."""
        return list(adapter.modules)

    def layer(self, module: Module) -> int:
        """The layer that a module is put into."""
        return module.layer

    def scale(self, module: Module) -> float:
        """alpha / r, or alpha / sqrt(r) with rsLoRA, as float32."""
        return float(np.float32(module.scale))

    def factors(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A `[r, in]` and B `[out, r]` as the board takes them, B as `[r, out]`."""
        return a, b.T

    def names(self, names: list[str]) -> list[str]:
        """The name that each adapter gets in the bundle."""
        return names

    def held(self, adapter: Adapter, module: Module) -> tuple[np.ndarray, np.ndarray]:
        """A `[r, in]` and B `[out, r]` after quantisation, float32 of fp16 values."""
        a, b = adapter.factors(module.path)
        with np.errstate(over="ignore"):  # what is infinite is found by `open`
            a, b = a.astype(np.float32), b.astype(np.float32)
        return self._kept(a, 0), self._kept(b.T, 1).T

    def _kept(self, values: np.ndarray, axis: int) -> np.ndarray:
        method = self.scheme.method
        if method is None:
            return fp16(values)
        return roundtrip(values, BITS[self.scheme.dtype], method, axis)

    def _beyond_fp16(self, adapter: Adapter) -> Iterator[str]:
        """The tensors whose values fp16 cannot keep."""
        for module in adapter.modules:
            for factor, held in zip("AB", self.held(adapter, module)):
                tensor = tensor_of(module.path, factor)
                if not np.isfinite(held).all():
                    yield f"tensor {shown(tensor)} overflows fp16"
                elif not held.any() and adapter.data(tensor).any():
                    yield f"tensor {shown(tensor)} is all zero in fp16"

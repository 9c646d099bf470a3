"""How adapter files name their tensors, where it is not as PEFT does."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import PREFIX
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import tensor_of
from harness.artifacts.finding import shown
from harness.artifacts.forge.writer import with_header
from harness.errors import ConversionRefused
from harness.golden.tensors import TensorFile


__all__ = ["Spelling"]


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

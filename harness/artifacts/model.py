"""A base model: facts read from a checkpoint folder, no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import UsageFault
from harness.golden.identity import BaseIdentity
from harness.golden.identity import base_identity
from harness.golden.tensors import TensorFile
from harness.probes.names import Place
from harness.probes.names import TensorName


__all__ = ["LINEARS", "Base", "Linear", "place_of", "read_json"]

# The linears of a decoder layer that get low-rank slots (tpu-mlir 1.30 compiles
# exactly these seven; nothing in the vision tower).
LINEARS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
# A config or an index is a few hundred kB for the largest published models.
JSON_LIMIT = 64 << 20


@dataclass(frozen=True)
class Linear:
    """A linear of a text layer.

    :param path: its module path in the base.
    :param in_features: columns of its weight, 0 where not known.
    :param out_features: rows of its weight, 0 where not known.
    :param bias: whether it adds a bias.
    """

    path: str
    in_features: int
    out_features: int
    bias: bool = False


@dataclass(frozen=True)
class Base:
    """A Hugging Face checkpoint.

    :param architecture: the class it was made for.
    :param layers: text layers.
    :param hidden: width of the hidden state.
    :param vocab: rows of the logits.
    :param tied: lm_head shares the embedding's weights.
    :param linears: the text linears that get slots, by `(layer, name)`.
    """

    folder: Path
    architecture: str
    layers: int
    hidden: int
    vocab: int
    tied: bool
    linears: Mapping[tuple[int, str], Linear]

    @property
    def biased(self) -> list[Linear]:
        """The linears with a bias."""
        return [linear for linear in self.linears.values() if linear.bias]

    @cached_property
    def identity(self) -> BaseIdentity:
        """Digests of its files; reads all weights once."""
        return base_identity(self.folder)

    @classmethod
    def open(cls, folder: Path) -> Base:
        """The facts of the checkpoint in `folder`, from its config and headers.

        :raises UsageFault: no folder, no or damaged config or weights, or a
            model without the linears that get slots.
        """
        if not folder.is_dir():
            raise UsageFault(
                "no such folder", where=str(folder), cure="give the base's folder"
            )
        path = folder / "config.json"
        config = read_json(path, "a checkpoint folder of transformers holds one")
        text = config.get("text_config", config)
        if not isinstance(text, dict):
            raise UsageFault("text_config is not an object", where=str(path))
        names = config.get("architectures") or [config.get("model_type", "unknown")]
        architecture = names[0] if isinstance(names, list) and names else names
        layers = _count(text, "num_hidden_layers", path)
        shapes = _shapes(folder)
        return cls(
            folder=folder,
            architecture=str(architecture),
            layers=layers,
            hidden=_count(text, "hidden_size", path),
            vocab=_count(text, "vocab_size", path),
            tied=bool(
                config.get(
                    "tie_word_embeddings", text.get("tie_word_embeddings", False)
                )
            ),
            linears=_linears(shapes, layers, folder),
        )


def place_of(path: str) -> Place:
    """Where a module's factors belong: its layer (-1: none) and path inside it."""
    parsed = TensorName.parse(f"base_model.model.{path}.lora_A.weight")
    return parsed.place if parsed else Place(-1, path, "A")


def read_json(path: Path, cure: str, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes.

    :raises UsageFault: no such file, too large, not an object, not JSON: fields
        given twice and NaN or Infinity are not.
    """
    try:
        if not path.is_file():
            raise UsageFault("no such file", where=str(path), cure=cure)
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UsageFault(error.strerror or str(error), where=str(path)) from None
    if len(raw) > limit:
        raise UsageFault(f"larger than {limit} bytes", where=str(path), cure=cure)
    try:
        value = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageFault(
            f"not JSON: {error}", where=str(path), cure="copy or export it again"
        ) from None
    if not isinstance(value, dict):
        raise UsageFault("not a JSON object", where=str(path), cure=cure)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _count(text: Mapping[str, Any], field: str, path: Path) -> int:
    value = text.get(field)
    if type(value) is not int or value <= 0:
        raise UsageFault(
            f"{field} is {value!r:.40}, not a positive number",
            where=str(path),
            cure="give a decoder checkpoint",
        )
    return value


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights, from the safetensors headers."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weights = read_json(index, "").get("weight_map")
        names = set(weights.values()) if isinstance(weights, dict) else set()
        if not names or not all(_is_file_name(n) for n in names):
            raise UsageFault("weight_map names no files", where=str(index))
        files = [folder / name for name in sorted(names)]
    else:
        files = [folder / "model.safetensors"]
    return {
        name: tensor.shape
        for file in files
        for name, tensor in TensorFile(file).tensors.items()
    }


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name


def _linears(
    shapes: Mapping[str, tuple[int, ...]], layers: int, folder: Path
) -> dict[tuple[int, str], Linear]:
    found = {}
    for name, shape in sorted(shapes.items()):
        path, _, kind = name.rpartition(".")
        module = path.rpartition(".")[2]
        if kind != "weight" or module not in LINEARS or len(shape) != 2:
            continue
        layer = place_of(path).layer
        if 0 <= layer < layers:
            found[layer, module] = Linear(
                path, shape[1], shape[0], f"{path}.bias" in shapes
            )
    missing = [(i, n) for i in range(layers) for n in LINEARS if (i, n) not in found]
    if missing:
        layer, name = missing[0]
        raise UsageFault(
            f"layer {layer} has no {name} ({len(missing)} linears missing)",
            where=str(folder),
            cure="a decoder with the seven separate linears of Qwen3 is needed",
        )
    return found

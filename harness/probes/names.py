"""Names of low-rank slots and of adapter tensors, and how they meet."""

from __future__ import annotations

import re
from typing import NamedTuple
from typing import Optional


__all__ = ["Place", "SlotName", "TensorName"]

# Paths of a text layer: Qwen3-VL today, a text-only Qwen3, Qwen3-VL before
# transformers 4.52 (where the language model had its own `model`).
LAYER = re.compile(
    r"(?:model\.language_model|model|language_model\.model)"
    r"\.layers\.(0|[1-9][0-9]{0,5})\.([A-Za-z0-9_.]+)"
)
SLOT = re.compile(
    r"lora\.([0-9]{1,6})\.([0-9]+)\.(.+)\.lora_(embedding_)?([AB])(?:\.weight)?"
)
TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


class Place(NamedTuple):
    """Where a factor belongs, the same for every spelling of the prefix.

    :param layer: text layer, -1 outside the layers.
    :param path: path inside the layer (`self_attn.q_proj`), or the whole path.
    :param factor: `A` or `B`.
    """

    layer: int
    path: str
    factor: str


def _place(module: str, factor: str) -> Place:
    match = LAYER.fullmatch(module)
    if match is None:
        return Place(-1, module, factor)
    return Place(int(match.group(1)), match.group(2), factor)


class SlotName(NamedTuple):
    """A slot's name taken apart: `lora.{reserved rank}.{dim}.{weight}`.

    :param embedding: an embedding's factor, whose layout is another one.
    """

    reserved_rank: int
    module: str
    embedding: bool
    place: Place

    @classmethod
    def parse(cls, name: str) -> Optional[SlotName]:
        """None where the name is not that of a slot."""
        match = SLOT.fullmatch(name)
        if match is None:
            return None
        module, factor = match.group(3), match.group(5)
        place = _place(module, factor)
        return cls(int(match.group(1)), module, bool(match.group(4)), place)


class TensorName(NamedTuple):
    """An adapter tensor's name taken apart.

    :param module: path of the module in the model the adapter was trained on.
    """

    module: str
    place: Place

    @classmethod
    def parse(cls, name: str) -> Optional[TensorName]:
        """None where the name is not that of a factor of a linear layer."""
        match = TENSOR.fullmatch(name)
        if match is None:
            return None
        module = match.group(1)
        return cls(module, _place(module, match.group(2)))

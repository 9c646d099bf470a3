"""The factors of an adapter file: what belongs together, and whether it fits."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import NamedTuple
from typing import Tuple

from .names import Place
from .names import TensorName
from .peft import Config
from .safetensors import Tensors


__all__ = [
    "FLOATS",
    "Factor",
    "LoaderRefused",
    "Pair",
    "check_fit",
    "check_layers",
    "check_pair",
    "pairs_of",
]

# Dtypes whose values have a float32 of their own (F64 is rounded to it).
FLOATS = ("F64", "F32", "F16", "BF16")
# The vendor's runtime reports slot sizes rounded up to this many bytes.
PAGE = 4096
ITEM = {"bf16": 2, "f32": 4}
# Sides that are one and the same inside a layer: what q puts out o takes in.
INNER = {
    ("self_attn.q_proj", "B"): "attention",
    ("self_attn.o_proj", "A"): "attention",
    ("mlp.gate_proj", "B"): "intermediate",
    ("mlp.up_proj", "B"): "intermediate",
    ("mlp.down_proj", "A"): "intermediate",
}


class LoaderRefused(Exception):
    """The adapter is refused; nothing was written unless the text says so.

    :param code: stable, for programs.
    :param text: one line naming the tensor or field.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = " ".join(text.split())


class Factor(NamedTuple):
    """One tensor of the adapter, its values not read yet.

    :param module: path of the module in the model the adapter was trained on.
    """

    name: str
    module: str
    place: Place
    dtype: str
    shape: Tuple[int, ...]

    @property
    def width(self) -> int:
        """What a row of its slot holds: `in` of A, `out` of B."""
        return self.shape[1 if self.place.factor == "A" else 0]

    def __str__(self) -> str:
        return "tensor %.200r %s" % (self.name, list(self.shape))


class Pair(NamedTuple):
    """Both factors of a module: A `[rank, in]`, B `[out, rank]`."""

    a: Factor
    b: Factor

    @property
    def module(self) -> str:
        """Path of the module in the model the adapter was trained on."""
        return self.a.module

    @property
    def rank(self) -> int:
        """The rank by the shape of A."""
        return self.a.shape[0]


def pairs_of(config: Config, tensors: Tensors) -> List[Pair]:
    """The factors of a file, paired by module.

    :raises LoaderRefused: a tensor that is no factor of a text layer's linear, one
        without its partner, one that the configuration leaves out, or none at all.
    """
    found: Dict[Tuple[int, str], Dict[str, Factor]] = {}
    for name in tensors.names():
        parsed = TensorName.parse(name)
        if parsed is None or parsed.place.layer < 0:
            raise LoaderRefused(
                "unknown-tensor",
                "tensor %.200r is no factor of a linear in a text layer" % name,
            )
        place = parsed.place
        if not config.targets(parsed.module, place.layer):
            raise LoaderRefused(
                "not-targeted",
                "tensor %.200r is of a module that the config leaves out" % name,
            )
        both = found.setdefault((place.layer, place.path), {})
        factor = Factor(name, parsed.module, place, *tensors[name][:2])
        if place.factor in both:
            raise LoaderRefused(
                "unpaired",
                "%s and %s have one place" % (both[place.factor], factor),
            )
        both[place.factor] = factor
    if not found:
        raise LoaderRefused("empty", "the file holds no tensors")
    return [_pair(both) for both in found.values()]


def _pair(both: Mapping[str, Factor]) -> Pair:
    if len(both) != 2:
        (alone,) = both.values()
        other = "B" if alone.place.factor == "A" else "A"
        raise LoaderRefused("unpaired", "%s has no lora_%s" % (alone, other))
    if both["A"].module != both["B"].module:
        raise LoaderRefused(
            "unpaired",
            "%s and %s name their module differently" % (both["A"], both["B"]),
        )
    return Pair(both["A"], both["B"])


def check_pair(pair: Pair, config: Config) -> None:
    """Refuse factors that do not fit each other or the configuration."""
    for factor in pair:
        if factor.dtype not in FLOATS:
            raise LoaderRefused("dtype", "%s is %s" % (factor, factor.dtype))
        if len(factor.shape) != 2 or 0 in factor.shape:
            raise LoaderRefused("shape", "%s is no matrix" % (factor,))
    expected = config.rank_of(pair.module)
    for factor, rank in ((pair.a, pair.a.shape[0]), (pair.b, pair.b.shape[1])):
        if rank != expected:
            raise LoaderRefused(
                "rank-mismatch",
                "%s has rank %d, the config says %d" % (factor, rank, expected),
            )


def check_layers(pairs: List[Pair]) -> None:
    """Refuse a layer whose linears disagree on a width between two of them.

    The nets do not tell these widths, and a slot's size is rounded.
    """
    first: Dict[Tuple[int, str], Factor] = {}
    for factor in (f for pair in pairs for f in pair):
        side = INNER.get((factor.place.path, factor.place.factor))
        if side is None:
            continue
        other = first.setdefault((factor.place.layer, side), factor)
        if factor.width != other.width:
            raise LoaderRefused("shape", "%s does not fit %s" % (factor, other))


def check_fit(factor: Factor, rank: int, slot: Mapping[str, Any]) -> None:
    """Refuse a factor that does not fit the slot's rank, width or size."""
    reserved = slot["reserved_rank"]
    if rank > reserved:
        raise LoaderRefused(
            "rank-too-large",
            "%s has rank %d, reserved are %d" % (factor, rank, reserved),
        )
    if slot["dtype"] not in ITEM:
        raise LoaderRefused("slot", "slot %r is %s" % (slot["name"], slot["dtype"]))
    exact = reserved * factor.width * ITEM[slot["dtype"]]
    rounded = -(-exact // PAGE) * PAGE
    if slot["size"] not in (exact, rounded) or slot["width"] not in (0, factor.width):
        known = " and width %d" % slot["width"] if slot["width"] else ""
        raise LoaderRefused(
            "shape",
            "%s does not fit its slot of %d rows, %d bytes%s"
            % (factor, reserved, slot["size"], known),
        )

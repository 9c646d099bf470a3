"""A compiled model on the device: its nets, its memory, and what a launch computes."""

from __future__ import annotations

from typing import Callable
from typing import Dict
from typing import List
from typing import Optional
from typing import Sequence
from typing import Tuple

import numpy as np

from ..decoder import LINEARS
from ..decoder import Block
from ..decoder import Branch
from ..decoder import Head
from ..decoder import Rope
from ..precision import Bf16
from ..precision import Float32
from ..precision import Precision
from ..precision import bf16_bits
from ..precision import bf16_values
from .device import Device
from .device import Where
from .memory import Pair
from .memory import Piece
from .memory import Space
from .modelfile import STORED
from .modelfile import ModelFile


__all__ = ["Model", "NetError"]

PRECISIONS: Dict[str, Precision] = {"bf16": Bf16(), "f32": Float32()}
# Where a model's memory begins; any address that cannot be taken for a size.
START = 0x1_0000_0000

Shape = Tuple[str, str, Tuple[int, ...]]
"""Name, dtype and shape of an input or output."""

Nets = Dict[str, Tuple[Tuple[Shape, ...], Tuple[Shape, ...]]]
"""Inputs and outputs by the name of the net."""


class NetError(Exception):
    """A launch that cannot be: says why in one line."""


class Model:
    """A model in device memory, its slots zero.

    :param device: makes the device with its seams.
    """

    def __init__(self, file: ModelFile, device: Callable[[Precision], Device]) -> None:
        self.file = file
        self._precision = PRECISIONS[file.quantize]
        self.device = device(self._precision)
        self.space = Space(START)
        self.coefficients: Dict[str, Dict[str, Piece]] = {}
        self._pairs: Dict[Tuple[int, str], Pair] = {}
        self._place()
        self.nets = self._shapes()
        self._rope = Rope(file.architecture, self._precision)
        self._built: Dict[str, Tuple[int, object]] = {}

    @property
    def used(self) -> int:
        """Bytes of device memory."""
        return self.space.used

    def _place(self) -> None:
        """Weights and slots into memory; both nets of a layer share theirs."""
        file, groups = self.file, self.coefficients
        for name, stored in file.tensors.items():
            piece = self.space.place(name, stored)
            for net in self._users(name):
                groups.setdefault(net, {})[name] = piece
        if not file.reserved_rank:
            return
        dtype = STORED[file.quantize]
        for layer in range(file.architecture.layers):
            for module in LINEARS:
                pieces: List[Piece] = []
                widths = file.architecture.width(module)
                for factor, width in zip("AB", widths):
                    name = "lora.%d.0.%s.layers.%d.%s.lora_%s.weight" % (
                        file.reserved_rank,
                        file.prefix,
                        layer,
                        module,
                        factor,
                    )
                    empty = np.zeros((file.reserved_rank, width), dtype)
                    pieces.append(self.space.place(name, empty))
                    for net in ("block_%d", "block_cache_%d"):
                        groups[net % layer][name] = pieces[-1]
                self._pairs[layer, module] = Pair(*pieces)

    def _users(self, name: str) -> Tuple[str, ...]:
        if name == "%s.embed_tokens.weight" % self.file.prefix:
            return ("embedding", "embedding_cache")
        layers = "%s.layers." % self.file.prefix
        if name.startswith(layers):
            layer = int(name[len(layers) :].split(".", maxsplit=1)[0])
            return ("block_%d" % layer, "block_cache_%d" % layer)
        return ("lm_head",)

    def _shapes(self) -> Nets:
        file, a = self.file, self.file.architecture
        real, s, context = file.quantize, file.max_input, file.max_context

        def states(n: int) -> Shape:
            return ("states", real, (1, n, a.hidden))

        def cache(name: str, n: int) -> Shape:
            return (name, real, (1, n, a.kv_heads, a.head_dim))

        nets: Nets = {
            "embedding": ((("input_ids", "i32", (1, s)),), (states(s),)),
            "embedding_cache": ((("input_ids", "i32", (1, 1)),), (states(1),)),
        }
        for i in range(a.layers):
            nets["block_%d" % i] = (
                (
                    states(s),
                    ("position_ids", "i32", (3, s)),
                    ("attention_mask", real, (1, 1, s, s)),
                ),
                (states(s), cache("k", s), cache("v", s)),
            )
            nets["block_cache_%d" % i] = (
                (
                    states(1),
                    ("position_ids", "i32", (3, 1)),
                    ("attention_mask", real, (1, 1, 1, context + 1)),
                    cache("history_k", context),
                    cache("history_v", context),
                ),
                (states(1), cache("k", 1), cache("v", 1)),
            )
        nets["lm_head"] = (
            (("states", real, (1, a.hidden)),),
            (("logits", "f32", (1, a.vocab)),),
        )
        nets["greedy_head"] = (
            (("logits", "f32", (1, a.vocab)),),
            (("token", "i32", (1, 1)),),
        )
        return nets

    def launch(self, net: str, inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
        """Run a net.

        :raises NetError: no such net, or inputs that do not fit it.
        """
        if net not in self.nets:
            raise NetError("no such net")
        shapes, results = self.nets[net]
        if len(inputs) != len(shapes):
            raise NetError("%d inputs, %d given" % (len(shapes), len(inputs)))
        given = [_given(shape, array) for shape, array in zip(shapes, inputs)]
        self.device.launch(net)
        with np.errstate(all="ignore"):
            outputs = self._run(net, given)
        return [np.reshape(o, shape) for o, (_, _, shape) in zip(outputs, results)]

    def _run(self, net: str, given: List[np.ndarray]) -> Sequence[np.ndarray]:
        if net.startswith("embedding"):
            return (self._embedding(given[0][0]),)
        if net == "greedy_head":
            return (np.argmax(given[0], -1).astype(np.int32),)
        if net == "lm_head":
            head = self._head()
            return (self.device.logits(head(given[0])),)
        graph = "decode" if net.startswith("block_cache_") else "prefill"
        return self._layer(int(net.rsplit("_", maxsplit=1)[-1]), graph, given)

    def _embedding(self, ids: np.ndarray) -> np.ndarray:
        (piece,) = self.coefficients["embedding"].values()
        if ids.min() < 0 or ids.max() >= len(piece.stored):
            raise NetError("a token id is outside the vocabulary")
        rows = piece.stored[ids]
        return rows if piece.dtype == "f32" else bf16_values(rows)

    def _layer(
        self, layer: int, graph: str, given: List[np.ndarray]
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        block = self._block(layer)
        states, positions, mask = given[0][0], given[1], given[2][0, 0]
        history = (given[3][0], given[4][0]) if graph == "decode" else None
        rotation = self._rope(positions)
        skipped: List[str] = []

        def thrifty(x: np.ndarray, module: str) -> Optional[np.ndarray]:
            a, b, zero = pairs[layer, module].values()
            if zero:
                skipped.append(module)
                return None
            return branch(x, a, b, Where(graph, layer, module))

        def full(x: np.ndarray, module: str) -> Optional[np.ndarray]:
            a, b, _ = pairs[layer, module].values()
            return branch(x, a, b, Where(graph, layer, module))

        pairs, branch = self._pairs, self.device.branch
        compute: Branch = thrifty if pairs else _no_branch
        outputs = block(states, rotation, mask, compute, history)
        # 0 * x is 0 for finite x only. An infinite input of a linear makes all
        # its outputs non-finite, hence the states: then compute what the graph
        # does, zeros and all.
        if skipped and not np.isfinite(outputs[0]).all():
            outputs = block(states, rotation, mask, full, history)
        return outputs

    def _block(self, layer: int) -> Block:
        net = "block_%d" % layer
        start = len("%s.layers.%d." % (self.file.prefix, layer))
        made = self._current(net)
        if not isinstance(made, Block):
            weights = self._weights(net)
            short = {name[start:]: value for name, value in weights.items()}
            made = Block(self.file.architecture, short, self._precision)
            self._keep(net, made)
        return made

    def _head(self) -> Head:
        made = self._current("lm_head")
        if not isinstance(made, Head):
            weights = self._weights("lm_head")
            made = Head(
                self.file.architecture,
                weights["%s.norm.weight" % self.file.prefix],
                weights["lm_head.weight"],
                self._precision,
            )
            self._keep("lm_head", made)
        return made

    def _weights(self, net: str) -> Dict[str, np.ndarray]:
        pieces = self.coefficients[net].items()
        return self.device.base(
            {n: p.values() for n, p in pieces if not n.startswith("lora.")}
        )

    def _current(self, net: str) -> object:
        """What was built of a net's weights, None when they changed since."""
        version, made = self._built.get(net, (-1, None))
        return made if version == self._version(net) else None

    def _keep(self, net: str, made: object) -> None:
        self._built[net] = (self._version(net), made)

    def _version(self, net: str) -> int:
        return sum(
            p.version
            for n, p in self.coefficients[net].items()
            if not n.startswith("lora.")
        )


def _no_branch(x: np.ndarray, module: str) -> Optional[np.ndarray]:
    """A linear compiled without a branch."""
    return None


def _given(shape: Shape, array: np.ndarray) -> np.ndarray:
    """An input in the net's dtype and shape; the caller's array is not touched."""
    name, dtype, extents = shape
    array = np.asarray(array)
    if array.shape != extents:
        raise NetError("%s is %s, not %s" % (name, list(array.shape), list(extents)))
    if dtype == "i32":
        if array.dtype.kind not in "iu":
            raise NetError("%s is not integer" % name)
        return np.ascontiguousarray(array, np.int32)
    if array.dtype.kind != "f":
        raise NetError("%s is not floating" % name)
    array = np.ascontiguousarray(array, np.float32)
    # What the graph itself put out is bf16 already.
    if (
        dtype == "bf16"
        and np.bitwise_or.reduce(array.view(np.uint32), axis=None) & 0xFFFF
    ):
        return bf16_values(bf16_bits(array))
    return array

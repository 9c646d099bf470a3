"""The simulated RK1828's compiled model: a graph, its weights, and the embedding.

`model.rknn` is a header alone; `model.weight` names the sha256 of the graph it
belongs to. `embed.bin` is the embedding as raw fp16 rows, read by the host as the
vendor's runtime does (embed callback).
"""

from __future__ import annotations

import hashlib
from typing import Any
from typing import Dict
from typing import Tuple

import numpy as np

from ..headed import FileError
from ..headed import architecture_of
from ..headed import array_of
from ..headed import header_of
from ..headed import mapped
from .quantise import GROUP
from .quantise import Int4


__all__ = [
    "CHUNK",
    "FORMAT",
    "GRAPH",
    "KV_GROUP",
    "KV_RESIDUAL",
    "WEIGHT",
    "ModelFile",
    "ModelFileError",
]

GRAPH = b"SIMRKNN\0"
WEIGHT = b"SIMRKWT\0"
FORMAT = 1
# Tokens of a prefill graph, as the vendor's example exports it (`seq=[1,128]`).
CHUNK = 128
# Cached keys and values share a scale in groups of this many; this many newest rows
# stay fp16. Fields of the vendor's `rknn3_llm_config`, the numbers are ours.
KV_GROUP = GROUP
KV_RESIDUAL = 32


class ModelFileError(Exception):
    """The files are no whole model of this format; says why in one line."""


class ModelFile:
    """A compiled model, its weights as the device computes with them.

    `tensors` are float32 by the checkpoint's names, `[out, in]`: the layers' linears
    after int4, all others rounded to fp16. The embedding is not among them.

    :param rknn_path: the graph.
    :param weight_path: its weights.
    :raises ModelFileError: missing, cut, not of this format, or not of one another.
    """

    def __init__(self, rknn_path: str, weight_path: str) -> None:
        path = rknn_path
        try:
            graph = mapped(rknn_path)
            header = header_of(graph, GRAPH, FORMAT)
            self.digest = hashlib.sha256(graph.tobytes()).hexdigest()
            self.architecture = architecture_of(header["architecture"])
            self.prefix = str(header["prefix"])
            self.context_lengths: Tuple[int, ...] = tuple(
                int(n) for n in header["context_lengths"]
            )
            self.chunk = int(header["chunk"])
            self.kv_group = int(header["kv_group"])
            self.kv_residual = int(header["kv_residual"])
            self.base_digest = str(header["digests"]["weights"])
            self.converter = str(header["converter"])
            path = weight_path
            raw = mapped(weight_path)
            weights = header_of(raw, WEIGHT, FORMAT)
            if weights["graph"] != self.digest:
                raise FileError("these weights belong to another model.rknn")
            self.tensors: Dict[str, np.ndarray] = {
                str(t["name"]): _values(raw, t) for t in weights["tensors"]
            }
        except FileError as error:
            raise ModelFileError("%s: %s" % (path, error)) from None
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError("%s: damaged header: %r" % (path, error)) from None

    def embedding(self, path: str) -> np.ndarray:
        """The rows of an embed.bin, fp16 `[vocab, hidden]`, mapped and read-only.

        :raises ModelFileError: missing, or not of this model's size.
        """
        a = self.architecture
        try:
            raw = mapped(path)
        except FileError as error:
            raise ModelFileError("%s: %s" % (path, error)) from None
        size = a.vocab * a.hidden * 2
        if raw.size != size:
            text = "%s: %d bytes, the model needs %d" % (path, raw.size, size)
            raise ModelFileError(text)
        return raw.view("<f2").reshape(a.vocab, a.hidden)


def _values(raw: np.ndarray, tensor: Dict[str, Any]) -> np.ndarray:
    """A tensor's effective values, float32."""
    if "values" in tensor:
        return array_of(raw, tensor["values"]).astype(np.float32)
    codes, scales = array_of(raw, tensor["codes"]), array_of(raw, tensor["scales"])
    return Int4(codes, scales).values

"""The compiled model: what its prefill and decode graphs compute."""

from __future__ import annotations

from typing import Dict
from typing import Sequence

import numpy as np

from ..decoder import Block
from ..decoder import Head
from ..decoder import Rope
from .adapters import Enabled
from .cache import Cache
from .device import Device
from .modelfile import ModelFile


__all__ = ["Model"]


class Model:
    """A model in device memory; its embedding is the host's."""

    def __init__(self, file: ModelFile, device: Device) -> None:
        self.file = file
        self._device = device
        a, precision = file.architecture, device.precision
        weights = device.base(dict(file.tensors))
        self._rope = Rope(a, precision)
        masked = np.full((file.chunk, file.chunk), -np.inf, np.float32)
        self._causal = np.triu(masked, 1)
        self._blocks = [
            Block(a, _below(weights, "%s.layers.%d." % (file.prefix, i)), precision)
            for i in range(a.layers)
        ]
        norm = weights["%s.norm.weight" % file.prefix]
        self._head = Head(a, norm, weights["lm_head.weight"], precision)

    def prefill(
        self,
        tokens: Sequence[int],
        states: np.ndarray,
        cache: Cache,
        enabled: Enabled,
    ) -> np.ndarray:
        """Take a prompt's tokens into the cache, chunk by chunk.

        :param states: their embeddings, float32 `[n, hidden]`.
        :returns: logits of the last one, float32 `[1, vocab]`.
        """
        for start in range(0, len(tokens), self.file.chunk):
            piece = slice(start, start + self.file.chunk)
            last = self._run("prefill", tokens[piece], states[piece], cache, enabled)
        return self._logits(last)

    def decode(
        self, token: int, states: np.ndarray, cache: Cache, enabled: Enabled
    ) -> np.ndarray:
        """Take one token into the cache.

        :param states: its embedding, float32 `[1, hidden]`.
        :returns: logits, float32 `[1, vocab]`.
        """
        return self._logits(self._run("decode", [token], states, cache, enabled))

    def _run(
        self,
        graph: str,
        tokens: Sequence[int],
        states: np.ndarray,
        cache: Cache,
        enabled: Enabled,
    ) -> np.ndarray:
        """One launch of a graph; the last token's states `[1, hidden]`."""
        n, held = len(tokens), len(cache)
        # Text has its position in all three rows of M-RoPE.
        positions = np.arange(held, held + n, dtype=np.int32)
        rotation = self._rope(np.broadcast_to(positions, (3, n)))
        mask = np.zeros((n, held + n), np.float32)
        mask[:, held:] = self._causal[:n, :n]
        # Non-finite values are the device's to compute with.
        with np.errstate(all="ignore"):
            for layer, block in enumerate(self._blocks):
                branch = enabled.branch(graph, layer, held)
                states, keys, values = block(
                    states, rotation, mask, branch, cache.history(layer)
                )
                cache.put(layer, keys, values)
            cache.grow(tokens)
        return states[-1:]

    def _logits(self, states: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return self._device.logits(self._head(states))


def _below(weights: Dict[str, np.ndarray], place: str) -> Dict[str, np.ndarray]:
    """The weights of a layer by their names below it."""
    return {n[len(place) :]: w for n, w in weights.items() if n.startswith(place)}

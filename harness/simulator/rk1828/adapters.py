"""The adapters of a context: those its bundle offers, are loaded, take effect."""

from __future__ import annotations

import hashlib
from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import NamedTuple
from typing import Optional
from typing import Tuple

import numpy as np

from ..decoder import Architecture
from ..decoder import Branch
from .bundlefile import BundledAdapter
from .bundlefile import BundleFile
from .bundlefile import BundleFileError
from .constants import MAX_LORA_NUM
from .device import Device
from .device import Nodes
from .device import Refused
from .device import Where
from .modelfile import ModelFile


__all__ = ["Adapters", "Enabled"]


class Adapters:
    """Names, weights and device memory of a context's adapters.

    :param file: the model they are for.
    :param nodes: where they lie once they are loaded.
    """

    def __init__(self, file: ModelFile, nodes: Nodes, device: Device) -> None:
        self._file = file
        self._nodes = nodes
        self._device = device
        # The bundle of each offered adapter; from memory it is the caller's buffer.
        self._offered: Dict[str, Any] = {}
        self._loaded: Dict[str, BundledAdapter] = {}
        self._memory: Dict[str, int] = {}

    @property
    def names(self) -> List[str]:
        """Adapters that can be loaded, in the bundle's order."""
        return list(self._offered)

    @property
    def loaded(self) -> Mapping[str, BundledAdapter]:
        """What is in device memory, by name."""
        return self._loaded

    def offer(self, data: Any) -> List[str]:
        """Take in a bundle.

        :param data: the whole file; a buffer is not copied and read again by `load`,
            as the vendor's library does not own it.
        :returns: adapters whose place it takes.
        :raises Refused: damaged, for another base, too many adapters, or the second
            one where there can be only one.
        """
        policy = self._device.policy
        if self._offered and policy.second_init == "refuse":
            raise Refused("adapters are initialised already")
        data = self._device.bundle(data)
        bundle = _bundle(data)
        if (
            policy.bundle_check == "base"
            and bundle.base_digest != self._file.base_digest
        ):
            raise Refused("the bundle was made for another base")
        kept = self._offered if policy.second_init == "merge" else {}
        offered = {**kept, **dict.fromkeys(bundle.adapters, data)}
        if len(offered) > MAX_LORA_NUM:
            raise Refused("more than %d adapters" % MAX_LORA_NUM)
        before, self._offered = self._offered, offered
        return [n for n in self._loaded if offered.get(n) is not before.get(n)]

    def load(self, name: str) -> None:
        """Bring an offered adapter into device memory.

        :raises Refused: unknown, damaged since, unfit for the model, out of memory,
            or loaded already where that is refused.
        """
        if name not in self._offered:
            raise Refused("no adapter %r" % name)
        if name in self._loaded:
            if self._device.policy.double_load == "refuse":
                raise Refused("%r is loaded already" % name)
            return
        bundle = _bundle(self._offered[name])
        if name not in bundle.adapters:
            raise Refused("the bundle has no adapter %r any more" % name)
        adapter = self._device.load(bundle.adapters[name])
        _check_fit(adapter, self._file.architecture)
        factors = adapter.modules.values()
        size = sum(f.a.size + f.b.size for f in factors) * 2  # fp16
        self._memory[name] = self._nodes.take(size)
        self._loaded[name] = adapter

    def free(self, name: str) -> None:
        """Take a loaded adapter out of device memory."""
        del self._loaded[name]
        self._nodes.give(self._memory.pop(name))

    def origin(self, scales: Mapping[str, float]) -> Tuple[Tuple[str, float, str], ...]:
        """What takes effect at these scales: name, scale, digest of the factors."""
        return tuple(
            (name, scale, _digest(self._loaded[name]))
            for name, scale in scales.items()
            if name in self._loaded and scale != 0
        )


class _Part(NamedTuple):
    adapter: str
    a: np.ndarray
    b: np.ndarray
    scale: float


class Enabled:
    """Loaded adapters with their scales, gathered by the linears they change.

    :param session: index of the session that runs.
    :param scales: by name, in order of enabling; what is not loaded has no effect.
    """

    def __init__(
        self,
        device: Device,
        session: int,
        loaded: Mapping[str, BundledAdapter],
        scales: Mapping[str, float],
    ) -> None:
        self._device = device
        self._session = session
        self._parts: Dict[Tuple[int, str], List[_Part]] = {}
        for name, scale in scales.items():
            if name not in loaded:
                continue
            for place, factors in loaded[name].modules.items():
                part = _Part(name, factors.a, factors.b, factors.scale * scale)
                self._parts.setdefault(place, []).append(part)

    def branch(self, graph: str, layer: int, position: int) -> Branch:
        """The branches of a layer in a launch, those of one linear added up.

        :param position: of the launch's first token.
        """
        parts, device, session = self._parts, self._device, self._session

        def summed(x: np.ndarray, module: str) -> Optional[np.ndarray]:
            total: Optional[np.ndarray] = None
            for adapter, a, b, scale in parts.get((layer, module), ()):
                where = Where(graph, layer, module, session, position, adapter)
                y = device.branch(x, a, b, scale, where)
                if y is not None:
                    total = y if total is None else device.precision.round(total + y)
            return total

        return summed


def _bundle(data: Any) -> BundleFile:
    try:
        return BundleFile(data)
    except BundleFileError as error:
        raise Refused(str(error)) from None


def _check_fit(adapter: BundledAdapter, architecture: Architecture) -> None:
    for (layer, module), factors in adapter.modules.items():
        width, out = architecture.width(module)
        fits = factors.a.shape[1] == width and factors.b.shape[1] == out
        if not (0 <= layer < architecture.layers and fits):
            raise Refused("%r does not fit the model" % adapter.name)


def _digest(adapter: BundledAdapter) -> str:
    state = hashlib.sha256()
    for (layer, module), factors in sorted(adapter.modules.items()):
        shape = factors.a.shape + factors.b.shape
        state.update(repr((layer, module, shape, factors.scale)).encode())
        state.update(factors.a.tobytes())
        state.update(factors.b.tobytes())
    return state.hexdigest()

"""The adapters that take effect in one run."""

from __future__ import annotations

from typing import Dict
from typing import List
from typing import Mapping
from typing import NamedTuple
from typing import Optional
from typing import Tuple

import numpy as np

from ..decoder import Branch
from .bundlefile import BundledAdapter
from .device import Device
from .device import Where


__all__ = ["Enabled"]


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

"""A runtime on the card: one model, its adapters, its sessions."""

from __future__ import annotations

import math
from typing import Any
from typing import Dict
from typing import Optional

import numpy as np

from .adapters import Adapters
from .adapters import Enabled
from .device import Device
from .device import Nodes
from .device import Refused
from .model import Model
from .modelfile import ModelFile
from .records import RKLLMCallback
from .records import RKNN3LLMParam
from .session import Session


__all__ = ["Context"]


class Context:
    """Sessions share the model's and the adapters' weights; caches are their own.

    :param size: bytes of the model's weights in device memory.
    :param table: embeddings on the host, fp16 `[vocab, hidden]`; None where sessions
        bring a callback for them.
    :raises Refused: the weights do not fit the memory.
    """

    def __init__(
        self,
        file: ModelFile,
        size: int,
        table: Optional[np.ndarray],
        device: Device,
    ) -> None:
        self.device = device
        self.nodes = Nodes()
        self.nodes.take(size)
        self.model = Model(file, device)
        self.table = table
        self.adapters = Adapters(file, self.nodes, device)
        self._sessions: Dict[int, Session] = {}
        # What is enabled at context level: scale by name.
        self.configured: Dict[str, float] = {}

    # Sessions

    def open(
        self, index: int, param: RKNN3LLMParam, callback: RKLLMCallback
    ) -> Session:
        """A new session.

        :raises Refused: it is open, the card has as many as it takes, or the
            parameters do not fit.
        """
        if index in self._sessions:
            raise Refused("session %d is open" % index)
        if len(self._sessions) >= self.device.sessions:
            raise Refused("the card takes %d sessions" % self.device.sessions)
        self._sessions[index] = Session(self, index, param, callback)
        return self._sessions[index]

    def session(self, index: int) -> Session:
        """An open session.

        :raises Refused: there is none of this index.
        """
        if index not in self._sessions:
            raise Refused("no session %r" % index)
        return self._sessions[index]

    def close(self, index: int) -> None:
        """End a session.

        :raises Refused: there is none of this index.
        """
        self.session(index).close()
        del self._sessions[index]

    def enabled(self, session: Session) -> Enabled:
        """What takes effect in a run of a session that begins now."""
        scales = self.device.enabled(session, self.configured)
        return Enabled(self.device, session.index, self.adapters.loaded, scales)

    # Adapters; without an index a switch is the whole context's

    def init_adapters(self, data: Any) -> None:
        """Take in a bundle; loaded adapters whose place it takes are unloaded.

        :raises Refused: see `Adapters.offer`.
        """
        for name in self.adapters.offer(data):
            self._unload(name)

    def unload(self, name: str) -> None:
        """Unload an adapter for all; where it is enabled it is disabled first.

        :raises Refused: it is not loaded, where that is refused.
        """
        if name in self.adapters.loaded:
            self._unload(name)
        elif self.device.policy.unload_twice == "refuse":
            raise Refused("%r is not loaded" % name)

    def enable(self, name: str, scale: float, index: Optional[int]) -> None:
        """Enable a loaded adapter, or give an enabled one another scale.

        :raises Refused: not loaded, or a scale or company that is refused.
        """
        configured, policy = self._configured(index), self.device.policy
        if name not in self.adapters.loaded:
            raise Refused("%r is not loaded" % name)
        if policy.odd_scale == "refuse" and not math.isfinite(scale):
            raise Refused("scale %r" % scale)
        others = configured.keys() - {name}
        if others and policy.together == "refuse":
            raise Refused("another adapter is enabled")
        if policy.together == "replace":
            for other in others:
                del configured[other]
        configured[name] = self.device.scale(scale, configured.get(name))
        self._switched(index)

    def disable(self, name: str, index: Optional[int]) -> None:
        """Disable an adapter.

        :raises Refused: it is not enabled there, where that is refused.
        """
        configured = self._configured(index)
        if name in configured:
            self._disable(name, index)
        elif self.device.policy.idle_disable == "refuse":
            raise Refused("%r is not enabled" % name)

    def _unload(self, name: str) -> None:
        for index in [None, *self._sessions]:
            if name in self._configured(index):
                self._disable(name, index)
        self.device.unload(self.adapters, name)

    def _disable(self, name: str, index: Optional[int]) -> None:
        self.device.disable(self._configured(index), name)
        self._switched(index)

    def _configured(self, index: Optional[int]) -> Dict[str, float]:
        return self.configured if index is None else self.session(index).configured

    def _switched(self, index: Optional[int]) -> None:
        """Tell the sessions in which another adapter may take effect now."""
        if index is not None:
            self.device.switched(self.session(index))
            return
        for session in self._sessions.values():
            if not session.configured:
                self.device.switched(session)

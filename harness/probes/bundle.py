"""The bundle of adapters of a running RK1828: loaded, enabled, given back."""

from __future__ import annotations

import os
from typing import Any
from typing import Dict
from typing import List
from typing import Mapping
from typing import Optional

from .lite import Lite
from .lite import by_name
from .lite import name_of
from .server import Refused


__all__ = ["Bundle"]

# What is handed over from memory has to fit the host's: an RK3588 board has 4 GB
# and more, a bundle of 32 adapters of rank 64 for 2B parameters has 1.6 GB in int8.
BYTES = 2 << 30

Scope = Optional[int]
"""A session's index, None for the whole context."""


class Bundle:
    """The adapters of one start of the software.

    The runtime takes descriptors only as it lists them itself, and has no way to
    ask what is loaded or, of the context, what is enabled; so that is kept here.
    """

    def __init__(self, lite: Lite) -> None:
        self._lite = lite
        self._path = ""
        # The runtime goes on reading what it was handed, and cannot let go of it.
        self._handed: List[bytes] = []
        self._loaded: Dict[str, Any] = {}
        self._enabled: Dict[Scope, List[str]] = {}

    def load(self, name: str, path: str) -> None:
        """Load an adapter; the first one of a bundle initialises it.

        Where none is loaded another bundle may come: what the runtime says to a
        second initialisation is its own answer.

        :raises Refused: another bundle than that of the loaded adapters, no such
            adapter in it, or the runtime says no.
        """
        path = os.path.realpath(path)
        if not os.path.exists(path):
            raise Refused("no-file", "there is no %s" % path)
        if path != self._path:
            if self._loaded:
                raise Refused(
                    "second-bundle",
                    "%s: adapters of %s are loaded, and there is one bundle at a time"
                    % (path, self._path),
                )
            self._lite.do("init_lora", lora_weight_path=path)
            self._path = path
        descriptor = self._listed(name)
        self._lite.do("load_lora", descriptor)
        self._loaded[name] = descriptor

    def _listed(self, name: str) -> Any:
        known = by_name(self._lite.adapters(), "query_lora")
        if name not in known:
            text = "%s holds no adapter %.80r" % (self._path, name)
            raise Refused("unknown-adapter", text)
        return known[name]

    def renew(self, path: str) -> None:
        """Initialise anew from a file, handed over as bytes.

        :raises Refused: the runtime says no; what was loaded is still known then.
        """
        path = os.path.realpath(path)
        data = _content(path)
        self._lite.do("init_lora", weight_data=data, weight_size=len(data))
        self._handed.append(data)
        self._path = path
        self._loaded.clear()
        self._enabled.clear()
        self._lite.adapters()

    def unload(self, name: str) -> None:
        """Give an adapter's memory back, in all sessions."""
        self._lite.do("unload_lora", self._known(name))
        del self._loaded[name]
        for enabled in self._enabled.values():
            if name in enabled:
                enabled.remove(name)

    def activate(self, scope: Scope, scales: Mapping[str, float]) -> None:
        """Enable exactly these, in this order, each at its scale.

        What is enabled already is enabled again without a disable in between: the
        vendor's own test changes a scale so.

        :raises Refused: one is not loaded (nothing was done), or the runtime says no
            (what came before it was done).
        """
        wanted = {name: self._known(name) for name in scales}
        enabled = self._enabled.setdefault(scope, [])
        for name in list(enabled):
            if name not in wanted:
                self._disable(scope, name)
                enabled.remove(name)
        for name, descriptor in wanted.items():
            descriptor.scale = scales[name]
            self._lite.do("enable_lora", descriptor, session_index=scope)
            if name not in enabled:
                enabled.append(name)

    def _disable(self, scope: Scope, name: str) -> None:
        try:
            self._lite.do("disable_lora", self._known(name), session_index=scope)
        except Refused:
            # A runtime that enables one at a time has disabled this one itself.
            if scope is None or name in map(name_of, self._lite.enabled(scope)):
                raise

    def leave(self, session: int) -> None:
        """Forget a session that was closed."""
        self._enabled.pop(session, None)

    def _known(self, name: str) -> Any:
        if name not in self._loaded:
            raise Refused("unknown-adapter", "no adapter %.80r is loaded" % name)
        return self._loaded[name]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES + 1)
    except OSError as error:
        raise Refused("no-file", "%s: %s" % (path, error.strerror)) from error
    if len(data) > BYTES:
        raise Refused("too-large", "%s has more than %d bytes" % (path, BYTES))
    return data

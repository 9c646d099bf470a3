"""The package's calls for adapters."""

from __future__ import annotations

import os
from typing import Any
from typing import Optional
from typing import Tuple

from . import queries
from .calls import Guarded
from .calls import call
from .calls import content
from .device import Refused
from .records import RKNN3Lora


__all__ = ["LoraCalls"]

SUFFIX = ".lora_weight"


class LoraCalls(Guarded):
    """Bundles, adapters, and where they take effect."""

    @call()
    def init_lora(
        self,
        lora_weight_path: Optional[str] = None,
        weight_data: Any = None,
        weight_size: int = 0,
        session_index: int = 0,
    ) -> int:
        """Take in a bundle, for the whole context.

        :param lora_weight_path: the file, or a folder that holds just one.
        :param weight_data: its content, which the caller keeps: it is read again.
        """
        path = lora_weight_path
        if path is not None and os.path.isdir(path):
            found = [n for n in os.listdir(path) if n.endswith(SUFFIX)]
            if len(found) != 1:
                raise Refused("%s holds %d bundles" % (path, len(found)))
            path = os.path.join(path, found[0])
        self.context.init_adapters(content(path, weight_data, weight_size))
        self.device.say("adapters: %d" % len(self.context.adapters.names))
        return 0

    @call(failed=lambda code: (None, 0), alone=False)
    def query_lora(self) -> Tuple[Any, int]:
        """Adapters that the bundle offers: `RKNN3Lora[32]` and how many they are."""
        return queries.adapters(self.context), len(self.context.adapters.names)

    @call()
    def load_lora(self, lora: RKNN3Lora) -> int:
        """Bring an adapter onto the card."""
        self.context.adapters.load(lora.lora_name.decode())
        return 0

    @call()
    def enable_lora(self, lora: RKNN3Lora, session_index: Optional[int] = 0) -> int:
        """Enable a loaded adapter at its descriptor's scale.

        :param session_index: None for the whole context.
        """
        self.context.enable(lora.lora_name.decode(), lora.scale, session_index)
        return 0

    @call()
    def disable_lora(self, lora: RKNN3Lora, session_index: Optional[int] = 0) -> int:
        """Disable an adapter where it was enabled."""
        self.context.disable(lora.lora_name.decode(), session_index)
        return 0

    @call()
    def unload_lora(self, lora: RKNN3Lora) -> int:
        """Free an adapter for every session; it is disabled first."""
        self.context.unload(lora.lora_name.decode())
        return 0

"""What every simulated board shares: a root folder, and a device chosen by it."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any
from typing import Dict
from typing import Type
from typing import TypeVar

import numpy as np

from .precision import Precision


__all__ = ["FAULT_FILE", "ROOT", "Device", "chosen"]

# The board's root folder, set by whoever starts the board.
ROOT = "SIMULATED_BOARD_ROOT"
FAULT_FILE = "fault.json"


class Device:
    """The seams that a platform's sound device has in any case.

    :param precision: the arithmetic of the compiled model.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def base(self, weights: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """The base's weights as they take effect.

        :param weights: float32 by full name, fresh copies; `[out, in]` for linears.
        """
        return weights

    def logits(self, logits: np.ndarray) -> np.ndarray:
        """What the output layer hands out, float32 `[1, vocab]`."""
        return logits


D = TypeVar("D", bound=Device)


def chosen(sound: Type[D]) -> Type[D]:
    """The kind of device that this board's root asks for.

    :param sound: the platform's own; the default, and what any other derives from.
    """
    root = os.environ.get(ROOT)
    path = os.path.join(root, FAULT_FILE) if root else ""
    if not path or not os.path.exists(path):
        return sound
    with open(path, encoding="utf-8") as file:
        spec: str = json.load(file)["device"]
    module, _, name = spec.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, sound)):
        raise TypeError("%s is no device of this platform" % spec)
    return found

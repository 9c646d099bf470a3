"""The vendor's runtime as a Python module, on a simulated BM1688."""

from __future__ import annotations

import os
import platform
from typing import Any
from typing import Dict
from typing import List
from typing import NamedTuple
from typing import Sequence
from typing import Set
from typing import Tuple

import numpy as np

from .device import chosen
from .memory import Piece
from .memory import as_bytes
from .model import Model
from .model import NetError
from .modelfile import ModelFile
from .modelfile import ModelFileError


__all__ = ["BmrtError", "Memory", "Net", "Runtime", "Tensor"]

# Status codes of the vendor's library (bm_status_t).
FAILURE, PARAM, NOMEM, DATA, BUSY = 2, 4, 5, 6, 7
# Room for a 2B model in bf16 with its slots; no verdict depends on it.
TOTAL = 5 << 30


class BmrtError(Exception):
    """A call of the runtime failed.

    :param code: the vendor's status.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__("%s (status %d)" % (text, code))
        self.code = code
        self.text = text


class Memory(NamedTuple):
    """A piece of device memory; size in bytes, whole pages."""

    address: int
    size: int


class Tensor(NamedTuple):
    """An input or output of a net; dtype `f32`, `bf16` or `i32`."""

    name: str
    dtype: str
    shape: Tuple[int, ...]


class Net(NamedTuple):
    """A compiled net."""

    name: str
    inputs: Tuple[Tensor, ...]
    outputs: Tuple[Tensor, ...]


class _Shared(NamedTuple):
    model: Model
    users: Set[int]


# Runtimes of one process that load the same file share its device memory, slots
# included; the last one that is closed takes it along.
_loaded: Dict[Tuple[int, int, int, int, int], _Shared] = {}


class Runtime:
    """One runtime on one device; it loads one model.

    :raises BmrtError: there is no such device.
    """

    def __init__(self, device_id: int = 0) -> None:
        if device_id != 0:
            raise BmrtError(FAILURE, "no device %d" % device_id)
        self._key: Tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
        self._models: List[Model] = []
        self.versions: Dict[str, str] = {
            "bmrt": "simulated 1.0",
            "bmlib": "simulated 1.0",
            "driver": "simulated 1.0",
            "chip": "bm1688",
            "numpy": np.__version__,
            "python": platform.python_version(),
        }

    @property
    def model(self) -> Dict[str, str]:
        """Facts on the loaded model; `quantize` is the dtype of slots and states."""
        file = self._model.file
        a = file.architecture
        return {
            "digest": file.digest,
            "converter": file.converter,
            "layers": str(a.layers),
            "hidden": str(a.hidden),
            "vocab": str(a.vocab),
            "heads": str(a.heads),
            "kv_heads": str(a.kv_heads),
            "head_dim": str(a.head_dim),
            "reserved_rank": str(file.reserved_rank),
            "quantize": file.quantize,
            "max_input": str(file.max_input),
            "max_context": str(file.max_context),
        }

    def load(self, path: str) -> None:
        """Load a compiled model; slots are zero unless another runtime holds it.

        :raises BmrtError: not a whole model, or one is loaded already.
        """
        if self._models:
            raise BmrtError(BUSY, "a model is loaded already")
        # The vendor's library prints on stdout whatever the caller does with it.
        print("[BMRT][simulated] load: opening %s" % path, flush=True)
        try:
            state = os.stat(path)
            key = (
                0,
                state.st_dev,
                state.st_ino,
                state.st_size,
                state.st_mtime_ns,
            )
            shared = _loaded.get(key)
            if shared is None:
                shared = _Shared(Model(ModelFile(path), chosen), set())
        except OSError as error:
            raise BmrtError(DATA, "%s: %s" % (path, error.strerror)) from None
        except ModelFileError as error:
            raise BmrtError(DATA, str(error)) from None
        if shared.model.used > TOTAL:
            raise BmrtError(NOMEM, "%s: needs %d bytes" % (path, shared.model.used))
        _loaded[key] = shared
        shared.users.add(id(self))
        self._key = key
        self._models.append(shared.model)
        print("[BMRT][simulated] load: %d nets" % len(self.names()), flush=True)

    def names(self) -> List[str]:
        """Names of all nets."""
        return list(self._model.nets)

    def net(self, name: str) -> Net:
        """Inputs and outputs of a net.

        :raises BmrtError: no such net.
        """
        if name not in self._model.nets:
            raise BmrtError(PARAM, "no net %r" % name)
        inputs, outputs = self._model.nets[name]
        return Net(
            name,
            tuple(Tensor(*t) for t in inputs),
            tuple(Tensor(*t) for t in outputs),
        )

    def coefficients(self, net: str) -> Dict[str, Memory]:
        """Device memory of the named weights of a net, empty where it has none."""
        model = self._model
        pieces = model.device.coefficients(net, dict(model.coefficients.get(net, {})))
        return {n: Memory(p.address, p.size) for n, p in pieces.items()}

    def write(self, memory: Memory, data: Any, offset: int = 0) -> None:
        """Copy bytes (any contiguous buffer or array) to the device.

        :raises BmrtError: no such memory, or beyond its end.
        """
        piece, raw = self._piece(memory), as_bytes(data)
        if offset < 0 or offset + raw.size > memory.size:
            raise BmrtError(
                PARAM,
                "%d bytes at %d exceed memory of %d" % (raw.size, offset, memory.size),
            )
        self._model.device.write(piece, raw, offset)

    def read(self, memory: Memory, size: int) -> np.ndarray:
        """Copy the first `size` bytes from the device, uint8.

        :raises BmrtError: no such memory, or beyond its end.
        """
        piece = self._piece(memory)
        if not 0 <= size <= memory.size:
            raise BmrtError(PARAM, "%d bytes exceed memory of %d" % (size, memory.size))
        return self._model.device.read(piece, size)

    def zero(self, memory: Memory) -> None:
        """Fill with zero.

        :raises BmrtError: no such memory.
        """
        self._model.device.zero(self._piece(memory))

    def launch(self, net: str, inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
        """Run a net to its end.

        :param inputs: as `Net.inputs`, floats as float32 (rounded where the net
            wants bf16), ids and positions as integers.
        :returns: as `Net.outputs`, floats as float32.
        :raises BmrtError: no such net, or inputs that do not fit it.
        """
        try:
            return self._model.launch(net, inputs)
        except NetError as error:
            raise BmrtError(PARAM, "%s: %s" % (net, error)) from None

    def memory(self) -> Dict[str, int]:
        """Device memory in bytes, `total` and `used`."""
        return {"total": TOTAL, "used": sum(m.used for m in self._models)}

    def close(self) -> None:
        """Free the model; without another user its slots are gone."""
        if not self._models:
            return
        self._models.clear()
        shared = _loaded[self._key]
        shared.users.discard(id(self))
        if not shared.users:
            del _loaded[self._key]

    @property
    def _model(self) -> Model:
        if not self._models:
            raise BmrtError(PARAM, "no model is loaded")
        return self._models[0]

    def _piece(self, memory: Memory) -> Piece:
        piece = self._model.space.get(memory.address)
        if piece is None or memory.size > piece.size:
            raise BmrtError(PARAM, "no memory at 0x%x" % memory.address)
        return piece

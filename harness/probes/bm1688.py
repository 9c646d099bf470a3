"""The probe of a BM1688: its runtime `bmrt` behind the wire protocol.

python3 -m probes.bm1688 --model FILE [--loader FILE:Class] [--workdir DIR]
"""

from __future__ import annotations

import os
import sys
from typing import Any
from typing import Dict
from typing import List
from typing import Optional
from typing import Set

from .board import Board
from .board import arguments
from .board import run
from .board import vendor_module
from .digest import file_digest
from .loader import Loader
from .product import Product
from .product import product_class
from .program import Conversation
from .program import Program
from .server import Refused
from .server import Reply
from .server import Request
from .slots import Slots


__all__ = ["main"]

# What a slot is described by; the rest is for loaders on the board.
TOLD = (
    "name",
    "net",
    "layer",
    "module",
    "factor",
    "reserved_rank",
    "width",
    "dtype",
    "size",
)


class Bm1688(Board[Conversation]):
    """A loaded model, its loader and its conversations.

    :raises Refused: the model or the loader could not be loaded.
    """

    platform = "bm1688"
    # Each conversation keeps its own KV cache in the probe's memory: 28 layers, a
    # context of 2,048 and eight heads of 128 take 450 MB.
    sessions = most_sessions = 8

    def __init__(self, model: str, loader: str, workdir: str) -> None:
        super().__init__()
        bmrt = vendor_module("bmrt")
        self._error = bmrt.BmrtError
        self._model = model
        self._workdir = workdir
        self._adapters = os.path.join(workdir, "adapters")
        self._names: Set[str] = set()
        make = product_class(loader) if loader else Loader
        try:
            self._runtime = bmrt.Runtime(0)
            self._runtime.load(model)
            self._program = Program(self._runtime)
            self._slots = Slots(self._runtime)
        except self._error as error:
            raise self._refusal(error) from error
        self._loader = Product(make, self._slots)

    def versions(self) -> Dict[str, object]:
        """As the runtime reports them."""
        return dict(self._runtime.versions)

    def model(self) -> Dict[str, object]:
        """Facts on the loaded model."""
        program = self._program
        ranks = {s["reserved_rank"] for s in self._slots.slots()}
        return {
            "file": os.path.basename(self._model),
            "digest": file_digest(
                self._model, os.path.join(self._workdir, "model-digest.json")
            ),
            "layers": program.layers,
            "hidden": program.hidden,
            "vocab": program.vocab,
            "kv_heads": program.history[2],
            "head_dim": program.history[3],
            "dtype": program.dtype,
            "max_input": program.max_input,
            "max_context": program.max_context,
            "reserved_rank": max(ranks, default=0),
        }

    def capabilities(self) -> Dict[str, object]:
        """What it can do."""
        return {
            "phases": ["prefill", "decode"],
            # Also of a model compiled without: then the list is empty.
            "slots_readable": True,
            "scope": "process",
            "runtime_scale": False,
            # One set of slots: `load` only gives a folder a name.
            "max_adapters": 1,
            "max_active": 1,
            "max_prompt": self._program.max_input,
            "max_context": self._program.max_context,
            "chunk": 0,
            "cache_files": False,
            "context_switch": False,
            "bundles": False,
        }

    def converse(self) -> Conversation:
        """A new conversation."""
        return Conversation(self._program)

    def handle(self, op: str, request: Request) -> Reply:
        """Answer one request; the vendor's errors are refusals."""
        try:
            return super().handle(op, request)
        except self._error as error:
            raise self._refusal(error) from error

    def close(self) -> None:
        """Give the device back."""
        self._runtime.close()

    @staticmethod
    def _refusal(error: Any) -> Refused:
        return Refused(str(error.code), str(error.text))

    def _link(self, name: str) -> str:
        return os.path.join(self._adapters, name)

    # Operations

    def op_load(self, request: Request) -> Reply:
        name, path = request.file_name("name"), request.text("path")
        if not os.path.isdir(path):
            raise Refused("no-folder", "%s is no folder" % path)
        # A product that compares paths must see the same one for a new content.
        os.makedirs(self._adapters, exist_ok=True)
        fresh = os.path.join(self._adapters, ".fresh-%d" % os.getpid())
        if os.path.lexists(fresh):
            os.unlink(fresh)
        os.symlink(os.path.abspath(path), fresh)
        os.replace(fresh, self._link(name))
        self._names.add(name)
        return {}, {}

    def op_unload(self, request: Request) -> Reply:
        name = request.text("name")
        self._check_known(name)
        os.unlink(self._link(name))
        self._names.discard(name)
        return {}, {}

    def op_activate(self, request: Request) -> Reply:
        if "session" not in request:
            text = "%s has no context level: name a session" % self.platform
            raise Refused("unsupported", text)
        self.session(request)
        adapters = request.scales("adapters")
        if len(adapters) > 1:
            raise Refused("too-many-adapters", "the slots hold one adapter at a time")
        for name in adapters:
            self._check_known(name)
        if any(scale != 1.0 for scale in adapters.values()):
            raise Refused("unsupported-scale", "the slots have no scale of their own")
        if not adapters:
            self._loader.clear()
        for name in adapters:
            self._loader.load(self._link(name))
        return {}, {}

    def _check_known(self, name: str) -> None:
        if name not in self._names:
            raise Refused("unknown-adapter", "no adapter %.80r" % name)

    def op_reported(self, request: Request) -> Reply:
        self.session(request)
        loaded = self._loader.loaded
        return {"adapters": {loaded: 1.0} if loaded else {}}, {}

    def op_slots(self, request: Request) -> Reply:
        slots = [{k: s[k] for k in TOLD} for s in self._slots.slots()]
        return {"slots": slots}, {}

    def op_read_slot(self, request: Request) -> Reply:
        slot = self._slots.find(request.text("name"))
        return {}, {"data": self._slots.read(slot)}

    def op_memory(self, request: Request) -> Reply:
        memory = {k: int(v) for k, v in self._runtime.memory().items()}
        return {"memory": memory}, {}


def main(argv: Optional[List[str]] = None) -> int:
    """Run until stdin ends; the exit status is 0, 1 where nothing could start."""
    parser = arguments(Bm1688.platform, __doc__, "The compiled model")
    parser.add_argument(
        "--loader", default="", help="FILE:Class or module:Class of the loader"
    )
    options = parser.parse_args(argv)
    return run(lambda: Bm1688(options.model, options.loader, options.workdir))


if __name__ == "__main__":
    sys.exit(main())

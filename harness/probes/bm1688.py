"""The probe of a BM1688: its runtime `bmrt` behind the wire protocol.

python3 -m probes.bm1688 --model FILE [--loader FILE:Class] [--workdir DIR]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from typing import Any
from typing import Dict
from typing import List
from typing import Optional
from typing import Set

import numpy as np

from .digest import file_digest
from .loader import Loader
from .product import Product
from .product import product_class
from .program import Conversation
from .program import Program
from .server import Refused
from .server import Reply
from .server import Request
from .server import Stream
from .server import failure
from .server import serve
from .slots import Slots
from .wire import VERSION
from .wire import write_frame


__all__ = ["main"]

# Each conversation keeps its own KV cache in the probe's memory: 28 layers, a
# context of 2,048 and eight heads of 128 take 450 MB.
SESSIONS = 8
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
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


class Board:
    """A loaded model, its loader and its conversations; one method an operation.

    :raises Refused: the model or the loader could not be loaded.
    """

    def __init__(self, bmrt: Any, model: str, loader: str, workdir: str) -> None:
        self._error = bmrt.BmrtError
        self._model = model
        self._workdir = workdir
        self._adapters = os.path.join(workdir, "adapters")
        self._names: Set[str] = set()
        self._sessions: Dict[int, Conversation] = {}
        self._next = 1
        make = product_class(loader) if loader else Loader
        try:
            self._runtime = bmrt.Runtime(0)
            self._runtime.load(model)
            self._program = Program(self._runtime)
            self._slots = Slots(self._runtime)
        except self._error as error:
            raise self._refusal(error) from error
        self._loader = Product(make, self._slots)

    def hello(self) -> Dict[str, Any]:
        """The first frame: who answers, with what, and what it can do."""
        program = self._program
        ranks = {s["reserved_rank"] for s in self._slots.slots()}
        model = {
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
        versions = dict(self._runtime.versions)
        versions.update(python=platform.python_version(), numpy=np.__version__)
        return {
            "hello": VERSION,
            "platform": "bm1688",
            "versions": {k: str(v) for k, v in versions.items()},
            "model": {k: str(v) for k, v in model.items()},
            "capabilities": {
                "phases": ["prefill", "decode"],
                # Also of a model compiled without: then the list is empty.
                "slots_readable": True,
                "scope": "process",
                "runtime_scale": False,
                # One set of slots: `load` only gives a folder a name.
                "max_adapters": 1,
                "max_sessions": SESSIONS,
                "max_prompt": program.max_input,
                "max_context": program.max_context,
                "chunk": 0,
                "cache_files": False,
            },
            "python": platform.python_version(),
        }

    def handle(self, op: str, request: Request) -> Reply:
        """Answer one request."""
        method = getattr(self, "op_" + op, None)
        if method is None:
            raise Refused("request", "no operation %.40r" % op)
        try:
            reply: Reply = method(request)
        except self._error as error:
            raise self._refusal(error) from error
        return reply

    def close(self) -> None:
        """Give the device back."""
        self._runtime.close()

    @staticmethod
    def _refusal(error: Any) -> Refused:
        return Refused(str(error.code), str(error.text))

    def _session(self, request: Request) -> Conversation:
        session = self._sessions.get(request.integer("session"))
        if session is None:
            raise Refused("unknown-session", "no such session")
        return session

    def _link(self, name: str) -> str:
        return os.path.join(self._adapters, name)

    # Operations

    def op_ping(self, request: Request) -> Reply:
        return {}, {}

    def op_load(self, request: Request) -> Reply:
        name, path = request.text("name"), request.text("path")
        if not NAME.fullmatch(name):
            raise Refused("name", "%.40r is no name for an adapter" % name)
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
        name = self._known(request)
        os.unlink(self._link(name))
        self._names.discard(name)
        return {}, {}

    def _known(self, request: Request) -> str:
        name = request.text("name")
        if name not in self._names:
            raise Refused("unknown-adapter", "no adapter %.80r" % name)
        return name

    def op_adapters(self, request: Request) -> Reply:
        loaded = self._loader.loaded
        return {"adapters": {loaded: 1.0} if loaded else {}}, {}

    def op_session(self, request: Request) -> Reply:
        if len(self._sessions) >= SESSIONS:
            raise Refused("too-many-sessions", "%d sessions are open" % SESSIONS)
        number = self._next
        self._next += 1
        self._sessions[number] = Conversation(self._program)
        return {"session": number}, {}

    def op_close_session(self, request: Request) -> Reply:
        self._session(request)
        del self._sessions[request.integer("session")]
        return {}, {}

    def op_activate(self, request: Request) -> Reply:
        self._session(request)
        name = self._known(request)
        if request.number("scale") != 1.0:
            raise Refused("unsupported-scale", "the slots have no scale of their own")
        self._loader.load(self._link(name))
        return {}, {}

    def op_deactivate(self, request: Request) -> Reply:
        self._session(request)
        self._loader.clear()
        return {}, {}

    def op_score(self, request: Request) -> Reply:
        session, phase = self._session(request), request.text("phase")
        if phase not in ("prefill", "decode"):
            raise Refused("request", "phase is %.40r" % phase)
        logits = session.score(
            request.tokens("prompt"), request.tokens("continuation"), phase == "decode"
        )
        return {}, {"logits": logits}

    def op_generate(self, request: Request) -> Reply:
        session = self._session(request)
        tokens = session.generate(request.tokens("prompt"), request.integer("n"))
        return {}, {"tokens": tokens}

    def op_reset(self, request: Request) -> Reply:
        self._session(request).reset()
        return {}, {}

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
    parser = argparse.ArgumentParser(prog="probes.bm1688", description=__doc__)
    parser.add_argument("--model", required=True, help="The compiled model")
    parser.add_argument(
        "--loader", default="", help="FILE:Class or module:Class of the loader"
    )
    parser.add_argument("--workdir", default=".", help="Folder for links to adapters")
    options = parser.parse_args(argv)
    stream = Stream()
    try:
        import bmrt  # prints while it loads, so not before the stream is ours
    except (ImportError, OSError) as error:
        refusal = failure(0, "setup", "no-bmrt", "the vendor's module bmrt: %s" % error)
        write_frame(stream.write, refusal)
        return 1
    try:
        board = Board(bmrt, options.model, options.loader, options.workdir)
        hello = board.hello()
    except Refused as error:
        kind = "setup" if error.code == "loader" else "refused"
        write_frame(stream.write, failure(0, kind, error.code, error.text))
        return 1
    except OSError as error:
        write_frame(stream.write, failure(0, "setup", "model", str(error)))
        return 1
    try:
        write_frame(stream.write, hello)
        serve(stream, board.handle)
    except BrokenPipeError:
        pass  # nobody is left to tell
    board.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

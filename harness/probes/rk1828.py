"""The probe of an RK1828 with its host: Toolkit Lite behind the wire protocol.

python3 -m probes.rk1828 --model FOLDER [--workdir DIR]
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Dict
from typing import List
from typing import Optional

import numpy as np

from .board import Board
from .board import arguments
from .board import run
from .bundle import Bundle
from .caches import Caches
from .digest import file_digest
from .lite import ADAPTERS
from .lite import Lite
from .lite import by_name
from .lite_session import LiteSession
from .scales import packed
from .server import Reply
from .server import Request
from .server import Unready


__all__ = ["main"]

# Tokens of a prefill graph: the vendor exports it so (`seq=[1,128]`), and nothing
# that can be asked tells it.
CHUNK = 128
EMBEDDING = "embed.bin"


class Rk1828(Board[LiteSession]):
    """A loaded model, its bundle of adapters and its sessions.

    :param model: folder of one `*.rknn`, one `*.weight` and `embed.bin`.
    :raises Refused: the runtime does not take the model.
    :raises Unready: the folder is another one, or the SDK is not known.
    """

    platform = "rk1828"
    # A card was seen to give no sixth session, whatever memory was left. Whether
    # this one does is its own answer; a runtime that never says no is not filled up.
    sessions = 5
    most_sessions = 64

    def __init__(self, model: str, workdir: str) -> None:
        super().__init__()
        self._workdir = workdir
        self._caches = Caches(workdir)
        self._files = [
            _only(model, ".rknn"),
            _only(model, ".weight"),
            os.path.join(model, EMBEDDING),
        ]
        self._free = list(range(self.most_sessions))
        self._lite = Lite(*self._files[:2])
        try:
            self._config = self._lite.query("LLM_CONFIG")
            self._embedding = self._rows()
            self._context = int(self._config.max_ctx_len)
            self._context = self._granted()
        except BaseException:
            self._lite.close()
            raise
        self._bundle = Bundle(self._lite)

    def _rows(self) -> np.ndarray:
        """The embedding, fp16 `[vocab, hidden]`, read where it is needed."""
        shape = (int(self._config.vocab_size), int(self._config.embedding_dim))
        path, needed = self._files[2], shape[0] * shape[1] * 2
        size = os.path.getsize(path)
        if size != needed or not size:
            text = "%s: %d bytes, the model needs %d" % (path, size, needed)
            raise Unready("model", text)
        return np.memmap(path, "<f2", mode="r", shape=shape)

    def _granted(self) -> int:
        """Tokens of the largest context that a session really gets.

        Also the throw-away session that the vendor opens before adapters.
        """
        session = self.converse()
        granted = session.granted
        session.close()
        # Before its first run a session may not know.
        return min(granted or self._context, self._context)

    def versions(self) -> Dict[str, object]:
        """As the runtime reports them."""
        return {"rknn3_api": self._lite.version, "driver": self._lite.driver}

    def model(self) -> Dict[str, object]:
        """Facts on the loaded model; `digest` is that of a listing of its files."""
        config = self._config
        listing = ""
        for path in sorted(self._files):
            name = os.path.basename(path)
            memory = os.path.join(self._workdir, name + "-digest.json")
            listing += "%s %s\n" % (file_digest(path, memory), name)
        kind = config.model_type
        return {
            "file": os.path.basename(self._files[0]),
            "digest": hashlib.sha256(listing.encode()).hexdigest(),
            "type": kind.decode("utf-8", "replace") if kind else "",
            "hidden": len(self._embedding[0]),
            "vocab": len(self._embedding),
            "max_context": self._context,
            "kv_dtype": int(config.kvcache_dtype),
            "kv_group": int(config.kvcache_group_size),
            "kv_residual": int(config.kvcache_residual_depth),
        }

    def capabilities(self) -> Dict[str, object]:
        """What it can do."""
        return {
            # A row by prefill is a run of its own.
            "phases": ["decode", "prefill"],
            "slots_readable": False,
            "scope": "session",
            "runtime_scale": True,
            "max_adapters": ADAPTERS,
            "max_active": ADAPTERS,
            "max_prompt": self._context,
            "max_context": self._context,
            "chunk": CHUNK,
            "cache_files": True,
            "context_switch": True,
            "bundles": True,
        }

    def converse(self) -> LiteSession:
        """A session with the lowest free number of the card."""
        session = LiteSession(
            self._lite, self._free[0], self._embedding, self._context, self._closed
        )
        self._free.pop(0)
        return session

    def _closed(self, index: int) -> None:
        self._free = sorted([*self._free, index])

    def close(self) -> None:
        """Give the device back."""
        self._lite.close()

    # Operations

    def op_load(self, request: Request) -> Reply:
        self._bundle.load(request.text("name"), request.text("path"))
        return {}, {}

    def op_unload(self, request: Request) -> Reply:
        self._bundle.unload(request.text("name"))
        return {}, {}

    def op_renew(self, request: Request) -> Reply:
        self._bundle.renew(request.text("path"))
        return {}, {}

    def op_activate(self, request: Request) -> Reply:
        scope = self.session(request).index if "session" in request else None
        self._bundle.activate(scope, request.scales("adapters"))
        return {}, {}

    def op_reported(self, request: Request) -> Reply:
        enabled = self._lite.enabled(self.session(request).index)
        named = by_name(enabled, "session_query_state")
        return {"adapters": packed({n: d.scale for n, d in named.items()})}, {}

    def op_close_session(self, request: Request) -> Reply:
        index = self.session(request).index
        reply = super().op_close_session(request)
        self._bundle.leave(index)
        return reply

    def op_save_cache(self, request: Request) -> Reply:
        self.session(request).save(self._caches.path(request.file_name("name")))
        return {}, {}

    def op_load_cache(self, request: Request) -> Reply:
        self.session(request).restore(self._caches.path(request.file_name("name")))
        return {}, {}

    def op_memory(self, request: Request) -> Reply:
        return {"memory": self._lite.memory()}, {}


def _only(folder: str, suffix: str) -> str:
    """The one file with a suffix.

    :raises Unready: there is none, or more.
    """
    try:
        found = [n for n in os.listdir(folder) if n.endswith(suffix)]
    except OSError as error:
        raise Unready("model", "%s: %s" % (folder, error.strerror)) from error
    if len(found) != 1:
        text = "%s: %d files *%s, not one" % (folder, len(found), suffix)
        raise Unready("model", text)
    return os.path.join(folder, found[0])


def main(argv: Optional[List[str]] = None) -> int:
    """Run until stdin ends; the exit status is 0, 1 where nothing could start."""
    parser = arguments(
        Rk1828.platform, __doc__, "Folder of *.rknn, *.weight and embed.bin"
    )
    options = parser.parse_args(argv)
    return run(lambda: Rk1828(options.model, options.workdir))


if __name__ == "__main__":
    sys.exit(main())

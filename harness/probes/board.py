"""What the probes of all platforms share: requests to methods, sessions by number."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import traceback
from typing import Any
from typing import Callable
from typing import Dict
from typing import Generic
from typing import Mapping
from typing import Protocol
from typing import TypeVar

import numpy as np

from .server import Refused
from .server import Reply
from .server import Request
from .server import Stream
from .server import Unready
from .server import failure
from .server import serve
from .wire import VERSION
from .wire import write_frame


__all__ = ["Board", "Conversation", "arguments", "run", "vendor_module"]

PHASES = ("prefill", "decode")


class Conversation(Protocol):
    """One session's KV cache, and what is computed on top of it.

    After `score` it holds the prompt and all but the last continuation token, after
    `generate` the prompt and all but the last new token: the last one is put out and
    never put in.
    """

    def score(
        self, prompt: np.ndarray, continuation: np.ndarray, phase: str, keep: bool
    ) -> np.ndarray:
        """Teacher-forced logits, f32 `[t, vocab]`.

        :param prompt: int32 `[n]`. :param continuation: int32 `[t]`.
        :param keep: go on after what the session holds.
        :raises Refused: too long, or an id outside the vocabulary.
        """

    def generate(self, prompt: np.ndarray, n: int, keep: bool) -> np.ndarray:
        """`n` greedy tokens, int32; of equal logits the lowest id."""

    def reset(self) -> None:
        """Empty the cache."""

    def close(self) -> None:
        """Give back what the session took."""


C = TypeVar("C", bound=Conversation)


class Board(Generic[C]):
    """A loaded model and its sessions; one method `op_...` an operation.

    A platform adds its own operations; one that it lacks is refused.
    """

    platform = ""
    # Sessions open at once, as told to who asks.
    sessions = 0
    # Sessions that the probe does not go beyond, whatever the runtime would take.
    most_sessions = 0

    def __init__(self) -> None:
        self._sessions: Dict[int, C] = {}
        self._next = 1

    # What a platform tells and does

    def versions(self) -> Mapping[str, object]:
        """Vendor components and their versions."""
        raise NotImplementedError

    def model(self) -> Mapping[str, object]:
        """Facts on the loaded model."""
        raise NotImplementedError

    def capabilities(self) -> Mapping[str, object]:
        """What it can do, without `max_sessions`."""
        raise NotImplementedError

    def converse(self) -> C:
        """A new conversation."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the device back."""
        raise NotImplementedError

    # What all have

    def hello(self) -> Dict[str, Any]:
        """The first frame: who answers, with what, and what it can do."""
        versions = dict(
            self.versions(), python=platform.python_version(), numpy=np.__version__
        )
        return {
            "hello": VERSION,
            "platform": self.platform,
            "versions": {k: str(v) for k, v in versions.items()},
            "model": {k: str(v) for k, v in self.model().items()},
            "capabilities": dict(self.capabilities(), max_sessions=self.sessions),
        }

    def handle(self, op: str, request: Request) -> Reply:
        """Answer one request."""
        method = getattr(self, "op_" + op, None)
        if method is None:
            raise Refused(
                "unsupported", "%s has no operation %.40r" % (self.platform, op)
            )
        reply: Reply = method(request)
        return reply

    def session(self, request: Request) -> C:
        """The session that a request names.

        :raises Refused: there is none.
        """
        session = self._sessions.get(request.integer("session"))
        if session is None:
            raise Refused("unknown-session", "no such session")
        return session

    def op_ping(self, request: Request) -> Reply:
        return {}, {}

    def op_session(self, request: Request) -> Reply:
        if len(self._sessions) >= self.most_sessions:
            text = "%d sessions are open" % len(self._sessions)
            raise Refused("too-many-sessions", text)
        session = self.converse()
        number = self._next
        self._next += 1
        self._sessions[number] = session
        return {"session": number}, {}

    def op_close_session(self, request: Request) -> Reply:
        self.session(request).close()
        del self._sessions[request.integer("session")]
        return {}, {}

    def op_score(self, request: Request) -> Reply:
        session, phase = self.session(request), request.text("phase")
        if phase not in PHASES:
            raise Refused("request", "phase is %.40r" % phase)
        logits = session.score(
            request.tokens("prompt"),
            request.tokens("continuation"),
            phase,
            request.flag("keep"),
        )
        return {}, {"logits": logits}

    def op_generate(self, request: Request) -> Reply:
        session, n = self.session(request), request.integer("n")
        if n < 1:
            raise Refused("request", "n is %d" % n)
        tokens = session.generate(request.tokens("prompt"), n, request.flag("keep"))
        return {}, {"tokens": tokens}

    def op_reset(self, request: Request) -> Reply:
        self.session(request).reset()
        return {}, {}


def vendor_module(name: str) -> Any:
    """A module of the vendor's; it may print while it loads.

    :raises Unready: it cannot be imported here.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        text = "the vendor's module %s: %s" % (name, error)
        raise Unready("no-" + name.partition(".")[0], text) from error


def arguments(name: str, text: str, model: str) -> argparse.ArgumentParser:
    """The options that all probes have."""
    parser = argparse.ArgumentParser(prog="probes." + name, description=text)
    parser.add_argument("--model", required=True, help=model)
    parser.add_argument("--workdir", default=".", help="Folder for the probe's files")
    return parser


def run(start: Callable[[], Board]) -> int:
    """Serve a board until stdin ends; the exit status, 1 where nothing could start.

    :param start: loads the model; called when the standard streams are ours.
    """
    stream = Stream()
    try:
        board = start()
        hello = board.hello()
    except Refused as error:
        write_frame(stream.write, failure(0, error.kind, error.code, error.text))
        return 1
    except OSError as error:
        write_frame(stream.write, failure(0, "setup", "model", str(error)))
        return 1
    except Exception as error:
        # Of another vendor's package than the one this was written for.
        traceback.print_exc(file=sys.stderr)
        text = "%s: %s" % (type(error).__name__, error)
        write_frame(stream.write, failure(0, "setup", "start", text))
        return 1
    try:
        write_frame(stream.write, hello)
        serve(stream, board.handle)
    except BrokenPipeError:
        pass  # nobody is left to tell
    board.close()
    return 0

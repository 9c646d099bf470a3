"""The probe's side of the stream: requests in, replies out, until it ends."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import traceback
from typing import Any
from typing import Callable
from typing import Dict
from typing import Mapping
from typing import Tuple
from typing import Union

import numpy as np

from .scales import unpacked
from .wire import WireError
from .wire import read_frame
from .wire import write_frame


__all__ = [
    "Refused",
    "Reply",
    "Request",
    "Stream",
    "Unready",
    "failure",
    "one_line",
    "serve",
]

# A program that was told to end may finish what it does; longer, and a vendor
# call hangs: then the device has to be set free without it.
GRACE = 5.0
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TEXT = 2000  # characters of an error that still is one line to read

Reply = Tuple[Dict[str, Any], Dict[str, np.ndarray]]


class Refused(Exception):
    """A request is refused and the program lives.

    :param code: the vendor's own, or ours; stable.
    :param text: one line.
    """

    kind = "refused"

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Unready(Refused):
    """The board is not set up for the probe: a module, a file, a version."""

    kind = "setup"


class Request:
    """A request's fields and arrays; a missing or wrong one is `Refused`."""

    def __init__(
        self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        self._fields = fields
        self._arrays = arrays

    def text(self, name: str) -> str:
        """A string field."""
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise Refused("request", "%s is not a string" % name)
        return value

    def file_name(self, name: str) -> str:
        """A string field that can be the name of a file, and of no other folder's."""
        value = self.text(name)
        if not FILE_NAME.fullmatch(value):
            raise Refused("name", "%.40r is no %s" % (value, name))
        return value

    def integer(self, name: str) -> int:
        """An integer field."""
        value = self._fields.get(name)
        if type(value) is not int:
            raise Refused("request", "%s is not an integer" % name)
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise Refused("request", "%s is neither true nor false" % name)
        return value

    def scales(self, name: str) -> Dict[str, float]:
        """Scales by adapter, in the order of the request."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise Refused("request", "%s is no object" % name)
        try:
            return {adapter: unpacked(scale) for adapter, scale in value.items()}
        except ValueError as error:
            raise Refused("request", "%s: %s" % (name, error)) from error

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def tokens(self, name: str) -> np.ndarray:
        """An array of token ids, int32 `[n]`, n > 0."""
        array = self._arrays.get(name)
        if array is None or array.dtype != np.int32 or array.ndim != 1:
            raise Refused("request", "%s is not a row of int32" % name)
        if not array.size:
            raise Refused("request", "%s is empty" % name)
        return array


class Stream:
    """The standard streams, taken away from everything else in the process.

    Vendor libraries print to stdout while they load and run, so descriptor 1 is
    pointed at 2 and the protocol keeps its own copy; descriptor 0 becomes empty.
    """

    def __init__(self) -> None:
        self._in = os.dup(0)
        self._out = os.dup(1)
        sys.stdout.flush()
        os.dup2(2, 1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        self._file = os.fdopen(self._in, "rb", buffering=1 << 16)
        threading.Thread(target=self._watch, daemon=True).start()

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        return self._file.read(size)

    def write(self, data: Union[bytes, memoryview]) -> None:
        """Send all of `data`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._out, view) :]

    def _watch(self) -> None:
        """End the process when the other side left and a call hangs."""
        poll = select.poll()
        poll.register(self._in, select.POLLRDHUP)
        while not poll.poll():
            pass
        threading.Event().wait(GRACE)
        os._exit(1)


def one_line(error: object) -> str:
    """An error's text in one bounded line."""
    return " ".join(str(error).split())[:TEXT]


def serve(stream: Stream, handle: Callable[[str, Request], Reply]) -> None:
    """Answer requests until the stream ends.

    :param handle: gives the reply's fields and arrays, or raises `Refused`; any
        other exception is a bug of ours and is told as such.
    :raises WireError: what comes in is not the protocol.
    """
    while True:
        try:
            header, arrays = read_frame(stream.read)
        except EOFError:
            return
        number, op = header.get("id"), header.get("op")
        if type(number) is not int or not isinstance(op, str):
            raise WireError("a request without id or op")
        fields: Dict[str, Any] = {}
        out: Dict[str, np.ndarray] = {}
        try:
            fields, out = handle(op, Request(header, arrays))
            fields = dict(fields, id=number, ok=True)
        except Refused as error:
            fields = failure(number, error.kind, error.code, error.text)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            text = "%s: %s" % (type(error).__name__, error)
            fields = failure(number, "bug", "bug", text)
        write_frame(stream.write, fields, out)


def failure(number: int, kind: str, code: str, text: str) -> Dict[str, Any]:
    """A reply that says no."""
    error = {"kind": kind, "code": one_line(code), "text": one_line(text)}
    return {"id": number, "ok": False, "error": error}

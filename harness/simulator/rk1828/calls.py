"""Calls of the package: what they take, and the status they end in in any case."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any
from typing import Callable
from typing import Optional
from typing import TypeVar
from typing import cast

import numpy as np

from .context import Context
from .device import Refused
from .device import chosen


__all__ = ["Guarded", "call", "content", "nothing"]

F = TypeVar("F", bound=Callable[..., Any])


class Guarded:
    """What has such calls: a device, and what runs on it."""

    def __init__(self) -> None:
        self.device = chosen()
        # Held while a call goes on that wants to be alone.
        self.busy = threading.Lock()
        self.running: Optional[Context] = None

    @property
    def context(self) -> Context:
        """What runs.

        :raises Refused: nothing.
        """
        if self.running is None:
            raise Refused("the runtime is not initialised")
        return self.running


def _status(code: int) -> Any:
    return code


def nothing(code: int) -> Any:
    """For calls that return a value."""
    return None


def call(
    failed: Callable[[int], Any] = _status, alone: bool = True
) -> Callable[[F], F]:
    """A method of the package that raises nothing.

    :param failed: what it returns when it failed, of the status.
    :param alone: it fails while another such call goes on.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def guarded(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            held = alone and self.busy.acquire(blocking=False)
            try:
                if alone and not held:
                    raise Refused("another call goes on")
                return method(self, *args, **kwargs)
            except Exception as error:
                return failed(self.device.status(method.__name__, error))
            finally:
                if held:
                    self.busy.release()

        return cast(F, guarded)

    return decorate


def content(path: Optional[str], data: Any, size: int) -> Any:
    """The bytes of a file, or memory of the caller as it is, uint8 `[size]`.

    :param data: a buffer, an address as an int, or a pointer of ctypes to bytes.
    :raises Refused: both or neither are given, or the memory is too small.
    :raises OSError: the file cannot be read.
    """
    if (path is None) == (data is None):
        raise Refused("give a path or data")
    if path is not None:
        with open(path, "rb") as file:
            return file.read()
    if isinstance(data, (int, ctypes.c_void_p, ctypes.c_char_p)):
        address = ctypes.cast(data, ctypes.c_void_p).value
        if not address or size < 1:
            raise Refused("no data of %d bytes" % size)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    raw = np.frombuffer(data, np.uint8)
    if not 1 <= size <= raw.size:
        raise Refused("%d bytes of data, its size is given as %d" % (raw.size, size))
    return raw[:size]

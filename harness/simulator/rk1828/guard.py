"""Calls of the package, which end in a status whatever happens in them."""

from __future__ import annotations

import functools
import threading
from typing import Any
from typing import Callable
from typing import Optional
from typing import TypeVar
from typing import cast

from .context import Context
from .device import chosen
from .refused import Refused


__all__ = ["Guarded", "call", "nothing"]

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

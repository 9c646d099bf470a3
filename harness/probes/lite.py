"""The vendor's Toolkit Lite (`rknn3lite`), every answer checked.

It catches exceptions inside and logs them; its caller sees -1 or None.
"""

from __future__ import annotations

import inspect
import re
from typing import Any
from typing import Dict
from typing import List
from typing import Sequence

from .board import vendor_module
from .server import Refused
from .server import Unready
from .server import one_line


__all__ = ["Lite", "by_name", "name_of"]

# Records changed their layout between 1.0.0 and 1.1.0 and nothing in them says so:
# any other version would be read wrongly, not refused.
VERSIONS = ("1.1.0",)
ADAPTERS = 32  # RKNN3_MAX_LORA_NUM of 1.1.0: what any list of adapters has room for
INDEX = "session_index"
# Calls of one session that no public program makes with `session_index`, though each
# has a session in the C library. One that lacks it is about session 0.
UNSURE = (
    "set_chat_template",
    "set_kvcache_policy",
    "session_query_state",
    "save_kvcache",
    "load_kvcache",
)
# RKNN3_ERR_... of the 1.1.0 header; none of them is about adapters.
CODES = {
    -1: "fail",
    -2: "argument invalid",
    -3: "model invalid",
    -4: "context invalid",
    -5: "task failed",
    -6: "out of memory",
    -7: "timeout",
    -8: "input invalid",
    -9: "output invalid",
    -10: "device unavailable",
    -11: "device does not match",
    -12: "platform does not match",
    -13: "communication",
    -14: "memory not synchronised",
    -15: "key invalid",
    -16: "decryption failed",
    -17: "weights not prepared",
    -18: "library, proxy and firmware are not of one version",
}


class Lite:
    """The runtime with a model loaded; whatever it does not do is `Refused`.

    :param rknn: the graph's file. :param weight: the file of its weights.
    Every method raises `Unready` where a call raises an exception: since it catches
    its own, that one is about how it was called.

    :raises Unready: the module is missing, or of a version that is not known.
    :raises Refused: it does not take the model.
    """

    def __init__(self, rknn: str, weight: str) -> None:
        self.api = vendor_module("rknn3lite.api")
        self.types = vendor_module("rknn3lite.api.rknn3_types")
        self._lite = _called(self.api, "RKNN3Lite", llm_mode=True, verbose=False)
        self._of_session_0 = [n for n in UNSURE if not _takes_index(self._lite, n)]
        try:
            self.do("load_rknn", rknn, weight)
            self.do("init_runtime", target="rk1828")
            # There is no context to ask before; nothing else is asked before.
            self.version, self.driver = self._versions()
        except BaseException:
            self.close()
            raise

    def _versions(self) -> List[str]:
        told = self.query("SDK_VERSION")
        texts = [one_line(_text(t)) for t in (told.api_version, told.drv_version)]
        number = re.search(r"\d+(?:\.\d+)+", texts[0])
        if number is None or number.group() not in VERSIONS:
            raise Unready(
                "sdk-version",
                "the SDK says it is %.80r, this probe knows the layouts of %s"
                % (texts[0], ", ".join(VERSIONS)),
            )
        return texts

    def do(self, name: str, *args: Any, **named: Any) -> None:
        """Call what answers 0, or a pair that begins with it.

        :raises Refused: any other answer, with it as the code.
        """
        _check(name, self._call(name, *args, **named))

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        """What a call answers.

        :raises Refused: it is for a session that this Lite cannot name.
        """
        if name in self._of_session_0 and named.pop(INDEX) != 0:
            text = "%s of this Lite takes no %s: it has session 0 only" % (name, INDEX)
            raise Refused("no-session-index", text)
        return _called(self._lite, name, *args, **named)

    def release(self, session: int) -> None:
        """Give a session back."""
        answer = self._call("release", session_index=session)
        # The vendor's own programs take no notice of it, so there may be none.
        if answer is not None:
            _check("release", answer)

    def tell(self, name: str, *args: Any, **named: Any) -> Any:
        """Call what answers with a record.

        :raises Refused: it does not.
        """
        answer = self._call(name, *args, **named)
        if answer is None or isinstance(answer, int):
            raise Refused("no-result", "%s returned %r" % (name, answer))
        return answer

    def query(self, what: str) -> Any:
        """A record of `rknn3_query`; of those in lists, the first."""
        command = getattr(self.types.RKNN3QueryCmd, "RKNN3_QUERY_" + what)
        return self.tell("rknn3_query", command)

    def adapters(self) -> List[Any]:
        """Descriptors of the adapters in the bundle, as the runtime lists them."""
        listed, count = self.tell("query_lora")
        return _first(listed, count, "query_lora")

    def enabled(self, session: int) -> List[Any]:
        """Descriptors of the adapters that a session reports as enabled."""
        state = self.state(session)
        return _first(state.loras_enabled, state.n_loras_enabled, "session_query_state")

    def state(self, session: int) -> Any:
        """A session's state."""
        return self.tell("session_query_state", session_index=session)

    def memory(self) -> Dict[str, int]:
        """Bytes of device memory over the card's nodes, and of the fullest one.

        Only the nodes' figures are exact; the card is full when one of them is.

        :raises Refused: it lists no nodes.
        """
        told = self.query("DEVICE_MEM_INFO")
        nodes = list(told.node_mem_info[: told.node_num])
        if not nodes:
            raise Refused("no-result", "DEVICE_MEM_INFO lists no nodes")
        return {
            "nodes": len(nodes),
            "free_min": min(int(n.free) for n in nodes),
            "free": sum(int(n.free) for n in nodes),
            "total": sum(int(n.total) for n in nodes),
        }

    def close(self) -> None:
        """Give the device back."""
        self._call("release")


def _called(owner: Any, name: str, *args: Any, **named: Any) -> Any:
    try:
        return getattr(owner, name)(*args, **named)
    except Exception as error:
        text = "%s: %s: %s" % (name, type(error).__name__, error)
        raise Unready("call", text) from error


def _takes_index(lite: Any, name: str) -> bool:
    """Whether a method takes `session_index`; one that does not tell does not."""
    try:
        known = inspect.signature(getattr(lite, name)).parameters
    except (TypeError, ValueError):
        return False
    return INDEX in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def _check(name: str, answer: Any) -> None:
    code = answer[0] if isinstance(answer, (tuple, list)) and answer else answer
    if type(code) is not int:
        raise Refused("no-result", "%s returned %.80r" % (name, code))
    if code != 0:
        meaning = " (%s)" % CODES[code] if code in CODES else ""
        raise Refused(str(code), "%s returned %d%s" % (name, code, meaning))


def _first(listed: Any, count: Any, name: str) -> List[Any]:
    if type(count) is not int or not 0 <= count <= ADAPTERS:
        raise Refused("no-result", "%s lists %.40r adapters" % (name, count))
    # A NULL pointer is false; an index into it would end the process.
    if count and not listed:
        raise Refused("no-result", "%s lists %d adapters and no list" % (name, count))
    return [listed[i] for i in range(count)]


def by_name(descriptors: Sequence[Any], call: str) -> Dict[str, Any]:
    """Descriptors by name, in their order.

    :param call: what listed them.
    :raises Refused: two have one name.
    """
    named: Dict[str, Any] = {}
    for descriptor in descriptors:
        name = name_of(descriptor)
        if name in named:
            raise Refused("reported-twice", "%s lists %.80r twice" % (call, name))
        named[name] = descriptor
    return named


def name_of(descriptor: Any) -> str:
    """The name in a descriptor."""
    return _text(descriptor.lora_name)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

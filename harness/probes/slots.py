"""The compiled low-rank slots of a loaded model, as a loader sees them."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import Tuple

import numpy as np

from .names import SlotName
from .server import Refused


__all__ = ["Slots"]

# The layers' linears whose factor has a side that the nets' own inputs and
# outputs give away: the hidden size, or the width of k and v.
HIDDEN = frozenset(
    [(p, "A") for p in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")]
    + [(p, "B") for p in ("o_proj", "down_proj")]
)
KEY_VALUE = frozenset([("k_proj", "B"), ("v_proj", "B")])
QUERY = frozenset([("q_proj", "B"), ("o_proj", "A")])
PAGE = 4096  # the runtime reports whole pages
ITEM = {"bf16": 2, "f32": 4}


class Slots:
    """Lists, reads and writes slots over the vendor's runtime.

    :param runtime: the vendor's `bmrt.Runtime` with a model loaded.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._memory: Dict[Tuple[str, str], Any] = {}
        self._slots: List[Dict[str, Any]] = []
        for net in runtime.names():
            for name, memory in runtime.coefficients(net).items():
                parsed = SlotName.parse(name)
                if parsed is not None:
                    self._memory[net, name] = memory
                    self._slots.append(self._slot(net, name, memory, parsed))

    def _slot(
        self, net: str, name: str, memory: Any, parsed: SlotName
    ) -> Dict[str, Any]:
        place = parsed.place
        return {
            "name": name,
            "net": net,
            "layer": place.layer,
            "path": place.path,
            "module": place.path.rpartition(".")[2],
            "factor": place.factor,
            "reserved_rank": parsed.reserved_rank,
            "width": 0 if parsed.embedding else self._width(net, memory.size, parsed),
            "dtype": self._dtype(net),
            "size": int(memory.size),
            "address": int(memory.address),
        }

    def _dtype(self, net: str) -> str:
        """Slots have the dtype of the states, however the base is quantised."""
        facts = self._runtime.net(net)
        floats = [t.dtype for t in facts.inputs + facts.outputs if t.dtype != "i32"]
        return str(floats[0])

    def _width(self, net: str, size: int, parsed: SlotName) -> int:
        if not net.startswith("block_"):
            return 0
        outputs = self._runtime.net(net).outputs
        heads, head = (int(n) for n in outputs[1].shape[-2:])
        factor = (parsed.place.path.rpartition(".")[2], parsed.place.factor)
        if factor in HIDDEN:
            return int(outputs[0].shape[-1])
        if factor in KEY_VALUE:
            return heads * head
        if factor in QUERY:
            # Whole heads, so the size (in whole pages) mostly leaves one choice.
            row = parsed.reserved_rank * ITEM[self._dtype(net)]
            most = size // (row * head)
            fewer = -(-row * head * (most - 1) // PAGE) * PAGE
            return most * head if fewer < size else 0
        return 0

    def slots(self) -> List[Dict[str, Any]]:
        """Every slot of every net.

        Prefill and decode nets of a layer list the same name; on the vendor's
        runtime they also have the same `address`. `width` is 0 where the nets do
        not tell it.
        """
        return self._slots

    def find(self, name: str) -> Dict[str, Any]:
        """A slot by its name, or by `net:name`.

        :raises Refused: there is none, or nets hold different memory under it.
        """
        net, _, rest = name.partition(":")
        found = [
            s
            for s in self._slots
            if s["name"] == name or (s["net"] == net and s["name"] == rest)
        ]
        if not found:
            raise Refused("unknown-slot", "no slot %.200r" % name)
        if len({s["address"] for s in found}) > 1:
            raise Refused(
                "ambiguous-slot",
                "%r is other memory in %s and %s: ask for net:name"
                % (name, found[0]["net"], found[-1]["net"]),
            )
        return found[0]

    def read(self, slot: Dict[str, Any]) -> np.ndarray:
        """All bytes of a slot, uint8 `[size]`."""
        data = self._runtime.read(self._of(slot), slot["size"])
        return np.ascontiguousarray(data).view(np.uint8).reshape(-1)

    def write(self, slot: Dict[str, Any], data: Any) -> None:
        """Write bytes to the start of a slot.

        :raises ValueError: more bytes than the slot has.
        """
        raw = np.frombuffer(data, np.uint8)
        if raw.size > slot["size"]:
            raise ValueError(
                "%d bytes into slot %r of %d" % (raw.size, slot["name"], slot["size"])
            )
        self._runtime.write(self._of(slot), raw)

    def zero(self, slot: Dict[str, Any]) -> None:
        """Fill a slot with zeros."""
        self._runtime.zero(self._of(slot))

    def _of(self, slot: Dict[str, Any]) -> Any:
        return self._memory[slot["net"], slot["name"]]

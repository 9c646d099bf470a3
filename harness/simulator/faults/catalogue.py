"""The faults that a simulated board can be given, with the reports they come from."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageFault
from harness.simulator.bm1688.device import Device


__all__ = ["Fault", "catalogue", "find"]

DEVICES = "harness.simulator.faults.devices"
LOADERS = "harness.simulator.faults.loaders"


@dataclass(frozen=True)
class Fault:
    """One fault.

    :param kind: what it gets wrong, one word.
    :param where: `device` or `loader`.
    :param source: the public report of such a fault; "" where there is none.
    :param benign: a board with it is right and must pass.
    :param spec: `module:Class`.
    """

    name: str
    kind: str
    where: Literal["device", "loader"]
    source: str
    description: str
    spec: str
    benign: bool = False

    @property
    def file(self) -> str:
        """`FILE:Class` of a loader, for upload."""
        module, _, name = self.spec.partition(":")
        return f"{inspect.getfile(importlib.import_module(module))}:{name}"


# Name, kind, class, public report.
_DEVICES = (
    (
        "adapter-ignored",
        "ignored",
        "AdapterIgnored",
        "triton-inference-server/tensorrtllm_backend#791",
    ),
    (
        "decode-graph-ignores-adapter",
        "ignored",
        "DecodeGraphIgnoresAdapter",
        "huggingface/text-generation-inference PR 2180",
    ),
    ("base-changed", "base", "BaseChanged", "huggingface/peft#1932"),
    ("no-slots", "slots", "NoSlots", "ggml-org/llama.cpp PR 8332"),
    ("noisy", "noise", "Noisy", "sgl-project/sglang PR 38337"),
)
_LOADERS = (
    (
        "scale-reserved-rank",
        "scale",
        "ScaleReservedRank",
        "sophgo/LLM-TPU Qwen3_VL/cpp_demo_special",
    ),
    (
        "scale-applied-twice",
        "scale",
        "ScaleAppliedTwice",
        "openvinotoolkit/openvino.genai PR 2525",
    ),
    (
        "factor-transposed",
        "layout",
        "FactorTransposed",
        "sophgo/LLM-TPU commit 656fdce",
    ),
    ("layer-shifted", "layout", "LayerShifted", "sophgo/LLM-TPU#96"),
    (
        "residue-larger-rank",
        "residue",
        "ResidueLargerRank",
        "sophgo/LLM-TPU commit f6269de",
    ),
    (
        "residue-more-modules",
        "residue",
        "ResidueMoreModules",
        "sgl-project/sglang#7426",
    ),
    ("clear-does-nothing", "clear", "ClearDoesNothing", "oobabooga/textgen#3130"),
    (
        "clear-keeps-one-layer",
        "clear",
        "ClearKeepsOneLayer",
        "ace-step/ACE-Step-1.5#705",
    ),
    (
        "clear-keeps-nan",
        "clear",
        "ClearKeepsNan",
        "PrimeIntellect-ai/prime-rl PR 1565",
    ),
    (
        "failed-load-half-written",
        "failed-load",
        "FailedLoadHalfWritten",
        "sophgo/LLM-TPU Qwen3/python_demo_share_prompt",
    ),
    (
        "failed-load-kills-process",
        "failed-load",
        "FailedLoadKillsProcess",
        "sophgo/LLM-TPU Qwen3_VL/cpp_demo_special",
    ),
    (
        "failed-load-silent",
        "failed-load",
        "FailedLoadSilent",
        "huggingface/text-generation-inference#2505",
    ),
    ("stale-name", "stale", "StaleName", "sgl-project/sglang#8263"),
    (
        "second-load-incomplete",
        "stale",
        "SecondLoadIncomplete",
        "huggingface/diffusers#6524",
    ),
    (
        "reports-wrong-state",
        "report",
        "ReportsWrongState",
        "lxe/simple-llm-finetuner PR 45",
    ),
)
BENIGN = frozenset(["noisy"])


def catalogue() -> dict[str, Fault]:
    """Every built-in fault by its name."""
    faults: dict[str, Fault] = {}
    places: tuple[tuple[Literal["device", "loader"], str, tuple], ...] = (
        ("device", DEVICES, _DEVICES),
        ("loader", LOADERS, _LOADERS),
    )
    for where, module, rows in places:
        classes = importlib.import_module(module)
        for name, kind, cls, source in rows:
            description = inspect.getdoc(getattr(classes, cls)) or ""
            faults[name] = Fault(
                name=name,
                kind=kind,
                where=where,
                source=source,
                description=description.splitlines()[0],
                spec=f"{module}:{cls}",
                benign=name in BENIGN,
            )
    return faults


def find(spec: str) -> Fault:
    """A built-in fault, or the class named by `module:Class`.

    A class derived from `Device` acts on the device; any other is taken for a
    loader.

    :raises UsageFault: no such fault, module or class.
    """
    known = catalogue()
    if spec in known:
        return known[spec]
    module, colon, name = spec.partition(":")
    if not colon:
        names = ", ".join(sorted(known))
        raise UsageFault(
            f"unknown fault {spec!r}", cure=f"give module:Class or one of {names}"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageFault(
            f"fault {spec!r}: {error}", cure="give a class that can be imported here"
        ) from error
    if not inspect.isclass(found):
        raise UsageFault(f"fault {spec!r} is no class", cure="give module:Class")
    where: Literal["device", "loader"] = (
        "device" if issubclass(found, Device) else "loader"
    )
    return Fault(spec, "own", where, "", inspect.getdoc(found) or "", spec)

"""The faults that a simulated board can be given, with the reports they come from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageFault
from harness.simulator.bm1688.device import Device as Bm1688
from harness.simulator.rk1828.bundler import Bundler
from harness.simulator.rk1828.device import Device as Rk1828


__all__ = ["PLATFORMS", "Fault", "OfAnotherPlatform", "catalogue", "find"]

PLATFORMS = ("bm1688", "rk1828")
PLACE = "harness.simulator.faults."
Where = Literal["device", "loader", "converter"]


class OfAnotherPlatform(UsageFault):
    """The fault is one of another platform's."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    :param kind: what it gets wrong, one word.
    :param where: what it is put into; `converter` is the one that bundles adapters.
    :param source: the public report of such a fault; "" where there is none.
    :param benign: a board with it is right and must pass.
    :param spec: `module:Class`.
    """

    name: str
    kind: str
    platform: str
    where: Where
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
_BM1688 = (
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
_RK1828 = (
    ("adapter-ignored", "ignored", "AdapterIgnored", "unslothai/unsloth#2009"),
    (
        "decode-graph-ignores-adapter",
        "ignored",
        "DecodeGraphIgnoresAdapter",
        "huggingface/text-generation-inference PR 2180",
    ),
    (
        "prefill-graph-ignores-adapter",
        "ignored",
        "PrefillGraphIgnoresAdapter",
        "huggingface/text-generation-inference PR 2180",
    ),
    (
        "chunk-boundary-drops-adapter",
        "ignored",
        "ChunkBoundaryDropsAdapter",
        "vllm-project/vllm#4995",
    ),
    (
        "setup-fails-to-base",
        "ignored",
        "SetupFailsToBase",
        "aimilert/rknn3-model-zoo Qwen3_VL_LoRA",
    ),
    (
        "scale-off-by-five-percent",
        "scale",
        "ScaleOffByFivePercent",
        "NVIDIA/TensorRT-LLM#1477",
    ),
    (
        "scale-applied-twice",
        "scale",
        "ScaleAppliedTwice",
        "openvinotoolkit/openvino.genai PR 2525",
    ),
    ("runtime-scale-sticky", "scale", "RuntimeScaleSticky", "huggingface/peft#3581"),
    ("scale-zero-not-base", "scale", "ScaleZeroNotBase", "ggml-org/llama.cpp#26207"),
    ("base-changed", "base", "BaseChanged", "huggingface/peft#1932"),
    ("clear-does-nothing", "clear", "ClearDoesNothing", "oobabooga/textgen#3130"),
    ("unload-keeps-weights", "clear", "UnloadKeepsWeights", "vllm-project/vllm#42207"),
    (
        "unload-drops-neighbour",
        "clear",
        "UnloadDropsNeighbour",
        "vllm-project/vllm#3374",
    ),
    (
        "cache-survives-switch",
        "cache",
        "CacheSurvivesSwitch",
        "ggml-org/llama.cpp#26207",
    ),
    ("cache-file-accepted", "cache", "CacheFileAccepted", "LMCache/LMCache#2960"),
    ("session-leak", "session", "SessionLeak", "sgl-project/sglang#24638"),
    (
        "other-sessions-scale",
        "session",
        "OtherSessionsScale",
        "vllm-project/vllm#42008",
    ),
    ("second-session-only", "session", "SecondSessionOnly", "huggingface/peft PR 2090"),
    ("precedence-reversed", "session", "PrecedenceReversed", ""),
    (
        "failed-load-silent",
        "failed-load",
        "FailedLoadSilent",
        "huggingface/text-generation-inference#2505",
    ),
    (
        "failed-load-kills-process",
        "failed-load",
        "FailedLoadKillsProcess",
        "alibaba/MNN#3642",
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
    ("noisy", "noise", "Noisy", "sgl-project/sglang PR 38337"),
    ("slow-load", "time", "SlowLoad", ""),
    ("chatty", "output", "Chatty", ""),
)
_CONVERTERS = (
    (
        "conversion-drops-alpha",
        "scale",
        "ConversionDropsAlpha",
        "LLL-iii/rknn3-model-zoo Qwen3_VL_LoRA",
    ),
    (
        "conversion-quantises-scale",
        "scale",
        "ConversionQuantisesScale",
        "ml-explore/mlx-lm#1172",
    ),
    (
        "bundle-names-exchanged",
        "identity",
        "BundleNamesExchanged",
        "unslothai/unsloth#2322",
    ),
    ("stale-rebuild", "stale", "StaleRebuild", "sgl-project/sglang#8263"),
    (
        "thirty-third-overwrites",
        "capacity",
        "ThirtyThirdOverwrites",
        "vllm-project/vllm#3374",
    ),
    ("layer-shifted", "layout", "LayerShifted", "sophgo/LLM-TPU#96"),
    (
        "factor-transposed",
        "layout",
        "FactorTransposed",
        "sophgo/LLM-TPU commit 656fdce",
    ),
    *(
        (f"drops-{module}-proj", "dropped", f"ConversionDrops{module.title()}", source)
        for module, source in (
            ("q", "unslothai/unsloth#9326"),
            ("k", "tenstorrent/tt-metal PR 50673"),
            ("v", "tenstorrent/tt-metal PR 50673"),
            ("o", "pytorch/torchtitan PR 4283"),
            ("gate", "ikawrakow/ik_llama.cpp#1986"),
            ("up", "ikawrakow/ik_llama.cpp#1986"),
            ("down", "pytorch/torchtitan PR 4283"),
        )
    ),
    ("int8-adapters", "format", "Int8Adapters", ""),
    ("int6-adapters", "format", "Int6Adapters", ""),
    ("int4-adapters", "format", "Int4Adapters", ""),
)
BENIGN = frozenset(
    "noisy slow-load chatty int8-adapters int6-adapters int4-adapters".split()
)
_TABLES: tuple[tuple[str, Where, str, tuple[tuple[str, str, str, str], ...]], ...] = (
    ("bm1688", "device", "bm1688", _BM1688),
    ("bm1688", "loader", "loaders", _LOADERS),
    ("rk1828", "device", "rk1828", _RK1828),
    ("rk1828", "converter", "converters", _CONVERTERS),
)


def catalogue(platform: str) -> dict[str, Fault]:
    """Every built-in fault of a platform by its name."""
    return {f.name: f for f in _all() if f.platform == platform}


def _all() -> Iterator[Fault]:
    for platform, where, file, rows in _TABLES:
        module = importlib.import_module(PLACE + file)
        for name, kind, cls, source in rows:
            description = inspect.getdoc(getattr(module, cls)) or ""
            yield Fault(
                name=name,
                kind=kind,
                platform=platform,
                where=where,
                source=source,
                description=description.splitlines()[0],
                spec=f"{module.__name__}:{cls}",
                benign=name in BENIGN,
            )


def find(spec: str, platform: str) -> Fault:
    """A platform's built-in fault, or the class named by `module:Class`.

    A class derived from a simulated device acts on that device, one from `Bundler`
    on the converter of adapters; any other is taken for a loader.

    :raises OfAnotherPlatform: there is such a fault, but not on this platform.
    :raises UsageFault: no such fault, module or class.
    """
    known = catalogue(platform)
    if spec in known:
        return known[spec]
    module, colon, name = spec.partition(":")
    if not colon:
        names = ", ".join(sorted(known))
        other = any(fault.name == spec for fault in _all())
        what = f"no fault of a {platform}" if other else "unknown fault"
        kind = OfAnotherPlatform if other else UsageFault
        raise kind(f"{what}: {spec!r}", cure=f"give module:Class or one of {names}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageFault(
            f"fault {spec!r}: {error}", cure="give a class that can be imported here"
        ) from error
    if not inspect.isclass(found):
        raise UsageFault(f"fault {spec!r} is no class", cure="give module:Class")
    belongs, where = _place(found)
    if belongs != platform:
        raise OfAnotherPlatform(
            f"fault {spec!r} belongs to a {belongs}", cure=f"name a board of {belongs}"
        )
    description = inspect.getdoc(found) or ""
    return Fault(spec, "own", platform, where, "", description, spec)


def _place(found: type) -> tuple[str, Where]:
    """Platform and place that a class belongs to."""
    if issubclass(found, Bm1688):
        return "bm1688", "device"
    if issubclass(found, Rk1828):
        return "rk1828", "device"
    return (
        ("rk1828", "converter") if issubclass(found, Bundler) else ("bm1688", "loader")
    )

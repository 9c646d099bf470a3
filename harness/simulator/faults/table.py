"""The built-in faults: name, kind, class, and the public report of such a fault."""

from __future__ import annotations


__all__ = ["BENIGN", "BM1688_DEVICES", "BM1688_LOADERS", "CONVERTERS", "RK1828_DEVICES"]

Rows = tuple[tuple[str, str, str, str], ...]

BM1688_DEVICES: Rows = (
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
BM1688_LOADERS: Rows = (
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
RK1828_DEVICES: Rows = (
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
        "later-turns-lose-adapter",
        "ignored",
        "LaterTurnsLoseAdapter",
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
        "sixth-session-granted",
        "capacity",
        "SixthSessionGranted",
        "huggingface/trl PR 7017",
    ),
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
CONVERTERS: Rows = (
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
# A board with one of these is right and must pass.
BENIGN = frozenset(
    "noisy slow-load chatty int8-adapters int6-adapters int4-adapters".split()
)

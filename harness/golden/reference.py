"""The reference: transformers and PEFT, adapters unmerged, one prompt at a time.

The only module of the room that needs torch, transformers and peft (extra
`reference`); they are imported when a reference is opened.

PEFT changes the model it wraps, and `unload()` leaves full copies behind
(`modules_to_save`, trained biases), so every adapter meets a base read anew from
disk, and that base must first give the very bits the first base gave.
"""

from __future__ import annotations

import gc
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.golden.arithmetic import ARITHMETICS
from harness.golden.arithmetic import EXACT
from harness.golden.arithmetic import scheme_of
from harness.golden.attention import attention_over
from harness.golden.gap import relative_l2
from harness.golden.identity import lm_head_of
from harness.golden.prompts import PromptSet
from harness.golden.store import logits_of
from harness.golden.tensors import TensorFile


__all__ = [
    "Hidden",
    "PeftReference",
    "ReferenceContaminated",
    "load_base",
    "with_adapter",
]

# Logits from the stored states against the model's own: float32 rounding of one
# product is 1e-6; soft-capping or an adapted lm_head changes them by 1e-2 and more.
SAME_LOGITS = 1e-4
PACKAGES = ("torch", "transformers", "peft")


class ReferenceContaminated(Infrastructure):
    """The base no longer answers as it did before an adapter was loaded."""

    code = "reference-contaminated"


@dataclass(frozen=True, eq=False)
class Hidden:
    """Final hidden states after the last norm, one row per continuation token.

    :param exact: float32 `[rows, H]`.
    :param device: the states in device arithmetic, held as float32, `[rows, H]`.
    """

    exact: np.ndarray
    device: np.ndarray


class PeftReference:
    """A base in float32 and in device arithmetic, with and without adapters.

    :param base: checkpoint folder in Hugging Face form.
    :param scheme: the arithmetic of the device.
    :param device_base: the checkpoint that the device has, where it is another one:
        the same base with its weights quantised and multiplied out.
    :raises UsageFault: the extra `reference` is not installed, no such scheme, or a
        base cannot be loaded.
    """

    def __init__(
        self, base: Path, scheme: str = "bf16", device_base: Path | None = None
    ) -> None:
        scheme_of(scheme)
        self._bases = {EXACT: base, scheme: device_base or base}
        self.versions = _versions()
        self._head = lm_head_of(base).astype(np.float32)
        self._first: dict[tuple[str, str], np.ndarray] = {}

    def score(self, prompts: PromptSet, adapter: Path | None = None) -> Hidden:
        """Hidden states of the base, or of the base with an adapter.

        :raises UsageFault: the adapter does not load completely, or changes more
            than the hidden states.
        :raises ReferenceContaminated: the base is not what it was.
        """
        return self.score_all([prompts], adapter)[0]

    def score_all(
        self, sets: list[PromptSet], adapter: Path | None = None
    ) -> list[Hidden]:
        """`score` of several prompt sets with one load of the model."""
        parts: list[list[np.ndarray]] = []
        for arithmetic, base in self._bases.items():
            # Read anew, and dropped before the next one: two models of 8 GB do
            # not fit beside each other.
            model = load_base(base, arithmetic)
            self._check_base(model, arithmetic, sets[0])
            if adapter is not None:
                model = with_adapter(model, adapter, arithmetic)
            parts.append([self._hidden(model, s, arithmetic) for s in sets])
            del model
            gc.collect()
        return [Hidden(*pair) for pair in zip(*parts, strict=True)]

    def _check_base(self, model: Any, arithmetic: str, prompts: PromptSet) -> None:
        """The base gives the bits it gave when it was first loaded."""
        sample = prompts.few(1, 8)
        found = self._hidden(model, sample, arithmetic)
        first = self._first.setdefault((arithmetic, sample.digest), found)
        if not np.array_equal(first, found):
            raise ReferenceContaminated(
                f"the {arithmetic} base differs from its first load",
                where=str(self._bases[arithmetic]),
                cure="start again in a new process, and leave the base's files alone",
            )

    def _hidden(self, model: Any, prompts: PromptSet, arithmetic: str) -> np.ndarray:
        """Float32 `[rows, H]`; exact ones are held against the model's own logits."""
        import torch

        cached = ARITHMETICS[arithmetic].cache is not None
        seen: list[Any] = []
        head = model.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        rows = []
        try:
            with torch.inference_mode():
                for p in prompts:
                    ids = torch.tensor([p.tokens + p.continuation])
                    options = {"prompt_length": len(p.tokens)} if cached else {}
                    logits = model(input_ids=ids, use_cache=False, **options).logits[0]
                    wanted = slice(len(p.tokens) - 1, ids.shape[1] - 1)
                    rows.append(seen.pop()[0][wanted].float().numpy())
                    if arithmetic == EXACT:
                        self._check_logits(rows[-1], logits[wanted].float().numpy())
        finally:
            hook.remove()
        return np.concatenate(rows)

    def _check_logits(self, hidden: np.ndarray, logits: np.ndarray) -> None:
        gap = relative_l2(logits_of(hidden, self._head), logits)
        if not gap <= SAME_LOGITS:
            raise UsageFault(
                f"logits are not hidden states x lm_head (relative L2 {gap:.1e})",
                where=str(self._bases[EXACT]),
                cure="an adapter on lm_head or a base that caps its logits has no "
                "golden of this form",
            )


def load_base(base: Path, arithmetic: str) -> Any:
    """The base's model of its own class, on the CPU, ready to score.

    :param arithmetic: a name in `ARITHMETICS`; one with a KV cache of its own makes
        a model that is called with `prompt_length`, the tokens of the prompt.
    :raises UsageFault: it cannot be loaded.
    """
    import torch
    import transformers

    console: Any = transformers.utils.logging
    console.disable_progress_bar()  # a library prints nothing
    way = ARITHMETICS[arithmetic]
    options: dict[str, Any] = {"dtype": getattr(torch, way.dtype)}
    if way.cache is not None:
        transformers.AttentionInterface.register(arithmetic, attention_over(way.cache))
        options["attn_implementation"] = arithmetic
    try:
        config = transformers.AutoConfig.from_pretrained(base, local_files_only=True)
        names = list(getattr(config, "architectures", None) or [])
        kind: Any = transformers.AutoModelForCausalLM
        if "Qwen3VLForConditionalGeneration" in names:
            kind = transformers.Qwen3VLForConditionalGeneration
        model, notes = kind.from_pretrained(
            base, local_files_only=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UsageFault(
            f"the base does not load: {error}",
            where=str(base),
            cure="give a complete checkpoint folder",
        ) from error
    absent = sorted(notes["missing_keys"]) + sorted(map(str, notes["mismatched_keys"]))
    if absent:
        raise UsageFault(
            f"the base lacks {len(absent)} tensors, first {absent[0]}",
            where=str(base),
            cure="give a complete checkpoint folder",
        )
    return model.eval()


def with_adapter(model: Any, adapter: Path, arithmetic: str) -> Any:
    """The model with the adapter applied by PEFT, not merged.

    PEFT says nothing of tensors it does not use and only warns of those it
    misses, so both are asked for.

    :raises UsageFault: PEFT cannot load it, or not all of it was loaded.
    """
    import peft
    import torch

    exact = arithmetic == EXACT
    try:
        config = peft.PeftConfig.from_pretrained(str(adapter))
        config.inference_mode = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = peft.PeftModel(model, config, autocast_adapter_dtype=exact)
            result = tuned.load_adapter(
                str(adapter),
                "default",
                torch_device="cpu",
                autocast_adapter_dtype=exact,
            )
            kept = peft.get_peft_model_state_dict(tuned, save_embedding_layers=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UsageFault(
            f"PEFT does not load it: {error}",
            where=str(adapter),
            cure="repair the adapter, or train it again for this base",
        ) from error
    file = TensorFile(adapter / "adapter_model.safetensors")
    lost = list(result.missing_keys) + list(result.unexpected_keys)
    for name in file.tensors:
        if name in kept:
            # Rounded once to the dtype of the arithmetic, which is exact when it
            # is no narrower than the file's.
            stored = torch.from_numpy(file.array(name).astype(np.float32))
            if not torch.equal(stored.to(kept[name].dtype), kept[name]):
                lost.append(name)
    if len(kept) > len(file.tensors):  # PEFT may rename, but not add
        lost += sorted(set(kept) - set(file.tensors))
    if lost:
        raise UsageFault(
            f"{len(set(lost))} tensors missing, unexpected or not taken, "
            f"first {lost[0]}",
            where=str(adapter),
            cure="the adapter is for another base, or its file is incomplete",
        )
    return tuned.eval()


def _versions() -> dict[str, str]:
    """Versions of the reference's packages.

    :raises UsageFault: one is not installed.
    """
    try:
        import peft  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UsageFault(
            f"no package {error.name!r}",
            where="reference",
            cure="install the extra: pip install -e '.[reference]' in the checkout",
        ) from error
    return {name: version(name) for name in PACKAGES}

"""Adapter folders that are damaged or unfit, each in one way."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from typing import Literal

import numpy as np

from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import PREFIX
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import tensor_of
from harness.artifacts.forge.writer import Draft
from harness.artifacts.forge.writer import with_header
from harness.artifacts.forge.writer import write_folder


__all__ = ["Damaged", "damaged"]


@dataclass(frozen=True, eq=False)
class Damaged:
    """An adapter that a board must refuse, or survive.

    :param requirement: `R40` structurally unfit or damaged, `R42` not finite.
    :param says: what a good message would mention.
    """

    name: str
    requirement: Literal["R40", "R42"]
    says: str
    files: Callable[[], Mapping[str, bytes]] = field(repr=False)

    def make(self, target: Path) -> Path:
        """Write the folder.

        :raises UsageFault: `target` is not a new or empty folder.
        """
        return write_folder(target, self.files())


def damaged(adapter: Adapter, reserved_rank: int) -> list[Damaged]:
    """Every damage, done to this adapter.

    :raises UsageFault: the adapter is not sound.
    """
    draft = Draft.of(adapter)
    made: list[Damaged] = []
    for requirement, cases in (
        ("R40", _cut(draft)),
        ("R40", _headers(draft)),
        ("R40", _configs(draft)),
        ("R40", _variants(draft)),
        ("R40", _tensors(draft, reserved_rank)),
        ("R42", _values(draft)),
    ):
        made += [Damaged(n, requirement, s, f) for n, s, f in cases]  # type: ignore[arg-type]
    return made


Case = tuple[str, str, Callable[[], Mapping[str, bytes]]]


def _with_weights(draft: Draft, change: Callable[[bytes], bytes]) -> dict[str, bytes]:
    files = draft.files()
    return {**files, WEIGHTS: change(files[WEIGHTS])}


def _data_start(raw: bytes) -> int:
    return 8 + int(struct.unpack("<Q", raw[:8])[0])


def _cut(draft: Draft) -> Iterator[Case]:
    """The weights end too early, or are not there."""
    cuts: tuple[tuple[str, Callable[[bytes], int]], ...] = (
        ("empty", lambda raw: 0),
        ("cut-in-length", lambda raw: 5),
        ("cut-in-header", lambda raw: 8 + (_data_start(raw) - 8) // 2),
        ("cut-behind-header", _data_start),
        ("cut-in-data", lambda raw: (_data_start(raw) + len(raw)) // 2),
        ("cut-by-a-byte", lambda raw: len(raw) - 1),
    )
    for name, end in cuts:
        yield name, "cut off", partial(_with_weights, draft, partial(_head, end))
    yield (
        "bytes-too-many",
        "bytes behind the last tensor",
        partial(_with_weights, draft, lambda raw: raw + bytes(64)),
    )
    yield (
        "no-weights",
        WEIGHTS,
        lambda: {CONFIG: draft.files()[CONFIG]},
    )

    yield (
        "pickle-only",
        WEIGHTS,
        # The start of a zip archive, as torch.save writes it.
        lambda: {CONFIG: draft.files()[CONFIG], "adapter_model.bin": b"PK\3\4" * 64},
    )


def _head(end: Callable[[bytes], int], raw: bytes) -> bytes:
    return raw[: end(raw)]


def _headers(draft: Draft) -> Iterator[Case]:
    """The header lies."""
    for name, length in (("header-huge", 1 << 62), ("header-too-long", 1 << 31)):
        yield (
            name,
            "header",
            partial(_with_weights, draft, partial(_relength, length)),
        )
    yield (
        "header-not-json",
        "header",
        partial(_with_weights, draft, lambda raw: raw[:8] + b"<" + raw[9:]),
    )

    def edited(change: Callable[[dict[str, Any], str], None]) -> dict[str, bytes]:
        def edit(raw: bytes) -> bytes:
            start = _data_start(raw)
            header = json.loads(raw[8:start])
            change(header, list(header)[-1])  # the last tensor
            return with_header(header, raw[start:])

        return _with_weights(draft, edit)

    def overlap(header: dict[str, Any], last: str) -> None:
        first, end = header[last]["data_offsets"]
        header[last]["data_offsets"] = [first - 4, end - 4]

    def outside(header: dict[str, Any], last: str) -> None:
        first, end = header[last]["data_offsets"]
        header[last]["data_offsets"] = [first + (1 << 40), end + (1 << 40)]

    def vast(header: dict[str, Any], last: str) -> None:
        header[last]["shape"] = [1 << 31, 1 << 31]

    yield "offsets-overlap", "overlap", partial(edited, overlap)
    yield "offsets-outside", "outside the file", partial(edited, outside)
    yield "shape-vast", "shape", partial(edited, vast)


def _relength(length: int, raw: bytes) -> bytes:
    return struct.pack("<Q", length) + raw[8:]


def _configs(draft: Draft) -> Iterator[Case]:
    """The configuration is missing or says what cannot be."""
    files = draft.files
    yield "no-config", CONFIG, lambda: {WEIGHTS: files()[WEIGHTS]}
    texts = (
        ("config-empty", b""),
        ("config-cut", files()[CONFIG][: len(files()[CONFIG]) // 2]),
        ("config-not-an-object", b"[]\n"),
        ("config-binary", bytes(range(128, 256))),
    )
    for name, text in texts:
        yield name, CONFIG, partial(_with_config, draft, text)
    # PEFT's default for r is 8: made where 8 is wrong, so that a reader with the
    # default is refused by the shapes.
    rank = max(part.rank for part in draft.parts.values())
    rank += rank == 8
    uniform = draft.each(lambda path, q: q.padded(rank, draft.scale(path) * rank))
    uniform = replace(uniform, rslora=False)
    yield "config-without-r", "r", partial(_fields, uniform, {}, "r")
    values: tuple[tuple[str, str, Any], ...] = (
        ("rank-zero", "r", 0),
        ("rank-negative", "r", -8),
        ("rank-text", "r", "8"),
        ("alpha-text", "lora_alpha", "sixteen"),
        ("alpha-infinite", "lora_alpha", float("inf")),
        ("not-lora", "peft_type", "IA3"),
    )
    for name, key, value in values:
        yield name, key, partial(_fields, draft, {key: value})


def _with_config(draft: Draft, text: bytes) -> dict[str, bytes]:
    return {**draft.files(), CONFIG: text}


def _fields(
    draft: Draft, change: Mapping[str, Any], less: str = ""
) -> dict[str, bytes]:
    fields = {k: v for k, v in draft.fields().items() if k != less}
    return draft.files(fields={**fields, **change})


def _variants(draft: Draft) -> Iterator[Case]:
    """More than plain LoRA."""
    path, part = next(iter(draft.parts.items()))
    out = np.full(part.b.shape[0], 0.5, part.b.dtype)
    stem = PREFIX + path
    wide = np.zeros((64, part.a.shape[1]), part.a.dtype)
    cases: tuple[tuple[str, str, dict[str, Any], dict[str, np.ndarray]], ...] = (
        ("dora", "DoRA", {"use_dora": True}, {f"{stem}.lora_magnitude_vector": out}),
        ("dora-flag-only", "DoRA", {"use_dora": True}, {}),
        (
            "dora-vector-only",
            "lora_magnitude_vector",
            {},
            {f"{stem}.lora_magnitude_vector": out},
        ),
        ("bias", "bias", {"bias": "lora_only"}, {f"{stem}.base_layer.bias": out}),
        ("lora-bias", "lora_bias", {"lora_bias": True}, {f"{stem}.lora_B.bias": out}),
        (
            "modules-to-save",
            "modules_to_save",
            {"modules_to_save": ["lm_head"]},
            {f"{PREFIX}lm_head.weight": wide},
        ),
    )
    for name, says, change, extra in cases:
        yield name, says, partial(_extended, draft, change, extra)


def _extended(
    draft: Draft, change: Mapping[str, Any], extra: Mapping[str, np.ndarray]
) -> dict[str, bytes]:
    return draft.files(
        fields={**draft.fields(), **change}, tensors={**draft.tensors(), **extra}
    )


def _tensors(draft: Draft, reserved: int) -> Iterator[Case]:
    """Sound files whose tensors do not fit the slots.

    The last module is the harmed one: a loader that writes as it reads has written
    the others by then.
    """
    path, part = list(draft.parts.items())[-1]
    a, b = tensor_of(path, "A"), tensor_of(path, "B")
    more = replace(part, a=np.pad(part.a, ((0, 0), (0, 2))))
    yield "shape-a", a, draft.on({**draft.parts, path: more}).files
    more = replace(part, b=np.pad(part.b, ((0, 2), (0, 0))))
    yield "shape-b", b, draft.on({**draft.parts, path: more}).files
    long = np.pad(part.b, ((0, 0), (0, 1)))
    yield "ranks-disagree", "rank", partial(_replaced, draft, {b: long})
    yield "a-transposed", a, partial(_replaced, draft, {a: part.a.T})
    flat = part.a.reshape(-1)
    yield "a-flat", a, partial(_replaced, draft, {a: flat})
    yield "int8", "I8", partial(_replaced, draft, {b: np.ones(part.b.shape, np.int8)})
    rank = reserved + 1
    over = replace(
        draft.each(lambda p, q: q.padded(max(rank, q.rank), draft.scale(p) * rank)),
        rslora=False,
    )
    yield "rank-over-reserve", f"rank {rank}", over.files
    one = replace(
        draft.plain() if draft.rslora else draft,
        parts={**draft.parts, path: over.parts[path]},
    )
    yield "rank-over-reserve-in-one-module", f"rank {rank}", one.files
    typo = {n.replace(PREFIX, "base_model.modle.", 1): v for n, v in _items(draft)}
    yield "prefix-typo", "base_model.modle", partial(_instead, draft, typo)
    bare = {n.replace(PREFIX, "", 1): v for n, v in _items(draft)}
    yield "no-prefix", "base_model.model", partial(_instead, draft, bare)
    extra = {"layers.0.unknown": np.ones(4, np.float32)}
    yield "tensor-too-many", "layers.0.unknown", partial(_extended, draft, {}, extra)
    for factor, name in (("a", b), ("b", a)):
        rest = {n: v for n, v in _items(draft) if n != name}
        other = a if name == b else b
        yield f"{factor}-without-partner", other, partial(_instead, draft, rest)
    beyond = _layer_of(path, 9999)
    yield (
        "layer-beyond",
        "layer 9999",
        draft.on({**draft.parts, beyond: part}).files,
    )
    place = f"{path.rpartition('.')[0]}.q_norm"
    yield "module-without-slot", place, draft.on({**draft.parts, place: part}).files


def _layer_of(path: str, layer: int) -> str:
    stem, _, rest = path.partition("layers.")
    return f"{stem}layers.{layer}.{rest.partition('.')[2]}"


def _items(draft: Draft) -> list[tuple[str, np.ndarray]]:
    return list(draft.tensors().items())


def _replaced(draft: Draft, values: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    return draft.files(tensors={**draft.tensors(), **values})


def _instead(draft: Draft, tensors: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    return draft.files(tensors=tensors)


def _values(draft: Draft) -> Iterator[Case]:
    """Values that are not finite, now or once they are scaled."""
    path, part = list(draft.parts.items())[-1]
    for name, factor, value in (
        ("nan-in-b", "B", np.nan),
        ("nan-in-a", "A", np.nan),
        ("inf-in-a", "A", np.inf),
        ("inf-in-b", "B", -np.inf),
    ):
        tensor = tensor_of(path, factor)
        values = (part.a if factor == "A" else part.b).copy()
        values[-1, -1] = value
        yield name, tensor, partial(_replaced, draft, {tensor: values})
    if draft.scale(path) == 0:
        return  # nothing that is multiplied by zero overflows
    # Finite in the file; with a scale of 2^10 it passes float32's 2^128.
    large = part.b.astype(np.float32)
    large[-1, -1] = 2.0**120
    huge = replace(part, b=large, alpha=part.alpha * 2.0**10 / draft.scale(path))
    yield (
        "overflow-with-scale",
        "overflow",
        replace(draft, parts={**draft.parts, path: huge}).files,
    )

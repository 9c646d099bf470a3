"""Who a base and an adapter are: digests of what makes their logits.

The digest of a base does not depend on how it is cut into files, so a resharded
copy is the same base; that of an adapter is over its two files as they are,
because those bytes are what a board is given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UsageFault
from harness.golden.tensors import TensorFile


__all__ = [
    "BaseIdentity",
    "adapter_digest",
    "base_identity",
    "config_digest",
    "lm_head_digest",
    "lm_head_of",
    "weights_digest",
]

# Fields that change the function a checkpoint computes. Others (dtype, version of
# the writer, dropout, cache switches) may differ between two copies of one model.
FIELDS = frozenset(
    """
    architectures attention_bias attention_multiplier deepstack_visual_indexes depth
    embedding_multiplier final_logit_softcapping head_dim hidden_act hidden_size
    image_token_id in_channels intermediate_size layer_types logits_scaling mlp_bias
    model_type num_attention_heads num_heads num_hidden_layers num_key_value_heads
    num_position_embeddings out_hidden_size patch_size quantization_config
    residual_multiplier rms_norm_eps sliding_window spatial_merge_size
    temporal_patch_size text_config use_sliding_window video_token_id vision_config
    vision_end_token_id vision_start_token_id vocab_size
    """.split()
)
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class BaseIdentity:
    """sha256 in hex of the four parts of a base."""

    weights: str
    tokenizer: str
    chat_template: str
    config: str

    def to_json(self) -> dict[str, str]:
        """JSON form."""
        return asdict(self)


def base_identity(folder: Path) -> BaseIdentity:
    """The identity of a checkpoint in Hugging Face form.

    :raises UsageFault: a file is missing, empty, truncated or malformed.
    """
    return BaseIdentity(
        weights=weights_digest(folder),
        tokenizer=_tokenizer_digest(folder),
        chat_template=_template_digest(folder),
        config=config_digest(folder),
    )


def weights_digest(folder: Path) -> str:
    """sha256 over sorted names, dtypes, shapes and bytes of all tensors."""
    files = _tensor_files(folder)
    digest = hashlib.sha256()
    for name in sorted(files):
        _add_tensor(digest.update, files[name], name)
    return digest.hexdigest()


def config_digest(folder: Path) -> str:
    """sha256 of the canonical JSON of the architecture's fields of config.json."""
    fields = _architecture(_json(folder / "config.json"))
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def lm_head_of(folder: Path) -> np.ndarray:
    """The output projection in the checkpoint's dtype, `[vocab, hidden]`."""
    file, name = _lm_head(folder)
    return file.array(name)


def lm_head_digest(folder: Path) -> str:
    """sha256 over dtype, shape and bytes of the output projection."""
    file, name = _lm_head(folder)
    digest = hashlib.sha256()
    tensor = file.tensors[name]
    digest.update(f"{tensor.dtype}{list(tensor.shape)}\n".encode())
    for piece in file.chunks(name):
        digest.update(piece)
    return digest.hexdigest()


def adapter_digest(folder: Path) -> str:
    """sha256 over names, lengths and bytes of an adapter's two files.

    :raises UsageFault: a file is missing, empty or truncated.
    """
    TensorFile(folder / ADAPTER_FILES[1])
    _json(folder / ADAPTER_FILES[0])
    digest = hashlib.sha256()
    for name in ADAPTER_FILES:
        data = folder / name
        digest.update(f"{name}\n{data.stat().st_size}\n".encode())
        with data.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def _tensor_files(folder: Path) -> dict[str, TensorFile]:
    """The file of each tensor of a checkpoint."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        file = TensorFile(folder / "model.safetensors")
        return dict.fromkeys(file.tensors, file)
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise _fault(index, "has no weight_map")
    if any(Path(str(shard)).name != shard for shard in places.values()):
        raise _fault(index, "names a file outside its folder")
    opened = {shard: TensorFile(folder / shard) for shard in set(places.values())}
    for name, shard in places.items():
        if name not in opened[shard].tensors:
            raise _fault(folder / shard, f"lacks {name!r}, which the index promises")
    return {name: opened[shard] for name, shard in places.items()}


def _lm_head(folder: Path) -> tuple[TensorFile, str]:
    files = _tensor_files(folder)
    config = _json(folder / "config.json")
    text = config.get("text_config")
    tied = config.get("tie_word_embeddings", False) or (
        isinstance(text, dict) and text.get("tie_word_embeddings", False)
    )
    # A tied checkpoint may still carry a copy of the head; both are the same then.
    for name in HEADS + (EMBEDDINGS if tied else ()):
        if name in files:
            return files[name], name
    raise _fault(folder, "the checkpoint has no lm_head")


def _add_tensor(update: Callable[[bytes], None], file: TensorFile, name: str) -> None:
    tensor = file.tensors[name]
    update(f"{name}\n{tensor.dtype}{list(tensor.shape)}\n".encode())
    for piece in file.chunks(name):
        update(piece)


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that matter, nested ones included, the rope in one form."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key in FIELDS and value is not None:
            nested = key in ("text_config", "vision_config") and isinstance(value, dict)
            kept[key] = _architecture(value) if nested else value
    # transformers 5 writes `rope_parameters`, earlier ones two fields.
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if "rope_theta" in config:
        rope["rope_theta"] = config["rope_theta"]
    rope.setdefault("rope_type", rope.pop("type", "default"))
    # The vision tower's rope is fixed in code and written by transformers 5 only.
    if "num_hidden_layers" in config:
        kept["rope"] = rope
    return kept


def _tokenizer_digest(folder: Path) -> str:
    names = ["tokenizer.json"]
    if not (folder / names[0]).is_file() and (folder / "vocab.json").is_file():
        names = ["vocab.json", "merges.txt"]
    digest = hashlib.sha256()
    for name in names:
        digest.update(_bytes(folder / name))
    return digest.hexdigest()


def _template_digest(folder: Path) -> str:
    """sha256 of the template's text, in whichever file it is kept."""
    if (folder / "chat_template.jinja").is_file():
        return hashlib.sha256(_bytes(folder / "chat_template.jinja")).hexdigest()
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            text = _json(folder / name).get("chat_template")
            if text:
                value = text if isinstance(text, str) else json.dumps(text)
                return hashlib.sha256(value.encode()).hexdigest()
    raise _fault(folder / "chat_template.jinja", "the base has no chat template")


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _fault(path, f"cannot read: {error.strerror or error}") from error
    if not data:
        raise _fault(path, "the file is empty")
    return data


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_bytes(path))
    except ValueError as error:
        raise _fault(path, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _fault(path, "not a JSON object")
    return value


def _fault(path: Path, cause: str) -> UsageFault:
    return UsageFault(cause, where=str(path), cure="copy it again from its source")

"""The simulated BM1688's compiler: a Hugging Face checkpoint -> a model file.

Runs on the host as `python -m harness.simulator.bm1688.convert BASE OUT`; what it
refuses is one line on stderr and exit status 2. Beside OUT it writes OUT.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from typing import BinaryIO
from typing import NoReturn

import numpy as np

import harness
from harness.errors import ConversionRefused
from harness.errors import HarnessError
from harness.errors import UsageFault
from harness.golden.identity import base_identity
from harness.golden.tensors import TensorFile
from harness.simulator.bm1688.modelfile import ALIGN
from harness.simulator.bm1688.modelfile import FORMAT
from harness.simulator.bm1688.modelfile import MAGIC
from harness.simulator.bm1688.modelfile import STORED
from harness.simulator.decoder import LINEARS
from harness.simulator.decoder import Architecture
from harness.simulator.decoder import bf16_bits


__all__ = ["convert", "main"]

PREFIX = "model.language_model"
HEAD = "lm_head.weight"
MODEL = "Qwen3VLForConditionalGeneration"
# The vendor's manual gives 256 as the largest rank it reserves.
MOST_RANK = 256


def convert(
    base: Path,
    out: Path,
    *,
    reserved_rank: int = 32,
    quantize: str = "bf16",
    max_input: int = 96,
    max_context: int = 160,
) -> None:
    """Compile `base` into `out` and its sidecar `out`.json, each whole or not at all.

    :param reserved_rank: rows of every low-rank slot; 0 compiles without slots.
    :param quantize: dtype of weights, slots and states, `bf16` or `f32`.
    :param max_input: tokens of the prefill nets.
    :param max_context: rows of the decode nets' KV cache.
    :raises ConversionRefused: the base or an option is none this compiler takes.
    :raises UsageFault: the base is missing, damaged or incomplete.
    """
    if not 0 <= reserved_rank <= MOST_RANK:
        raise ConversionRefused(
            f"reserved rank {reserved_rank}", cure=f"give 1 to {MOST_RANK}, 0 for none"
        )
    if not 1 <= max_input <= max_context:
        raise ConversionRefused(
            f"{max_input} tokens of input in a context of {max_context}",
            cure="give 1 <= max-input <= max-context",
        )
    config = _config(base)
    architecture = _architecture(base, config)
    files = _files(base)
    sources = _sources(base, architecture, config, files)
    identity = base_identity(base)
    header: dict[str, Any] = {
        "format": FORMAT,
        "converter": harness.__version__,
        "architecture": asdict(architecture),
        "prefix": PREFIX,
        "quantize": quantize,
        "reserved_rank": reserved_rank,
        "max_input": max_input,
        "max_context": max_context,
        "digests": {
            "weights": identity.weights,
            "tokenizer": identity.tokenizer,
            "chat_template": identity.chat_template,
            "config": identity.config,
        },
    }
    entries, head = _layout(header, sources, files, quantize)
    sidecar = {k: v for k, v in header.items() if k not in ("architecture", "tensors")}
    with _replacing(out) as file:
        digest = _Digest(file)
        digest.write(head)
        for entry in entries:
            digest.pad(entry["offset"])
            source = sources[entry["name"]]
            digest.write(_stored(files[source].array(source), quantize).tobytes())
        # The sidecar first: a model that is there has one, and names its digest.
        sidecar["sha256"] = digest.hexdigest
        with _replacing(out.with_name(out.name + ".json")) as beside:
            beside.write(json.dumps(sidecar, indent=2, sort_keys=True).encode() + b"\n")


def _config(base: Path) -> dict[str, Any]:
    path = base / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageFault(
            f"cannot read: {error.strerror}",
            where=str(path),
            cure="give the folder of a checkpoint",
        ) from error
    except ValueError as error:
        raise UsageFault(f"not JSON: {error}", where=str(path)) from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config"), dict):
        raise _refusal(path, "no text_config", f"only {MODEL} is compiled")
    return config


def _architecture(base: Path, config: dict[str, Any]) -> Architecture:
    path, text = base / "config.json", config["text_config"]
    if config.get("architectures") != [MODEL]:
        raise _refusal(
            path,
            f"architecture {config.get('architectures')}",
            f"only {MODEL} is compiled",
        )
    if text.get("attention_bias") or text.get("mlp_bias"):
        raise _bias(path)
    if "quantization_config" in config or "quantization_config" in text:
        raise _refusal(path, "the checkpoint is quantised", "give the unquantised one")
    if text.get("hidden_act") != "silu":
        raise _refusal(path, f"hidden_act {text.get('hidden_act')!r}", "silu is known")
    rope = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
    if (
        rope.get("rope_type", rope.get("type", "default")) not in ("default", "mrope")
        or rope.get("mrope_interleaved") is not True
    ):
        raise _refusal(
            path, f"rope_scaling {rope}", "default interleaved M-RoPE is known"
        )
    try:
        temporal, height, width = (int(n) for n in rope["mrope_section"])
        architecture = Architecture(
            layers=int(text["num_hidden_layers"]),
            hidden=int(text["hidden_size"]),
            intermediate=int(text["intermediate_size"]),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_dim=int(text["head_dim"]),
            vocab=int(text["vocab_size"]),
            eps=float(text["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or text["rope_theta"]),
            mrope_section=(temporal, height, width),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _refusal(path, f"unreadable text_config: {error!r}") from error
    a = architecture
    sound = (
        min(a.layers, a.hidden, a.intermediate, a.kv_heads, a.head_dim, a.vocab) > 0
        and a.heads % a.kv_heads == 0
        and a.head_dim % 2 == 0
        and sum(a.mrope_section) == a.head_dim // 2
    )
    if not sound:
        raise _refusal(path, f"sizes do not fit together: {a}")
    return architecture


def _files(base: Path) -> dict[str, TensorFile]:
    """The file of each tensor of the checkpoint."""
    index = base / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            shards = [base / Path(n).name for n in names]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageFault("no index of shards", where=str(index)) from error
    else:
        shards = [base / names[0]]
    return {t: f for f in map(TensorFile, shards) for t in f.tensors}


def _sources(
    base: Path,
    architecture: Architecture,
    config: dict[str, Any],
    files: dict[str, TensorFile],
) -> dict[str, str]:
    """Tensors of the model in order, each with the checkpoint's name of it."""
    a = architecture
    shapes: dict[str, tuple[int, ...]] = {
        f"{PREFIX}.embed_tokens.weight": (a.vocab, a.hidden)
    }
    for layer in range(a.layers):
        place = f"{PREFIX}.layers.{layer}"
        for module in LINEARS:
            width, out = a.width(module)
            shapes[f"{place}.{module}.weight"] = (out, width)
        for norm, extent in (
            ("input_layernorm", a.hidden),
            ("post_attention_layernorm", a.hidden),
            ("self_attn.q_norm", a.head_dim),
            ("self_attn.k_norm", a.head_dim),
        ):
            shapes[f"{place}.{norm}.weight"] = (extent,)
    shapes[f"{PREFIX}.norm.weight"] = (a.hidden,)
    shapes[HEAD] = (a.vocab, a.hidden)
    if any(n.startswith(f"{PREFIX}.layers.") and n.endswith(".bias") for n in files):
        raise _bias(base)
    sources = {name: name for name in shapes}
    tied = config.get("tie_word_embeddings") or config["text_config"].get(
        "tie_word_embeddings"
    )
    if HEAD not in files and tied:
        sources[HEAD] = f"{PREFIX}.embed_tokens.weight"
    missing = sorted({s for s in sources.values() if s not in files})
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise _refusal(base, f"tensor {missing[0]} is missing{more}")
    for name, source in sources.items():
        tensor = files[source].tensors[source]
        if tensor.shape != shapes[name]:
            raise _refusal(
                files[source].path,
                f"{source} is {list(tensor.shape)}, not {list(shapes[name])}",
            )
        if tensor.dtype not in ("BF16", "F16", "F32"):
            raise _refusal(files[source].path, f"{source} is {tensor.dtype}")
    return sources


def _layout(
    header: dict[str, Any],
    sources: dict[str, str],
    files: dict[str, TensorFile],
    quantize: str,
) -> tuple[list[dict[str, Any]], bytes]:
    """Where each array lies, and the file's head."""
    entries: list[dict[str, Any]] = [
        {
            "name": name,
            "dtype": quantize,
            "shape": list(files[source].tensors[source].shape),
            "offset": 0,
        }
        for name, source in sources.items()
    ]
    header["tensors"] = entries
    # Offsets are 64-bit numbers of at most 20 digits: room for all of them first.
    start = 16 + len(json.dumps(header)) + 20 * len(entries)
    for entry in entries:
        entry["offset"] = start = -(-start // ALIGN) * ALIGN
        start += int(np.prod(entry["shape"])) * STORED[quantize].itemsize
    text = json.dumps(header).encode()
    return entries, MAGIC + len(text).to_bytes(8, "little") + text


def _stored(array: np.ndarray, quantize: str) -> np.ndarray:
    """A checkpoint's tensor in the stored dtype."""
    if quantize == "bf16" and array.dtype.itemsize == 2 and array.dtype.kind != "f":
        return array.view("<u2")  # bf16 already; ml_dtypes' kind is V
    values = array.astype("<f4")
    return values if quantize == "f32" else bf16_bits(values)


class _Digest:
    """A file that knows its length and sha256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._length = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._length += len(data)

    def pad(self, offset: int) -> None:
        """Zeros up to `offset`."""
        self.write(bytes(offset - self._length))

    @property
    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when all went well."""
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageFault(
            f"cannot write: {error.strerror}", where=str(path), cure="give another OUT"
        ) from error
    try:
        with os.fdopen(number, "wb") as file:
            yield file
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise UsageFault(
                f"cannot write: {error.strerror}", where=str(path)
            ) from error
        raise


def _bias(path: Path) -> ConversionRefused:
    return _refusal(
        path, "linears with bias cannot carry low-rank slots", "give a base without"
    )


def _refusal(path: Path, cause: str, cure: str = "") -> ConversionRefused:
    return ConversionRefused(cause, where=str(path), cure=cure)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for everything else that is refused."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = _Parser(prog="convert", description=__doc__)
    parser.add_argument("base", type=Path, help="Folder of the checkpoint")
    parser.add_argument("out", type=Path, help="Model file to write")
    parser.add_argument("--reserved-rank", type=int, default=32)
    parser.add_argument("--quantize", choices=sorted(STORED), default="bf16")
    parser.add_argument("--max-input", type=int, default=96)
    parser.add_argument("--max-context", type=int, default=160)
    options = vars(parser.parse_args(arguments))
    try:
        convert(options.pop("base"), options.pop("out"), **options)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The simulated RK1828's compiler: a Hugging Face checkpoint -> a folder in w4a16.

Runs on the host as `python -m harness.simulator.rk1828.convert BASE OUT`; what it
refuses is one line on stderr and exit status 2. OUT holds `board/` and
`dequantised/`, the checkpoint whose weights are those the board computes with;
beside it lies OUT.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness.artifacts.content import Content
from harness.artifacts.content import files
from harness.artifacts.content import folder_digest
from harness.artifacts.forge.writer import with_header
from harness.errors import ConversionRefused
from harness.golden.identity import base_identity
from harness.simulator.checkpoint import PREFIX
from harness.simulator.checkpoint import Checkpoint
from harness.simulator.decoder import LINEARS
from harness.simulator.headed import layout
from harness.simulator.headed import shape_of
from harness.simulator.rk1828.modelfile import CHUNK
from harness.simulator.rk1828.modelfile import FORMAT
from harness.simulator.rk1828.modelfile import GRAPH
from harness.simulator.rk1828.modelfile import KV_GROUP
from harness.simulator.rk1828.modelfile import KV_RESIDUAL
from harness.simulator.rk1828.modelfile import WEIGHT
from harness.simulator.rk1828.quantise import GROUP
from harness.simulator.rk1828.quantise import fp16
from harness.simulator.rk1828.quantise import int4
from harness.simulator.writing import Parser
from harness.simulator.writing import Written
from harness.simulator.writing import new_folder
from harness.simulator.writing import refusing
from harness.simulator.writing import write_sidecar


__all__ = ["convert", "main"]

EMBEDDING = f"{PREFIX}.embed_tokens.weight"
# `RKNN3_MAX_KVCACHE_LEN_GROUPS` of the vendor's header.
MOST_LENGTHS = 16
CONTEXT_LENGTHS = (192, 320)
# Beside the weights a checkpoint keeps its tokenizer and templates in these.
COPIED = frozenset((".json", ".jinja", ".txt"))


def convert(
    base: Path, out: Path, *, context_lengths: Sequence[int] = CONTEXT_LENGTHS
) -> None:
    """Compile `base` into the folder `out` and `out`.json, whole or not at all.

    Tensor by tensor: the largest one is held in memory, not the checkpoint.

    :param context_lengths: rows of the KV cache that sessions can ask for.
    :raises ConversionRefused: the base or an option is none this compiler takes.
    :raises UsageFault: the base is missing, damaged or incomplete.
    """
    model = _Model(base)
    header: dict[str, Any] = {
        "format": FORMAT,
        "converter": harness.__version__,
        "scheme": "w4a16",
        "context_lengths": _sorted(context_lengths, model.checkpoint.config),
        "chunk": CHUNK,
        "kv_group": KV_GROUP,
        "kv_residual": KV_RESIDUAL,
        "digests": base_identity(base).to_json(),
    }
    with new_folder(out) as making:
        board, dequantised = making / "board", making / "dequantised"
        board.mkdir()
        dequantised.mkdir()
        architecture = asdict(model.checkpoint.architecture)
        graph = {**header, "architecture": architecture, "prefix": PREFIX}
        head = layout(GRAPH, graph, [])
        (board / "model.rknn").write_bytes(head)
        model.write_weights(board / "model.weight", hashlib.sha256(head).hexdigest())
        (board / "embed.bin").write_bytes(model.values(EMBEDDING).tobytes())
        model.write_checkpoint(dequantised)
        sidecar = {
            **header,
            "dequantised": base_identity(dequantised).to_json(),
            "files": {n: Content.of(p).digest for n, p in files(making).items()},
            "sha256": folder_digest(making),
        }
        # The sidecar first: a model that is there has one, and names its digest.
        write_sidecar(out, sidecar)


def _sorted(lengths: Sequence[int], config: Mapping[str, Any]) -> list[int]:
    """The context lengths in order."""
    most = config["text_config"].get("max_position_embeddings", 0)
    if not 1 <= len(lengths) <= MOST_LENGTHS or len(set(lengths)) != len(lengths):
        raise ConversionRefused(
            f"context lengths {list(lengths)}",
            cure=f"give 1 to {MOST_LENGTHS} different ones",
        )
    for length in lengths:
        if not 1 <= length <= most:
            raise ConversionRefused(
                f"context length {length}",
                cure=f"give 1 to {most}, the base's max_position_embeddings",
            )
    return sorted(lengths)


class _Model:
    """A checkpoint with the values that the board gives its tensors."""

    def __init__(self, base: Path) -> None:
        self.checkpoint = Checkpoint(base)
        self._base = base
        architecture = self.checkpoint.architecture
        self._linears = {
            f"{PREFIX}.layers.{layer}.{module}.weight"
            for layer in range(architecture.layers)
            for module in LINEARS
        }
        for module in LINEARS:
            width, _ = architecture.width(module)
            if width % GROUP:
                raise self._refusal(
                    f"{module} has {width} inputs",
                    f"int4 in groups needs a multiple of {GROUP}",
                )
        if architecture.head_dim % KV_GROUP:
            raise self._refusal(
                f"head_dim is {architecture.head_dim}",
                f"the int4 KV cache needs a multiple of {KV_GROUP}",
            )
        for name, file in self.checkpoint.files.items():
            if (dtype := file.tensors[name].dtype) not in ("BF16", "F16", "F32"):
                raise self._refusal(f"{name} is {dtype}", "give an unquantised one")

    def values(self, name: str) -> np.ndarray:
        """A tensor of the checkpoint as the board computes with it, fp16.

        :raises ConversionRefused: it does not fit into fp16.
        """
        values = self._source(name)
        if name in self._linears:
            values = self._finite(int4(values).values, name)
        return values.astype("<f2")

    def _source(self, name: str) -> np.ndarray:
        """A tensor of the checkpoint, float32, after it was found to fit into fp16."""
        raw = self.checkpoint.files[name].array(name).astype(np.float32)
        self._finite(fp16(raw), name)
        return raw

    def _finite(self, values: np.ndarray, name: str) -> np.ndarray:
        if not np.isfinite(values).all():
            raise self._refusal(
                f"{name} has values that are not finite in fp16", "give another base"
            )
        return values

    def write_weights(self, path: Path, graph: str) -> None:
        """All of the model but the embedding, for the graph of this sha256."""
        tensors = [self._entry(name) for name in self.checkpoint.sources]
        tensors = [t for t in tensors if t["name"] != EMBEDDING]
        header = {"format": FORMAT, "graph": graph, "tensors": tensors}
        entries = [t[part] for t in tensors for part in _PARTS if part in t]
        head = layout(WEIGHT, header, entries)
        with path.open("wb") as file:
            written = Written(file)
            written.write(head)
            for tensor in tensors:
                for part, array in self._stored(tensor["name"]):
                    written.pad(tensor[part]["offset"])
                    written.write(array.tobytes())

    def _entry(self, name: str) -> dict[str, Any]:
        shape = self.checkpoint.shape(name)
        if name not in self._linears:
            return {"name": name, "values": shape_of("f16", *shape)}
        out, width = shape
        return {
            "name": name,
            "codes": shape_of("u8", out, width // 2),
            "scales": shape_of("f16", out, width // GROUP),
        }

    def _stored(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """The arrays of a tensor in the order of `_PARTS`."""
        if name not in self._linears:
            yield "values", self.values(self.checkpoint.sources[name])
            return
        quantised = int4(self._source(self.checkpoint.sources[name]))
        yield "codes", quantised.packed
        yield "scales", quantised.scales.astype("<f2")

    def write_checkpoint(self, folder: Path) -> None:
        """The checkpoint with the board's values, everything in fp16."""
        names = sorted(self.checkpoint.files)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in names:
            shape = self.checkpoint.files[name].tensors[name].shape
            start, end = end, end + 2 * int(np.prod(shape))
            header[name] = {
                "dtype": "F16",
                "shape": list(shape),
                "data_offsets": [start, end],
            }
        with (folder / "model.safetensors").open("wb") as file:
            file.write(with_header(header, b""))
            for name in names:
                file.write(self.values(name).tobytes())
        for path in sorted(self._base.iterdir()):
            if path.suffix in COPIED and path.is_file():
                shutil.copyfile(path, folder / path.name)
        # The shards are one file now.
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
        config = json.dumps(_as_fp16(self.checkpoint.config), indent=2)
        (folder / "config.json").write_text(config + "\n", encoding="utf-8")

    def _refusal(self, cause: str, cure: str) -> ConversionRefused:
        return ConversionRefused(cause, where=str(self._base), cure=cure)


_PARTS = ("values", "codes", "scales")


def _as_fp16(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that says float16, in its nested ones too."""
    changed = {
        key: _as_fp16(value) if key in ("text_config", "vision_config") else value
        for key, value in config.items()
        if key != "torch_dtype"  # transformers 4's name of the field
    }
    return {**changed, "dtype": "float16"}


def lengths(text: str) -> list[int]:
    """`192,320` as numbers; argparse shows this name for anything else."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = Parser(prog="convert", description=__doc__)
    parser.add_argument("base", type=Path, help="Folder of the checkpoint")
    parser.add_argument("out", type=Path, help="Folder to make")
    parser.add_argument(
        "--context-lengths",
        type=lengths,
        default=CONTEXT_LENGTHS,
        help="Rows of the KV cache that sessions can ask for, as 192,320",
    )
    options = vars(parser.parse_args(arguments))
    return refusing(partial(convert, **options))


if __name__ == "__main__":
    sys.exit(main())

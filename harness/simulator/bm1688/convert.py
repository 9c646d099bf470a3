"""The simulated BM1688's compiler: a Hugging Face checkpoint -> a model file.

Runs on the host as `python -m harness.simulator.bm1688.convert BASE OUT`; what it
refuses is one line on stderr and exit status 2. Beside OUT it writes OUT.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness.errors import ConversionRefused
from harness.golden.identity import base_identity
from harness.simulator.bm1688.modelfile import FORMAT
from harness.simulator.bm1688.modelfile import MAGIC
from harness.simulator.bm1688.modelfile import STORED
from harness.simulator.checkpoint import PREFIX
from harness.simulator.checkpoint import Checkpoint
from harness.simulator.headed import layout
from harness.simulator.headed import shape_of
from harness.simulator.precision import bf16_bits
from harness.simulator.writing import Parser
from harness.simulator.writing import Written
from harness.simulator.writing import refusing
from harness.simulator.writing import replacing
from harness.simulator.writing import write_sidecar


__all__ = ["convert", "main"]

# Adapters in use have ranks up to 256; more is a slip of the finger.
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
    checkpoint = Checkpoint(base)
    header: dict[str, Any] = {
        "format": FORMAT,
        "converter": harness.__version__,
        "architecture": asdict(checkpoint.architecture),
        "prefix": PREFIX,
        "quantize": quantize,
        "reserved_rank": reserved_rank,
        "max_input": max_input,
        "max_context": max_context,
        "digests": base_identity(base).to_json(),
    }
    sidecar = {k: v for k, v in header.items() if k != "architecture"}
    entries = [
        {"name": name, **shape_of(quantize, *checkpoint.shape(name))}
        for name in checkpoint.sources
    ]
    header["tensors"] = entries
    head = layout(MAGIC, header, entries)
    with replacing(out) as file:
        written = Written(file)
        written.write(head)
        for entry in entries:
            written.pad(entry["offset"])
            array = checkpoint.array(entry["name"])
            written.write(_stored(array, quantize).tobytes())
        # The sidecar first: a model that is there has one, and names its digest.
        write_sidecar(out, {**sidecar, "sha256": written.digest.hex()})


def _stored(array: np.ndarray, quantize: str) -> np.ndarray:
    """A checkpoint's tensor in the stored dtype."""
    if quantize == "bf16" and array.dtype.itemsize == 2 and array.dtype.kind != "f":
        return array.view("<u2")  # bf16 already; ml_dtypes' kind is V
    values = array.astype("<f4")
    return values if quantize == "f32" else bf16_bits(values)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = Parser(prog="convert", description=__doc__)
    parser.add_argument("base", type=Path, help="Folder of the checkpoint")
    parser.add_argument("out", type=Path, help="Model file to write")
    parser.add_argument("--reserved-rank", type=int, default=32)
    parser.add_argument("--quantize", choices=sorted(STORED), default="bf16")
    parser.add_argument("--max-input", type=int, default=96)
    parser.add_argument("--max-context", type=int, default=160)
    options = vars(parser.parse_args(arguments))
    return refusing(partial(convert, **options))


if __name__ == "__main__":
    sys.exit(main())

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
from harness.simulator.bm1688.checkpoint import PREFIX
from harness.simulator.bm1688.checkpoint import Checkpoint
from harness.simulator.bm1688.modelfile import ALIGN
from harness.simulator.bm1688.modelfile import FORMAT
from harness.simulator.bm1688.modelfile import MAGIC
from harness.simulator.bm1688.modelfile import STORED
from harness.simulator.precision import bf16_bits


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
    identity = base_identity(base)
    header: dict[str, Any] = {
        "format": FORMAT,
        "converter": harness.__version__,
        "architecture": asdict(checkpoint.architecture),
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
    entries, head = _layout(header, checkpoint, quantize)
    sidecar = {k: v for k, v in header.items() if k not in ("architecture", "tensors")}
    with _replacing(out) as file:
        digest = _Digest(file)
        digest.write(head)
        for entry in entries:
            digest.pad(entry["offset"])
            array = checkpoint.array(entry["name"])
            digest.write(_stored(array, quantize).tobytes())
        # The sidecar first: a model that is there has one, and names its digest.
        sidecar["sha256"] = digest.hexdigest
        with _replacing(out.with_name(out.name + ".json")) as beside:
            beside.write(json.dumps(sidecar, indent=2, sort_keys=True).encode() + b"\n")


def _layout(
    header: dict[str, Any], checkpoint: Checkpoint, quantize: str
) -> tuple[list[dict[str, Any]], bytes]:
    """Where each array lies, and the file's head."""
    entries: list[dict[str, Any]] = [
        {
            "name": name,
            "dtype": quantize,
            "shape": list(checkpoint.shape(name)),
            "offset": 0,
        }
        for name in checkpoint.sources
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

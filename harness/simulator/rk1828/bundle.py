"""The simulated RK1828's converter of adapters: PEFT folders -> one `.lora_weight`.

Runs on the host as `python -m harness.simulator.rk1828.bundle BASE OUT NAME=FOLDER`,
more of the last if wanted; what it refuses is one line on stderr and exit status 2.
Beside OUT it writes OUT.json.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import harness
from harness.artifacts.adapter import CONFIG
from harness.artifacts.adapter import WEIGHTS
from harness.artifacts.adapter import Adapter
from harness.artifacts.adapter import Module
from harness.artifacts.adapter import tensor_of
from harness.artifacts.finding import shown
from harness.artifacts.forge.writer import serialise
from harness.artifacts.model import Base
from harness.artifacts.model import place_of
from harness.errors import ConversionRefused
from harness.errors import UsageFault
from harness.golden.identity import adapter_digest
from harness.simulator.headed import layout
from harness.simulator.headed import shape_of
from harness.simulator.rk1828.bundlefile import FORMAT
from harness.simulator.rk1828.bundlefile import MAGIC
from harness.simulator.rk1828.bundlefile import MOST_NAME
from harness.simulator.rk1828.bundler import BITS
from harness.simulator.rk1828.bundler import Bundler
from harness.simulator.rk1828.bundler import Scheme
from harness.simulator.rk1828.bundler import Spelling
from harness.simulator.rk1828.quantise import METHODS
from harness.simulator.writing import Parser
from harness.simulator.writing import Written
from harness.simulator.writing import new_folder
from harness.simulator.writing import refusing
from harness.simulator.writing import replacing
from harness.simulator.writing import scratch
from harness.simulator.writing import write_sidecar


__all__ = ["bundle", "main"]

PEFT, FLOAT16 = Spelling(), Scheme()
# Twice the largest rank in common use; no document names a limit.
MOST_RANK = 64


def bundle(
    base: Path,
    out: Path,
    folders: Mapping[str, Path],
    *,
    scheme: Scheme = FLOAT16,
    spelling: Spelling = PEFT,
    dequantised: Path | None = None,
    most_rank: int = MOST_RANK,
    make: type[Bundler] = Bundler,
) -> None:
    """Convert adapters into `out` and `out`.json, each whole or not at all.

    :param folders: PEFT folders by the adapters' names, in the bundle's order.
    :param spelling: how the folders name their tensors.
    :param dequantised: new folder for the adapters as the board holds them: PEFT
        folders by name, their configuration as it was and the factors in fp16.
    :param most_rank: ranks above it are refused.
    :param make: the converter.
    :raises ConversionRefused: an adapter is damaged or does not fit the base.
    :raises UsageFault: the base cannot be read, or something not be written.
    """
    bundler = make(Base.open(base), out, scheme, most_rank)
    folders = bundler.admit(folders)
    with scratch(out) as work:
        adapters = {}
        for number, (name, folder) in enumerate(folders.items()):
            with _about(name):
                source = spelling.as_peft(folder, work / str(number))
                adapters[name] = bundler.open(name, source)
        sidecar: dict[str, Any] = {
            "format": FORMAT,
            "converter": harness.__version__,
            "digests": bundler.base.identity.to_json(),
            "dtype": bundler.scheme.dtype,
            "method": bundler.scheme.method,
            "adapters": {},
        }
        quantised = bundler.scheme.method is not None
        with new_folder(dequantised or work / "dequantised") as held:
            for name, adapter in adapters.items():
                if quantised or dequantised:
                    _write_held(bundler, adapter, held / name)
                sidecar["adapters"][name] = {
                    "digest": adapter_digest(folders[name]),
                    "dequantised": adapter_digest(held / name) if quantised else None,
                }
            with replacing(out) as file:
                written = Written(file)
                _write(bundler, adapters, written)
                # The sidecar first: a bundle that is there has one.
                write_sidecar(out, {**sidecar, "sha256": written.digest.hex()})


def _write(bundler: Bundler, adapters: Mapping[str, Adapter], written: Written) -> None:
    """The bundle's file, module by module."""
    jobs: list[tuple[dict[str, Any], Adapter, Module]] = []
    entries = []
    names = bundler.names(list(adapters))
    for name, adapter in zip(names, adapters.values(), strict=True):
        modules = []
        for module in bundler.modules(adapter):
            entry: dict[str, Any] = {
                "layer": bundler.layer(module),
                "module": place_of(module.path).path,
                "scale": bundler.scale(module),
                "a": shape_of("f16", module.rank, module.in_features),
                "b": shape_of("f16", module.rank, module.out_features),
            }
            modules.append(entry)
            jobs.append((entry, adapter, module))
        entries.append({"name": name, "modules": modules})
    header = {
        "format": FORMAT,
        "converter": harness.__version__,
        "base": bundler.base.identity.weights,
        "dtype": bundler.scheme.dtype,
        "adapters": entries,
    }
    arrays = [entry[factor] for entry, _, _ in jobs for factor in ("a", "b")]
    written.write(layout(MAGIC, header, arrays))
    for entry, adapter, module in jobs:
        factors = bundler.factors(*bundler.held(adapter, module))
        for factor, values in zip(("a", "b"), factors, strict=True):
            written.pad(entry[factor]["offset"])
            written.write(values.astype("<f2").tobytes())
    written.write(written.digest)


def _write_held(bundler: Bundler, adapter: Adapter, folder: Path) -> None:
    """An adapter after quantisation as a PEFT folder."""
    tensors: dict[str, np.ndarray] = {}
    for module in adapter.modules:
        for factor, values in zip("AB", bundler.held(adapter, module), strict=True):
            tensors[tensor_of(module.path, factor)] = values.astype(np.float16)
    folder.mkdir()
    (folder / CONFIG).write_bytes((adapter.folder / CONFIG).read_bytes())
    (folder / WEIGHTS).write_bytes(serialise(tensors))


@contextmanager
def _about(name: str) -> Iterator[None]:
    """What is wrong with an adapter is refused with its name."""
    try:
        yield
    except UsageFault as fault:
        raise ConversionRefused(
            fault.cause, where=f"adapter {shown(name)}: {fault.where}", cure=fault.cure
        ) from None


def _folders(words: Iterable[str]) -> dict[str, Path]:
    """`NAME=FOLDER` words as folders by name."""
    folders: dict[str, Path] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals or not folder:
            raise UsageFault(f"{shown(word)} is not NAME=FOLDER", cure="give both")
        # The name becomes a folder's, and a C string of fixed size on the board.
        odd = not name.isprintable() or "/" in name or name in ("", ".", "..")
        if odd or len(name.encode()) > MOST_NAME:
            raise UsageFault(
                f"the adapter's name is {shown(name)}",
                cure=f"give 1 to {MOST_NAME} bytes without '/' or control characters",
            )
        if name in folders:
            raise UsageFault(
                f"two adapters are called {shown(name)}", cure="give each its own name"
            )
        folders[name] = Path(folder)
    return folders


def _converter(spec: str) -> type[Bundler]:
    """The class that `MODULE:CLASS` names."""
    module, _, name = spec.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageFault(f"no converter {spec!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Bundler)):
        raise UsageFault(f"{spec!r} is no {Bundler.__name__}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = Parser(prog="bundle", description=__doc__)
    parser.add_argument("base", type=Path, help="Folder of the checkpoint")
    parser.add_argument("out", type=Path, help="Bundle to write")
    parser.add_argument("adapters", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--dtype", choices=BITS, default="float16")
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--prefix", default=PEFT.prefix)
    parser.add_argument("--postfix-a", default=PEFT.postfix_a)
    parser.add_argument("--postfix-b", default=PEFT.postfix_b)
    parser.add_argument(
        "--dequantised", type=Path, help="New folder for what the board will hold"
    )
    parser.add_argument("--max-rank", type=int, default=MOST_RANK)
    parser.add_argument(
        "--as",
        dest="converter",
        default=f"{Bundler.__module__}:{Bundler.__name__}",
        help="MODULE:CLASS of another converter",
    )
    given = parser.parse_intermixed_args(arguments)

    def run() -> None:
        bundle(
            given.base,
            given.out,
            _folders(given.adapters),
            scheme=Scheme(given.dtype, given.method),
            spelling=Spelling(given.prefix, given.postfix_a, given.postfix_b),
            dequantised=given.dequantised,
            most_rank=given.max_rank,
            make=_converter(given.converter),
        )

    return refusing(run)


if __name__ == "__main__":
    sys.exit(main())

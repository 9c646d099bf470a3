"""A simulated board for the benchmarks, with a model compiled for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from harness.artifacts.provision import Store
from harness.boards import simulated
from harness.boards.address import Address
from harness.boards.inventory import Inventory
from harness.deadline import Deadline
from harness.golden.tensors import TensorFile
from harness.hosts.ssh import SshHost
from harness.runtimes.remote import RemoteRuntime
from harness.simulator.bm1688.convert import convert


__all__ = [
    "FIXTURES",
    "REPOSITORY",
    "VOCABULARY",
    "Board",
    "inventory",
    "large_base",
    "started",
]

REPOSITORY = Path(__file__).parents[1]
FIXTURES = REPOSITORY / "fixtures"
# Of the product's model (Qwen3-VL-2B).
VOCABULARY = 151_936


def inventory() -> Inventory:
    """The boards of this repository."""
    return Inventory.load(REPOSITORY / "boards.toml")


@dataclass(frozen=True)
class Board:
    """A running board: its host, its store and where its files lie."""

    host: SshHost
    store: Store
    workdir: str

    def runtime(self, base: Path, folder: Path) -> RemoteRuntime:
        """The probe, running, on the compiled `base`.

        :param folder: where the compiled model is written here.
        """
        compiled = folder / f"{base.name}.bmodel"
        convert(base, compiled)
        return RemoteRuntime(
            self.host,
            self.store,
            platform="bm1688",
            model=self.store.put_file(compiled),
            workdir=self.workdir,
        )


@contextmanager
def started(folder: Path) -> Iterator[Board]:
    """A simulated BM1688 with its root in `folder`."""
    simulation = simulated.start("bench", "bm1688", folder, None, Deadline(30))
    try:
        host = SshHost(
            "bench",
            Address.parse(simulation.host),
            identity=simulation.identity,
            known_hosts=simulation.known_hosts,
        )
        try:
            yield Board(host, Store(host, simulation.workdir), simulation.workdir)
        finally:
            host.close()
    finally:
        simulation.stop()


def large_base(folder: Path) -> Path:
    """A base with the product's vocabulary and next to nothing else: one layer.

    Random weights: only the size of what crosses the wire counts here.
    """
    source = FIXTURES / "base"
    target = folder / "large-base"
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text("utf-8"))
    text = config["text_config"]
    text.update(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=1,
        vocab_size=VOCABULARY,
    )
    (target / "config.json").write_text(json.dumps(config), "utf-8")
    # Extents of the fixture's tensors, and what they become here.
    extents = {512: VOCABULARY, 256: 128, 128: 64}
    random = np.random.default_rng(1)
    tensors = {}
    for name, tensor in TensorFile(source / "model.safetensors").tensors.items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        shape = [extents.get(n, n) for n in tensor.shape]
        tensors[name] = random.standard_normal(shape, np.float32).astype(np.float16)
    save_file(tensors, target / "model.safetensors")
    return target

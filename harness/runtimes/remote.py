"""A runtime on a board, driven through the probe that runs beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np

from harness.artifacts.provision import Store
from harness.errors import UsageFault
from harness.hosts.host import Host
from harness.probes.scales import packed
from harness.probes.wire import VERSION
from harness.runtimes.client import Client
from harness.runtimes.package import probe_digest
from harness.runtimes.package import put_probe
from harness.runtimes.patience import Patience
from harness.runtimes.replies import Hello
from harness.runtimes.replies import Memory
from harness.runtimes.replies import Opened
from harness.runtimes.replies import Slots
from harness.runtimes.runtime import Capabilities
from harness.runtimes.runtime import Identity
from harness.runtimes.runtime import Slot
from harness.runtimes.session import RemoteSession


__all__ = ["RemoteRuntime"]

# The package goes before what the board has on its path, and does not replace it.
START = 'root=$1; shift; PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$@"'
SLOT_BYTES = 1 << 30  # an embedding's factor of 1,000,000 rows is half of it


class RemoteRuntime:
    """The software under test on a host; implements `runtime.Runtime`.

    :param host: the machine it runs on.
    :param store: where the probe and the product's loader are put.
    :param platform: which probe it is (`bm1688`, `rk1828`).
    :param model: path of the compiled model on the host, a file or a folder.
    :param workdir: the harness' folder there; the probe keeps its links in it.
    :param loader: `reference`, `FILE.py:Class` (a file here, sent there) or
        `module:Class` (importable there).
    :raises RuntimeRefused: the vendor's runtime does not take the model.
    :raises RuntimeDied: the program ended before it said anything.
    :raises RuntimeHung: it said nothing in time.
    :raises UsageFault: the loader, or the vendor's module, is not to be had.
    """

    identity: Identity
    capabilities: Capabilities

    def __init__(
        self,
        host: Host,
        store: Store,
        *,
        platform: str,
        model: str,
        workdir: str,
        loader: str = "reference",
        patience: Patience | None = None,
    ) -> None:
        self._host = host
        self._store = store
        self._platform = platform
        self._model = model
        self._workdir = workdir
        self._loader = loader
        self._patience = patience or Patience()
        self._client = self._start()

    # Life

    def restart(self) -> None:
        """End the program and start it again; sessions and adapters are gone."""
        self.close()
        self._client = self._start()

    def close(self) -> None:
        """End the program; it is killed where it does not end by itself."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> Client:
        root = put_probe(self._store)
        argv = [
            *("sh", "-c", START, "probe", root, self._host.python),
            # Folders in the store keep the content their name says.
            *("-B", "-m", f"probes.{self._platform}"),
            *("--model", self._model, "--workdir", self._workdir),
        ]
        if self._loader != "reference":
            argv += ["--loader", self._sent_loader()]
        client = Client(self._host.name, self._host.start(argv))
        try:
            header = client.hello(self._patience.start)
            hello = client.parsed("start", Hello, header)
            if hello.hello != VERSION or hello.platform != self._platform:
                client.broken(
                    "start",
                    f"a probe of {hello.platform}, protocol {hello.hello}, "
                    f"not of {self._platform}, protocol {VERSION}",
                )
            if not hello.vocab:
                client.broken("start", "the probe does not tell the vocabulary's size")
        except BaseException:
            client.close()
            raise
        self.identity = hello.identity(probe_digest())
        self.capabilities = hello.able()
        self._vocab = hello.vocab
        return client

    def _sent_loader(self) -> str:
        place, _, name = self._loader.rpartition(":")
        if not place.endswith(".py"):
            return self._loader
        if not Path(place).is_file():
            raise UsageFault(
                f"no file {place}",
                where="loader",
                cure="give FILE.py:Class or module:Class",
            )
        return f"{self._store.put_file(Path(place))}:{name}"

    # What it offers

    def load(self, artifact: str, name: str) -> None:
        """Make the adapter at path `artifact` on the host available as `name`.

        On a BM1688 a name that is known already stands for the new one from then on.
        """
        fields = {"name": name, "path": artifact}
        self._client.call("load", self._patience.load, fields)

    def unload(self, name: str) -> None:
        """Forget `name`, and give its memory back."""
        self._client.call("unload", self._patience.control, {"name": name})

    def renew(self, bundle: str) -> None:
        """Initialise the adapters anew from the bundle at this path on the host."""
        self._client.call("renew", self._patience.load, {"path": bundle})

    def activate(self, adapters: Mapping[str, float]) -> None:
        """Make exactly these adapters take effect for the whole context."""
        fields = {"adapters": packed(adapters)}
        self._client.call("activate", self._patience.load, fields)

    def session(self) -> RemoteSession:
        """A new conversation."""
        header, _ = self._client.call("session", self._patience.control)
        number = self._client.parsed("session", Opened, header).session
        return RemoteSession(self._client, number, self._vocab, self._patience)

    def slots(self) -> list[Slot]:
        """All slots of all nets."""
        header, _ = self._client.call("slots", self._patience.control)
        return self._client.parsed("slots", Slots, header).all()

    def read_slot(self, name: str) -> np.ndarray:
        """A slot's bytes, uint8 `[Slot.size]`; `net:name` asks for one net's."""
        _, arrays = self._client.call(
            "read_slot", self._patience.load, {"name": name}, limit=SLOT_BYTES
        )
        data = arrays.get("data")
        if data is None or data.dtype != np.uint8 or data.ndim != 1:
            self._client.broken("read_slot", "no row of bytes came")
        return data

    def memory(self) -> dict[str, int]:
        """Bytes by kind, as the runtime reports them."""
        header, _ = self._client.call("memory", self._patience.control)
        return dict(self._client.parsed("memory", Memory, header).memory)

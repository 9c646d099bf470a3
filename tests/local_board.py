"""A board without SSH: the probe as a real process over the simulated runtime."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from harness.artifacts.provision import Store
from harness.hosts.local import LocalHost
from harness.runtimes.patience import Patience
from harness.runtimes.remote import RemoteRuntime
from harness.simulator.farm import MODULES


REPOSITORY = Path(__file__).resolve().parents[1]
BASE = REPOSITORY / "fixtures" / "base"
ADAPTERS = REPOSITORY / "fixtures" / "adapters"
# The board's Python; set it to an old one to see that the probe runs there.
PYTHON = os.environ.get("BOARD_PYTHON", sys.executable)

# The vendor's module with moods: a token id decides what a launch does.
MOODY = """
import os
import time
from harness.simulator.bm1688.bmrt import *
from harness.simulator.bm1688 import bmrt

CHATTER, CRASH, HANG, REFUSE, BUG, EXIT = 400, 401, 402, 403, 404, 405

class Runtime(bmrt.Runtime):
    def launch(self, net, inputs):
        mood = int(inputs[0].max()) if net.startswith("embedding") else 0
        if mood == CHATTER:
            print("core 0 state 7 " * 5000, flush=True)
            os.write(1, b"\\x10\\x00\\x00\\x00garbage")
            os.system("echo a library's child; cat")
        if mood == CRASH:
            print("about to fall over", flush=True)
            os.kill(os.getpid(), 11)
        if mood == HANG:
            time.sleep(3600)
        if mood == REFUSE:
            raise BmrtError(5, "no memory\\nleft")
        if mood == BUG:
            raise KeyError("ours")
        if mood == EXIT:
            os._exit(7)
        return super().launch(net, inputs)
"""
CHATTER, CRASH, HANG, REFUSE, BUG, EXIT = range(400, 406)


def convert(target: Path, quantize: str = "bf16") -> Path:
    """A compiled model of the fixtures' base."""
    subprocess.run(
        [
            *(sys.executable, "-m", "harness.simulator.bm1688.convert"),
            *(BASE, target, "--reserved-rank", "32", "--quantize", quantize),
        ],
        check=True,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    return target


class LocalBoard:
    """A folder that stands for a board.

    :param module: content of the vendor's module, None for a board without.
    """

    def __init__(
        self,
        root: Path,
        model: Path,
        module: str | None = MOODY,
        platform: str = "bm1688",
    ) -> None:
        site = root / "site"
        site.mkdir(parents=True)
        if module is not None:
            # The first of the vendor's modules that is more than a folder's mark.
            sound = MODULES[platform]
            moody = next(place for place, name in sound.items() if name)
            for place, name in sound.items():
                (site / place).parent.mkdir(parents=True, exist_ok=True)
                content = f"from {name} import *" if name else ""
                (site / place).write_text(module if place == moody else content)
        python = root / "python3"
        path = shlex.quote(f"{site}:{REPOSITORY}")
        python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{path}\n'
            f'exec {shlex.quote(PYTHON)} "$@"\n'
        )
        python.chmod(0o755)
        self.root = root
        self.model = model
        self.platform = platform
        self.host = LocalHost("bench", root, python=str(python))
        self.store = Store(self.host, "work")

    def runtime(
        self, loader: str = "reference", patience: Patience | None = None
    ) -> RemoteRuntime:
        """A runtime on it, started."""
        return RemoteRuntime(
            self.host,
            self.store,
            platform=self.platform,
            model=str(self.model),
            workdir="work",
            loader=loader,
            patience=patience,
        )

"""python -m benchmarks [NAME...] [--json FILE]: measure, show, keep."""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks import results


NAMES = ("latency", "scoring", "judging", "provisioning", "soak", "acceptance")
KEPT = Path(__file__).with_name("results.json")


def main() -> None:
    """Run the benchmarks named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument(
        "--json",
        type=Path,
        default=KEPT,
        metavar="FILE",
        help="where to keep the results; README.md is written with the default",
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}: one of {', '.join(NAMES)}")
    kept = _read(options.json)
    console = Console()
    for name in options.names or NAMES:
        result = measure(name)
        console.print(results.table(name, result))
        kept[name] = result
        # After each: a later one that fails takes nothing along.
        options.json.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        if options.json == KEPT:
            results.write_readme(kept, NAMES)


def measure(name: str) -> dict[str, Any]:
    """One benchmark's figures and the circumstances."""
    module = import_module(f"benchmarks.{name}")
    before, start = machine.load(), time.monotonic()
    figures = [figure.to_json() for figure in module.run()]
    return {
        "what": " ".join(str(module.__doc__).split()),
        "machine": machine.facts(),
        "load": [before, machine.load()],
        "seconds": round(time.monotonic() - start, 1),
        "figures": figures,
    }


def _read(path: Path) -> dict[str, Any]:
    """Earlier results: what is not run again stays."""
    if not path.exists():
        return {}
    kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return kept


if __name__ == "__main__":
    main()

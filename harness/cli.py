"""The `harness` command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated

import typer
from rich.console import Console

from harness.errors import HarnessError


if TYPE_CHECKING:
    from harness.boards.inventory import Board


__all__ = ["app", "main"]

app = typer.Typer(
    help="Accept LoRA adapters on NPU boards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
report_app = typer.Typer(help="Sign-off pages.", no_args_is_help=True)
app.add_typer(report_app, name="report")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
BoardsFile = Annotated[Path, typer.Option("--boards", help="Inventory of boards.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a run.")]
LATEST = Path("reports/latest")

# The suites lie beside the package in a checkout.
SUITES = Path(__file__).resolve().parent.parent / "suites"


def _options(name: str, values: list[str] | None) -> list[str]:
    return [f"{name}={value}" for value in values or []]


@app.command()
def run(
    board: Annotated[list[str] | None, typer.Option(help="Board (repeatable).")] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(help="Adapter folder (repeatable).")
    ] = None,
    golden: Annotated[str | None, typer.Option(help="Folder of goldens.")] = None,
    fault: Annotated[
        str | None, typer.Option(help="Fault for simulated boards.")
    ] = None,
    report: Annotated[str | None, typer.Option(help="Folder for run folders.")] = None,
    boards: Annotated[str | None, typer.Option(help="Inventory of boards.")] = None,
    select: Annotated[str | None, typer.Option("-k", help="Checks by name.")] = None,
    workers: Annotated[int, typer.Option(help="Worker processes, 0 for none.")] = 0,
    as_json: Json = False,
) -> None:
    """Accept adapters on boards; the exit status is the verdict."""
    arguments = [
        str(SUITES),
        # The report at the end says why; pytest itself is there for the rest.
        "--tb=no",
        "-rN",
        f"--rootdir={SUITES.parent}",
        f"--config-file={SUITES.parent / 'pyproject.toml'}",
        *_options("--board", board),
        *_options("--adapter", [str(Path(a).resolve()) for a in adapter or []]),
        *([f"--golden={Path(golden).resolve()}"] if golden else []),
        *([f"--fault={fault}"] if fault else []),
        *([f"--report={Path(report).resolve()}"] if report else []),
        *([f"--boards={Path(boards).resolve()}"] if boards else []),
        *(["-k", select] if select else []),
        *([f"-n{workers}"] if workers else []),
    ]
    latest = Path(report or SUITES.parent / "reports") / "latest"
    before = latest.resolve()
    # With --json stdout is for the machine alone.
    status = _run([sys.executable, "-m", "pytest", *arguments], quiet=as_json)
    if as_json:
        page = latest / "signoff.json"
        if latest.resolve() != before and page.exists():
            sys.stdout.write(page.read_text())
        else:
            sys.stdout.write(json.dumps({"exit_status": status}) + "\n")
    raise typer.Exit(status)


def _run(command: list[str], *, quiet: bool) -> int:
    """Run pytest to its end, and only end with it.

    Ctrl-C reaches it as well as us: it ends its boards and writes what it has, which
    takes longer than `subprocess.run` would wait before it kills.
    """
    process = subprocess.Popen(command, stdout=sys.stderr if quiet else None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


@app.command("boards")
def list_boards(
    boards: BoardsFile = Path("boards.toml"),
    check: Annotated[
        bool, typer.Option("--check", help="Connect and look at each.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the boards; with --check, whether they answer."""
    from harness.boards.inventory import Inventory

    inventory = Inventory.load(boards)
    rows = []
    for board in inventory.boards:
        row = {
            "name": board.name,
            "platform": board.platform,
            "kind": "simulated" if board.simulated else "real",
            "host": board.host or "loopback",
        }
        if check:
            row["state"] = _look_at(board)
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print("  ".join(str(value) for value in row.values()))
    if not rows:
        print(f"{boards}: no boards")


def _look_at(board: Board) -> str:
    from harness.reach import reached

    try:
        with reached(board) as (_, _, health):
            return (
                f"up: {health.arch}, kernel {health.kernel}, Python {health.python},"
                f" numpy {health.numpy}, {health.free / 1e9:.1f} GB free"
            )
    except HarnessError as error:
        return str(error)


@app.command()
def inspect(
    adapter: Path,
    base: Annotated[Path, typer.Option(help="The base checkpoint.")],
    reserved_rank: Annotated[int, typer.Option(help="Rank compiled in.")] = 32,
    as_json: Json = False,
) -> None:
    """Say whether an adapter fits a base, without a board."""
    from harness.artifacts.preflight import inspect as look

    inspection = look(adapter, base, reserved_rank)
    if as_json:
        print(json.dumps(inspection.to_json(), indent=2))
    else:
        Console().print(inspection.text(), highlight=False, markup=False)
    raise typer.Exit(0 if inspection.fits else 1)


@app.command()
def simulate(
    board: str,
    boards: BoardsFile = Path("boards.toml"),
    fault: Annotated[str | None, typer.Option(help="Fault to put in.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the board.")] = None,
    as_json: Json = False,
) -> None:
    """Start a simulated board and leave it running until Ctrl-C."""
    import tempfile

    from harness.boards import simulated
    from harness.boards.inventory import Inventory
    from harness.deadline import Deadline
    from harness.errors import UsageFault

    (chosen,) = Inventory.load(boards).pick([board])
    if not chosen.simulated:
        raise UsageFault(
            "not a simulated board",
            where=f"board {board}",
            cure="name one with simulated = true",
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix=f"{board}-") as scratch:
        simulation = simulated.start(
            chosen.name, chosen.platform, root or Path(scratch), fault, Deadline(20)
        )
        try:
            if as_json:
                told = {
                    "host": simulation.host,
                    "identity": str(simulation.identity),
                    "known_hosts": str(simulation.known_hosts),
                    "workdir": simulation.workdir,
                    "loader": simulation.loader,
                    "process": simulation.process.pid,
                }
                print(json.dumps(told), flush=True)
            else:
                print(f"{board} is up at {simulation.host}", flush=True)
                print(f"  identity     {simulation.identity}")
                print(f"  known_hosts  {simulation.known_hosts}")
                print("  Ctrl-C ends it.", flush=True)
            while simulation.process.poll() is None:
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            simulation.stop()


@app.command()
def golden(
    base: Path,
    adapter: Annotated[list[Path], typer.Option(help="Adapter folder (repeatable).")],
    prompts: Annotated[
        Path,
        typer.Option(
            help="A golden folder to take prompts from, or JSON lines with the texts"
            " name, domain, prompt, continuation (and adapter, for samples of an"
            " adapter's own domain)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    scheme: Annotated[
        str, typer.Option(help="Arithmetic of the device: bf16 or w4a16.")
    ] = "bf16",
    device_base: Annotated[
        Path | None,
        typer.Option(help="The base quantised and multiplied out, where BASE is not."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="The base that BASE was quantised and multiplied out from."),
    ] = None,
) -> None:
    """Make goldens with PEFT and transformers (extra `reference`)."""
    from harness.golden.identity import weights_digest
    from harness.golden.index import prompts_of
    from harness.golden.texts import prompts_from_texts
    from harness.golden.writer import write_golden

    console = Console(stderr=True)
    main_prompts, domains = (
        prompts_from_texts(prompts, base) if prompts.is_file() else prompts_of(prompts)
    )
    write_golden(
        base,
        adapter,
        main_prompts,
        domains,
        out,
        scheme=scheme,
        device_base=device_base,
        source="" if source is None else weights_digest(source),
        progress=lambda line: console.print(line, highlight=False),
    )
    print(f"{out}: goldens of {len(adapter)} adapters")


@report_app.command("show")
def show(run_folder: RunFolder = LATEST, as_json: Json = False) -> None:
    """The verdict of a run."""
    from harness.report import show as render
    from harness.report.signoff import encoded
    from harness.report.signoff import read

    if as_json:
        sys.stdout.write(encoded(read(run_folder)).decode())
    else:
        render(run_folder, Console())


@report_app.command("verify")
def verify(run_folder: RunFolder = LATEST, as_json: Json = False) -> None:
    """Derive the verdict again from the records; fails on one changed byte."""
    from harness.report import verify as check

    problems = check(run_folder)
    if as_json:
        print(json.dumps({"run": str(run_folder), "problems": problems}))
    for problem in problems if not as_json else ():
        print(problem)
    if not problems and not as_json:
        print(f"{run_folder}: verified")
    raise typer.Exit(1 if problems else 0)


def main() -> None:
    """Entry point: a user's mistake is one line, never a traceback."""
    try:
        app()
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        raise SystemExit(4) from None


if __name__ == "__main__":
    main()

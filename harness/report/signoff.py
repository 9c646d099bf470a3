"""The sign-off of a run: what it comes to, written down and sealed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.errors import Infrastructure
from harness.errors import UsageFault
from harness.evidence import Record
from harness.evidence import Release
from harness.evidence import RunFolder
from harness.evidence import derive
from harness.report.attestation import statement
from harness.report.bundle import MANIFEST
from harness.report.bundle import PAGE
from harness.report.bundle import evidence_digest
from harness.report.bundle import manifest
from harness.report.bundle import replace_all
from harness.report.bundle import sums
from harness.report.changes import changes
from harness.report.changes import previous
from harness.report.document import SCHEMA
from harness.report.document import document
from harness.report.document import judgements
from harness.report.figures import figures
from harness.report.page import render
from harness.report.terminal import Terminal
from harness.report.terminal import on


__all__ = [
    "ATTESTATION",
    "CHANGES",
    "DATA",
    "encoded",
    "printed",
    "read",
    "show",
    "write",
]

DATA = "signoff.json"
CHANGES = "changes.json"
ATTESTATION = "attestation.json"
LATEST = "latest"


def write(run: RunFolder) -> Release:
    """Derive the verdict, write page and data, seal the folder.

    All files of the sign-off appear together at the end: a failed write leaves
    the former ones. `latest` beside the folder then points to it.

    :raises UsageFault: the folder holds no run, or something that is not its own.
    :raises Infrastructure: it could not be written.
    """
    records = run.records()
    doc = document(records)
    before = previous(run.path, doc)
    differences = changes(doc, before) if before else None
    content = {
        DATA: encoded(doc),
        CHANGES: encoded(differences),
        ATTESTATION: encoded(statement(doc)),
    }
    found = sums(run.path)
    found.update((name, _digest(part)) for name, part in content.items())
    page = printed(records, doc, differences, evidence_digest(found))
    content[PAGE] = page.encode()
    found[PAGE] = _digest(content[PAGE])
    content[MANIFEST] = manifest(found)
    try:
        replace_all(run.path, content)
        _point(run.path)
    except OSError as error:
        raise Infrastructure(
            f"the sign-off cannot be written: {error}",
            where=str(run.path),
            cure="make room and rights, the records are kept",
        ) from None
    return derive(records)


def printed(
    records: Sequence[Record],
    doc: Mapping[str, Any],
    changes: Mapping[str, Any] | None,
    evidence: str,
) -> str:
    """The page of these records; the same records give the same bytes."""
    drawn = figures(judgements(records))
    return render(doc, figures=drawn, changes=changes, evidence=evidence)


def encoded(data: Any) -> bytes:
    """JSON as it is written and compared: ASCII, one order, no NaN."""
    return json.dumps(data, indent=1, allow_nan=False).encode() + b"\n"


def read(folder: Path) -> dict[str, Any]:
    """The data of a run's sign-off.

    :raises UsageFault: there is none, or it is not ours.
    """
    path = folder / DATA
    try:
        doc = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageFault(
            f"no sign-off: {error}", where=str(path), cure="give the folder of a run"
        ) from None
    if not isinstance(doc, dict) or doc.get("schema") != SCHEMA:
        raise UsageFault(
            f"not a sign-off of schema {SCHEMA}",
            where=str(path),
            cure="use the harness that wrote it",
        )
    return doc


def show(folder: Path, out: Console | pytest.TerminalReporter) -> None:
    """Print the verdict of a run.

    :raises UsageFault: no run folder.
    """
    doc = read(folder)
    # `latest` would name another run tomorrow.
    folder = folder.resolve()
    bundle = ""
    with contextlib.suppress(OSError):
        bundle = _digest((folder / MANIFEST).read_bytes())
    with on(out) as console:
        Terminal(console).show(doc, page=folder / PAGE, bundle=bundle)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _point(folder: Path) -> None:
    """Make `latest` beside a run folder point to it, in one step."""
    link = folder.parent / LATEST
    if folder.name == LATEST or (link.exists() and not link.is_symlink()):
        return  # somebody's own folder of that name
    scratch = folder.parent / f".{LATEST}.{os.getpid()}"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(folder.name)
    os.replace(scratch, link)

"""Verification of a run folder: its bytes, its records, its verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2

from harness.errors import HarnessError
from harness.errors import UsageFault
from harness.evidence import RECORDS
from harness.evidence import Check
from harness.evidence import RunFolder
from harness.evidence import rederive
from harness.report.attestation import statement
from harness.report.bundle import MANIFEST
from harness.report.bundle import PAGE
from harness.report.bundle import evidence_digest
from harness.report.bundle import manifest
from harness.report.bundle import sums
from harness.report.document import document
from harness.report.signoff import ATTESTATION
from harness.report.signoff import CHANGES
from harness.report.signoff import DATA
from harness.report.signoff import encoded
from harness.report.signoff import printed
from harness.report.signoff import read


__all__ = ["verify"]

# Differences named one by one; what follows from the same change is counted.
MOST_NAMED = 20
KNOWN = {ATTESTATION, CHANGES, DATA, PAGE, RECORDS}
LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def verify(folder: Path) -> list[str]:
    """Everything that is wrong with a sealed run folder; empty when nothing is.

    The digests of all files are computed again, then every outcome and the
    verdict are derived again from the records and compared with the page's data.

    :returns: one line per problem.
    :raises UsageFault: not a run folder.
    """
    if not (folder / MANIFEST).is_file():
        raise UsageFault(
            f"no {MANIFEST}", where=str(folder), cure="give the folder of a run"
        )
    try:
        problems, derived = list(_bytes(folder)), list(_verdict(folder))
        if not problems and not derived:
            derived = list(_printed(folder))
        if derived and not problems:
            # Rules and their words change from version to version.
            problems = [f"the bytes are intact, as written by {_writer(folder)}"]
        problems += derived
    except OSError as error:
        problems = [f"cannot be read: {error}"]
    if len(problems) > MOST_NAMED:
        more = len(problems) - MOST_NAMED
        problems[MOST_NAMED:] = [f"and {more} problems more"]
    return problems


def _bytes(folder: Path) -> Iterator[str]:
    """Whether the manifest is that of the files, to the byte."""
    try:
        found = sums(folder)
    except UsageFault as fault:
        yield fault.cause
        return
    content = (folder / MANIFEST).read_bytes()
    if content != manifest(found):
        listed = dict(_listed(content))
        for name in sorted({*listed, *found}):
            if name not in found:
                yield f"{name}: missing"
            elif name not in listed:
                yield f"{name}: not in the manifest"
            elif listed[name] != found[name]:
                yield f"{name}: changed (sha256 {found[name][:16]}...)"
        if listed == found:
            yield f"{MANIFEST}: not as sha256sum writes it"


def _writer(folder: Path) -> str:
    try:
        return f"harness {read(folder)['run'].get('harness', 'unknown')}"
    except (HarnessError, KeyError, AttributeError):
        return "an unknown harness"


def _listed(content: bytes) -> Iterator[tuple[str, str]]:
    for line in content.decode(errors="replace").split("\n"):
        match = LINE.fullmatch(line)
        if match:
            yield match[2], match[1]


def _verdict(folder: Path) -> Iterator[str]:
    """Whether the records give what the page's data say."""
    try:
        records = RunFolder(folder).records()
        written = read(folder)
    except HarnessError as error:
        yield f"{error.where or folder}: {error.cause}"
        return
    yield from rederive(records)
    for record in records:
        if isinstance(record, Check):
            for role, digest in record.arrays.items():
                if not (folder / "arrays" / f"{digest}.npy").is_file():
                    yield f"{record.nodeid}: the logits {role!r} are gone"
    derived = json.loads(encoded(document(records)))
    yield from _differences(derived, written, DATA)


def _printed(folder: Path) -> Iterator[str]:
    """Whether page and attestation are what the records print.

    A new manifest over a changed page is whole, and the page is changed all the same.
    """
    records = RunFolder(folder).records()
    doc = document(records)
    if (folder / ATTESTATION).read_bytes() != encoded(statement(doc)):
        yield f"{ATTESTATION}: not what the records attest"
    found = sums(folder)
    arrays = {f"arrays/{path.name}" for path in folder.glob("arrays/*.npy")}
    for name in sorted(set(found) - KNOWN - arrays):
        yield f"{name}: no file of a run"
    try:
        differences = json.loads((folder / CHANGES).read_bytes())
        page = printed(records, doc, differences, evidence_digest(found)).encode()
    except (ValueError, KeyError, TypeError, jinja2.UndefinedError) as error:
        yield f"{CHANGES}: not what a run is compared with ({error!r:.80})"
        return
    if (folder / PAGE).read_bytes() != page:
        yield f"{PAGE}: not what the records print"


def _differences(derived: Any, written: Any, where: str) -> Iterator[str]:
    """Where two JSON values part, deepest first."""
    if isinstance(derived, dict) and isinstance(written, dict):
        for key in sorted({*derived, *written}):
            if key not in written or key not in derived:
                yield f"{where}: {key} {'lacks' if key in derived else 'is extra'}"
            else:
                yield from _differences(derived[key], written[key], f"{where}: {key}")
    elif (
        isinstance(derived, list)
        and isinstance(written, list)
        and len(derived) == len(written)
    ):
        for index, pair in enumerate(zip(derived, written, strict=True)):
            yield from _differences(*pair, f"{where}[{index}]")
    elif derived != written or type(derived) is not type(written):
        yield f"{where}: says {_brief(written)}, the records say {_brief(derived)}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

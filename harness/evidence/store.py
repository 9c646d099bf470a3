"""A run's folder: records that survive a crash, arrays by digest."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from harness.errors import UsageFault
from harness.evidence.records import Check
from harness.evidence.records import Judged
from harness.evidence.records import Record
from harness.evidence.records import from_json
from harness.evidence.records import to_json


__all__ = ["RECORDS", "RunFolder"]

RECORDS = "records.jsonl"
# A judgement of 10,000 prompts is about a megabyte; more is not a record of ours.
MOST_LINE = 64 << 20
MOST_ARRAY = 1 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")


class RunFolder:
    """The folder of one run, made when something is first kept in it.

    Each process appends to a file of its own, one write a line: a crash loses at
    most the line being written. The controller merges the files into one.

    :param path: the folder.
    :param writer: name of the process: `main`, `gw0`, ...
    """

    def __init__(self, path: Path, writer: str = "main") -> None:
        self.path = path
        self._own = path / f"records-{writer}.jsonl"
        self._descriptor: int | None = None

    def append(self, record: Record) -> None:
        """Keep a record.

        :raises OSError: the disk is full or the folder is gone; nothing is half
            there but the end of a line, which readers pass over.
        """
        if self._descriptor is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._open_new()
        line = _line(record)
        if os.write(self._descriptor, line) != len(line):
            raise OSError(f"{self._own}: the disk is full")

    def _open_new(self) -> int:
        """A file no process wrote before: nobody appends to another's cut line."""
        for number in itertools.count():
            own = self._own.with_suffix(f".{number}.jsonl" if number else ".jsonl")
            try:
                return os.open(
                    own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
                )
            except FileExistsError:
                continue
        raise AssertionError

    def keep(self, array: np.ndarray) -> str:
        """Keep an array; returns the sha256 of its `.npy` form."""
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        content = buffer.getvalue()
        digest = hashlib.sha256(content).hexdigest()
        target = self.path / "arrays" / f"{digest}.npy"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(content)
            os.replace(part, target)
        return digest

    def array(self, digest: str) -> np.ndarray:
        """An array that was kept.

        :raises UsageFault: there is none, or it was changed.
        """
        path = self.path / "arrays" / f"{digest}.npy"
        where = str(path)
        if not _DIGEST.fullmatch(digest) or not path.is_file():
            raise UsageFault("no such array", where=where)
        if path.stat().st_size > MOST_ARRAY:
            raise UsageFault("too large for an array of ours", where=where)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise UsageFault("the array was changed", where=where)
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def merge(self) -> list[str]:
        """Make one `records.jsonl` of all writers' files; only the controller does.

        What several writers wrote alike, as the plan, is kept once; a line cut by a
        crash is left out. The writers' files are removed afterwards.

        :returns: the files whose last line was cut, one line each.
        :raises UsageFault: a line is not a record.
        """
        self.close()
        parts = sorted(self.path.glob("records-*.jsonl"))
        merged = self.path / RECORDS
        scratch = merged.with_suffix(".part")
        cut = [f"{part.name}: its last line was cut" for part in parts if _cut(part)]
        with scratch.open("wb") as file:
            for record in self.records():
                file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, merged)
        for part in parts:
            part.unlink()
        return cut

    def records(self) -> list[Record]:
        """All records, merged or not yet.

        :raises UsageFault: no run folder, or a line that is not a record.
        """
        merged = self.path / RECORDS
        files = [merged] if merged.is_file() else []
        files += sorted(self.path.glob("records-*.jsonl"))
        if not files:
            raise UsageFault(
                f"no {RECORDS}", where=str(self.path), cure="give the folder of a run"
            )
        return list(_once(self._read(files)))

    def _read(self, files: Iterable[Path]) -> Iterator[Record]:
        for file in files:
            for number, line in enumerate(_whole_lines(file), 1):
                try:
                    yield from_json(json.loads(line, parse_constant=_no_number))
                except (ValueError, RecursionError) as error:
                    raise UsageFault(
                        f"not a record: {error}",
                        where=f"{file}:{number}",
                        cure="the file was changed; use the original",
                    ) from None


def _line(record: Record) -> bytes:
    text = json.dumps(to_json(record), separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The lines that end; what a crash cut off is passed over."""
    with path.open("rb") as file:
        while line := file.readline(MOST_LINE):
            if line.endswith(b"\n"):
                yield line[:-1]
            elif len(line) == MOST_LINE:
                raise UsageFault("a line is too long for a record", where=str(path))


def _cut(path: Path) -> bool:
    """Whether the file ends within a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _once(records: Iterable[Record]) -> Iterator[Record]:
    """Without the copies that several writers made of the plan."""
    seen = set()
    for record in records:
        if not isinstance(record, Check | Judged):
            key = json.dumps(to_json(record), sort_keys=True)
            if key in seen:
                continue
            seen.add(key)
        yield record

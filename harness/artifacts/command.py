"""A converter as a process: started, watched, ended, and what it said."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence
from typing import IO

from harness.deadline import Deadline
from harness.errors import ConversionRefused
from harness.errors import Infrastructure
from harness.errors import UsageFault


__all__ = ["run", "words_of"]

# The exit status that means "this base or adapter cannot be converted", with the
# reason as the one line on stderr.
REFUSED = 2
# Of each stream this much is kept for a message: a compiler's last words.
TAIL_LINES = 40
LINE = 4096  # bytes of a line; longer ones are cut into several
STEP = 0.01  # seconds between two looks at the deadline and the process


def words_of(command: str) -> list[str]:
    """A command's words, split as a shell does, without running one.

    `{python}` stands for this Python.

    :raises UsageFault: it is empty, cannot be split or names no program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageFault(
            f"the converter's command cannot be split: {error}", where=command
        ) from None
    argv = [word.replace("{python}", sys.executable) for word in words]
    if not argv:
        raise UsageFault(
            "the converter's command is empty", cure="give `convert` in boards.toml"
        )
    program = shutil.which(argv[0])
    if program is None:
        raise UsageFault(
            f"no program {argv[0]!r}",
            where=command,
            cure="install the converter or correct the command in boards.toml",
        )
    return [program, *argv[1:]]


class _Tail:
    """The last lines of a stream, read in a thread so that the writer never waits."""

    def __init__(self, stream: IO[bytes], line: Callable[[str], None] | None) -> None:
        self._stream = stream
        self._line = line
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while raw := self._stream.readline(LINE):
                text = raw.decode("utf-8", "replace").rstrip()
                if text:
                    self._lines.append(text)
                    if self._line is not None:
                        self._line(text)
        except (OSError, ValueError):
            pass  # closed under it: the process group was ended

    def lines(self) -> list[str]:
        """What was read; waits a moment for the end of the stream."""
        self._thread.join(timeout=2.0)
        return list(self._lines)


def run(
    argv: Sequence[str], deadline: Deadline, progress: Callable[[str], None] | None
) -> None:
    """Run a converter to its end.

    :param progress: called with each line it prints, in a thread.
    :raises ConversionRefused: it says that what it was given cannot be converted.
    :raises UsageFault: it cannot be started.
    :raises Infrastructure: it failed or took too long.
    """
    where = shlex.join(argv)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a compiler has children; all end with it
        )
    except OSError as error:
        raise UsageFault(f"cannot start: {error.strerror}", where=where) from None
    assert process.stdout is not None and process.stderr is not None
    output = _Tail(process.stdout, progress)
    errors = _Tail(process.stderr, progress)
    try:
        while not (ended := _ended(process.pid)) and not deadline.expired:
            time.sleep(STEP)
    finally:
        _end(process)
    said = errors.lines()
    if not ended:
        raise Infrastructure(
            f"the converter took longer than {deadline.seconds:g} s: "
            f"{_last(said or output.lines())}",
            where=where,
            cure="allow more time",
        )
    if process.returncode == REFUSED and len(said) == 1:
        # The harness' own converters print their error's code in front.
        raise ConversionRefused(
            re.sub(r"^\[[a-z-]+\] ", "", said[0]), where=_name(argv)
        )
    if process.returncode != 0:
        status = process.returncode
        how = f"was killed by signal {-status}" if status < 0 else f"failed ({status})"
        raise Infrastructure(
            f"the converter {how}: {_last(said or output.lines())}", where=where
        )


def _name(argv: Sequence[str]) -> str:
    """What a command is called: its module, or its program."""
    words = list(argv)
    return words[words.index("-m") + 1] if "-m" in words[:-1] else words[0]


def _ended(pid: int) -> bool:
    """Whether a child ended; it stays a zombie, so that its number stays ours."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all its children that are still there."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(lines: Sequence[str]) -> str:
    if any(line.startswith("Traceback ") for line in lines):
        lines = lines[-1:]  # a converter in Python says in its last line why it ended
    return " | ".join(lines[-5:])[-1000:] or "it said nothing"

"""The far side of a transfer: sent as text and run by the Python over there.

Needs Python >= 3.8 and nothing else. Says JSON lines on stdout. A file under way
is a hidden `.NAME.*.part` beside its target, locked while somebody writes it.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import signal
import stat
import sys


PIECE = 1 << 20
# Left free beside the file: a file system that is full to the last byte breaks
# whatever else the board is doing.
SPARE = 1 << 20


def say(**words: object) -> None:
    """One JSON line to the near side."""
    os.write(1, (json.dumps(words) + "\n").encode("ascii"))


def sha256(path: str) -> str:
    """Digest of a file in hex."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            total.update(piece)
    return total.hexdigest()


def free(path: str) -> int:
    """Free bytes where `path` is or will be."""
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def clear_stale(folder: str, name: str) -> None:
    """Remove what an upload of `name` left that was cut by a loss of power."""
    for path in glob.glob(glob.escape(os.path.join(folder, "." + name)) + ".*.part"):
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            pass  # somebody is writing it
        finally:
            os.close(file)


def receive(file: int, size: int) -> int:
    """Copy `size` bytes from stdin to `file`; returns how many came."""
    came = 0
    view = memoryview(bytearray(PIECE))
    while came < size:
        count = os.readv(0, [view[: min(PIECE, size - came)]])
        if not count:
            break
        done = 0
        while done < count:
            done += os.write(file, view[done:count])
        came += count
    return came


def put(target: str, wanted_size: str) -> None:
    """Receive a file and its digest; `target` appears whole or not at all."""
    size = int(wanted_size)
    target = os.path.abspath(target)
    folder, name = os.path.split(target)
    space = free(folder)
    if size + SPARE > space:
        say(full=[size + SPARE, space])
        return
    os.makedirs(folder, exist_ok=True)
    clear_stale(folder, name)
    part = os.path.join(folder, "." + name + "." + os.urandom(6).hex() + ".part")
    file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        say(ready=True)
        came = receive(file, size)
        wanted = b""
        while came == size and len(wanted) < 64:
            more = os.read(0, 64 - len(wanted))
            if not more:
                break
            wanted += more
        if len(wanted) < 64:
            say(cut=came)
            return
        os.fsync(file)  # a disk that is full or broken may only say so here
        found = sha256(part)
        if found != wanted.decode("ascii", "replace"):
            say(damaged=found)
            return
        os.replace(part, target)
        say(done=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            say(full=[size, free(folder)])
            return
        raise
    finally:
        os.close(file)
        if os.path.exists(part):
            os.unlink(part)


def get(source: str, limit: str) -> None:
    """Send size, bytes and digest of a file; only the size where it is too big."""
    # Not blocking: opening a FIFO would wait for its writer.
    with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            return say(error="not a regular file")
        say(size=state.st_size)
        left = state.st_size
        if left > int(limit):
            return
        total = hashlib.sha256()
        while left:
            piece = file.read(min(PIECE, left))
            if not piece:
                return
            total.update(piece)
            left -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(1, view) :]
        os.write(1, total.hexdigest().encode("ascii"))


def main(verb: str, *words: str) -> None:
    """`put TARGET SIZE`, `get SOURCE LIMIT`, `digest PATH` or `free PATH`."""
    # Ended by a signal it still removes the part.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        if verb == "put":
            put(*words)
        elif verb == "get":
            get(*words)
        elif verb == "digest":
            say(digest=sha256(words[0]) if os.path.isfile(words[0]) else None)
        elif verb == "free":
            say(free=free(words[0]))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        say(error=str(error.strerror))


if __name__ == "__main__":
    main(*sys.argv[1:])

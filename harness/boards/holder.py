"""The far side of a lease: sent as text and run by the Python over there.

Needs Python >= 3.8 and nothing else. Holds a flock on the lease's file, which the
kernel releases when this process ends, however it ends. Each byte on stdin is a
heartbeat and is answered; at the end of stdin, or after a silence, it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time


HELD = 75  # EX_TEMPFAIL


def holder(file: int) -> dict[str, object]:
    """Who has it, and for how many seconds, as the lease's file says."""
    try:
        told = json.loads(os.read(file, 4096).decode("utf-8", "replace"))
        return {"owner": str(told["owner"]), "age": time.time() - float(told["since"])}
    except (ValueError, LookupError, TypeError):
        return {"owner": "somebody"}  # it is just writing its name


def main(path: str, owner: str, patience: str) -> int:
    """Take the lease in file `path` for `owner`; ends after `patience` s of silence."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    # The file stays for good: removing it would let two holders lock two files.
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print(json.dumps(holder(file)), flush=True)
        return HELD
    os.ftruncate(file, 0)
    os.write(file, json.dumps({"owner": owner, "since": time.time()}).encode("ascii"))
    print("{}", flush=True)
    while select.select([0], [], [], float(patience))[0]:
        beat = os.read(0, 64)
        if not beat:
            break
        os.write(1, beat)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))  # noqa: UP031

"""The far side of a store: sent as text and run by the Python over there.

Needs Python >= 3.8 and nothing else. Answers questions until its stdin ends. Both
are JSON behind their length (4 bytes, big-endian); a question's small contents
follow it. Contents lie under their sha256; a folder is made of hard links to them,
beside the store's other entries, and appears by one rename.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager


# What a login shell's start-up files print comes before it. In two pieces, because
# they may print this text, too, and an `echo` may turn its \0 into a zero byte.
READY = b"\0store" + b" ready\n"
# Far more than 2000 files with their paths take: what is longer is noise.
QUESTION_LIMIT = 8 << 20
# Left free beside the contents: a file system that is full to the last byte breaks
# whatever else the board is doing.
SPARE = 1 << 20


def sha256(path: str) -> str:
    """Digest of a regular file in hex, empty where there is none."""
    total = hashlib.sha256()
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                total.update(piece)
    except OSError:
        return ""
    return total.hexdigest()


def free(path: str) -> int:
    """Free bytes where `path` is."""
    space = os.statvfs(path)
    return space.f_bavail * space.f_frsize


def remove(path: str) -> None:
    """Remove whatever is there; nothing happens where nothing is."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def link(source: str, target: str) -> None:
    """Give a content a second name; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def hidden(path: str) -> Iterator[str]:
    """Where to make what shall appear under `path` by one rename.

    What is there, under our lock, was left by whoever was cut.
    """
    folder, name = os.path.split(path)
    part = os.path.join(folder, "." + name + ".part")
    remove(part)
    try:
        yield part
    finally:
        remove(part)


def take(store: str, digest: str, name: str, data: bytes) -> None:
    """Have a content that was sent; damaged on its way it stays missing.

    Nothing is flushed to the disk, which takes longer than all the rest: after a
    loss of power the next keeper looks at every byte before it says "there".
    """
    if hashlib.sha256(data).hexdigest() != digest:
        return
    path = os.path.join(store, name)
    with hidden(path) as part:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, path)


def has(store: str, digest: str, name: str, entries: list[str]) -> bool:
    """Whether content `digest` is in the store, undamaged, under `name`.

    Content that is there under another name, one of `entries`, gets this one too.
    """
    path = os.path.join(store, name)
    if sha256(path) == digest:
        return True
    remove(path)
    for other in entries:
        candidate = os.path.join(store, other)
        if other.startswith(digest) and sha256(candidate) == digest:
            with hidden(path) as part:
                link(candidate, part)
                os.replace(part, path)
            return True
    return False


def content(folder: str) -> dict[str, str]:
    """Relative path and digest of everything in a folder."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in files + [f for f in folders if os.path.islink(f"{place}/{f}")]:
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = sha256(path)
    return found


def assemble(store: str, name: str, files: dict[str, str]) -> bool:
    """Have folder `name` of these files; False where a content is missing."""
    path = os.path.join(store, name)
    if os.path.isdir(path) and content(path) == files:
        return True
    remove(path)
    if not all(os.path.exists(os.path.join(store, d)) for d in files.values()):
        return False
    with hidden(path) as part:
        for place, digest in files.items():
            target = os.path.join(part, place)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            link(os.path.join(store, digest), target)
        if content(part) != files:
            return False
        os.rename(part, path)
    return True


def answer(store: str, asked: dict) -> dict:
    """Whether all is there, and which of the contents are not.

    Says instead how much room they need where there is less.
    """
    folder, files, contents = asked["folder"], asked["files"], asked["contents"]
    if folder and assemble(store, folder, files):
        return {"whole": True, "missing": []}
    entries = os.listdir(store)
    missing = [
        number
        for number, (digest, name, _) in enumerate(contents)
        if not has(store, digest, name, entries)
    ]
    needed = SPARE + sum(contents[number][2] for number in missing)
    if missing and needed > free(store):
        return {"full": [needed, free(store)]}
    whole = not missing and (not folder or assemble(store, folder, files))
    return {"whole": whole, "missing": missing}


def question() -> tuple:
    """The next question and the contents sent with it; empty at the end."""
    head = sys.stdin.buffer.read(4)
    size = struct.unpack(">I", head)[0] if len(head) == 4 else 0
    if size > QUESTION_LIMIT:
        sys.exit("the question is noise")
    text = sys.stdin.buffer.read(size)
    if not size or len(text) < size:
        return ()
    asked = json.loads(text.decode("ascii"))
    sizes = [size for _, _, size in asked["contents"]] if asked["sent"] else []
    data = [sys.stdin.buffer.read(size) for size in sizes]
    return asked, data


def main(store: str) -> None:
    """Answer until stdin ends."""
    os.makedirs(store, exist_ok=True)
    # Whoever lost the connection to one keeper starts another beside it.
    lock = os.open(store + ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for asked, data in iter(question, ()):
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.makedirs(store, exist_ok=True)
            for number, sent in enumerate(data):
                digest, name, _ = asked["contents"][number]
                take(store, digest, name, sent)
            told = answer(store, asked)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            needed = SPARE + sum(size for _, _, size in asked["contents"])
            told = {"full": [needed, free(store)]}
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
        text = json.dumps(told).encode("ascii")
        sys.stdout.buffer.write(struct.pack(">I", len(text)) + text)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))  # noqa: UP031

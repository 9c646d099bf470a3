"""The far side of a store: sent as text and run by the Python over there.

Needs Python >= 3.8 and nothing else. A question is one JSON text on stdin, the
answer one JSON line. Contents lie under their sha256; a folder is made of hard
links to them, beside the store's other entries, and appears by one rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys


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


def has(store: str, digest: str, name: str) -> bool:
    """Whether content `digest` is in the store, undamaged, under `name`.

    Content that is there under another name gets this one as well.
    """
    path = os.path.join(store, name)
    if sha256(path) == digest:
        return True
    remove(path)
    for other in os.listdir(store):
        candidate = os.path.join(store, other)
        if other.startswith(digest) and sha256(candidate) == digest:
            link(candidate, path)
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
    # Ours and the leftovers of whoever was cut: a board has one user at a time.
    part = os.path.join(store, "." + name + ".part")
    remove(part)
    os.makedirs(part)
    for place, digest in files.items():
        target = os.path.join(part, place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(os.path.join(store, digest)):
            remove(part)
            return False
        link(os.path.join(store, digest), target)
    if content(part) != files:
        remove(part)
        return False
    os.rename(part, path)
    return True


def main(store: str) -> None:
    """Answer the question on stdin."""
    asked = json.load(sys.stdin)
    os.makedirs(store, exist_ok=True)
    folder = asked.get("folder")
    if folder and assemble(store, folder, asked["files"]):
        print(json.dumps({"folder": True, "missing": []}))
        return
    missing = [
        number
        for number, (digest, name) in enumerate(asked["contents"])
        if not has(store, digest, name)
    ]
    whole = bool(folder) and not missing and assemble(store, folder, asked["files"])
    print(json.dumps({"folder": whole, "missing": missing}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))  # noqa: UP031

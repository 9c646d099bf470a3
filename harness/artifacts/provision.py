"""What lies on a board by digest: nothing is sent twice, nothing is half there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

from harness.artifacts.content import Content
from harness.artifacts.content import files
from harness.artifacts.content import listing
from harness.artifacts.content import suffix
from harness.artifacts.questions import Keeper
from harness.deadline import Deadline
from harness.errors import TransferDamaged
from harness.errors import UsageFault
from harness.hosts.host import Host


__all__ = ["Store"]

# The slowest we put up with: an SD card on a bad day, over 100 Mbit/s Ethernet.
_BYTES_PER_SECOND = 2_000_000
_LEAST_SECONDS = 60.0

# Up to here a content goes with a question: a command of its own would take longer
# than the bytes. Both sides hold a batch of them in memory.
_SMALL_BYTES = 1 << 20
_BATCH_BYTES = 4 << 20

# From here on a transfer takes long enough for somebody to wonder.
_SHOWN_BYTES = 4 << 20


class Store:
    """The contents under `<workdir>/store` of a board.

    Names over there are made from digests of what lies here, never from what the
    board says. What one keeper saw whole over there is not asked for again while
    it runs. One thread at a time may use it.

    :param host: the board's machine.
    :param workdir: the harness' folder over there.
    :param progress: called with a file's name, bytes sent and bytes in all, for
        files of more than 4 MiB.
    """

    def __init__(
        self,
        host: Host,
        workdir: str,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._host = host
        self._path = f"{workdir}/store"
        self._progress = progress
        self._keeper: Keeper | None = None
        self._there: set[str] = set()

    def put_file(self, path: Path) -> str:
        """Have a file over there; returns its path for a command's argument.

        The name keeps the suffix, which some vendors' loaders look at.

        :raises UsageFault: no regular file, or it changes meanwhile.
        :raises DiskFull: it would not fit; nothing was written.
        :raises TransferDamaged: it does not arrive whole.
        :raises CommandFailed: the store over there is unusable, or too slow.
        :raises HostUnreachable: no connection, or it was lost.
        :raises ProtocolBroken: an answer from over there is none.
        """
        path = Path(path)
        if not path.is_file():
            raise UsageFault("no such file", where=str(path), cure="name a file")
        content = Content.of(path)
        name = content.digest + suffix(path)
        if not self._knows(name):
            self._have({name: content}, "", {})
            self._there.add(name)
        return f"{self._path}/{name}"

    def put_folder(self, folder: Path) -> str:
        """Have a folder over there, whole; returns its path.

        :raises UsageFault: no folder, an empty one, or one with something else
            than files and folders in it. And all that `put_file` raises.
        """
        found = {p: Content.of(path) for p, path in files(Path(folder)).items()}
        places = {place: content.digest for place, content in found.items()}
        name = hashlib.sha256(os.fsencode(listing(found))).hexdigest()
        if not self._knows(name):
            contents = {content.digest: content for content in found.values()}
            self._have(contents, name, places)
            self._there.add(name)
        return f"{self._path}/{name}"

    def drop(self, path: str) -> None:
        """Take a file away that `put_file` put there and nobody needs any more.

        :param path: what `put_file` returned.
        """
        self._there.discard(path.rpartition("/")[2])
        self._host.run(["rm", "-f", path], deadline=Deadline(_LEAST_SECONDS))

    def forget(self) -> None:
        """Look again for everything, as after a restart of the board."""
        self._there.clear()

    def close(self) -> None:
        """End the process over there; the next question would start another."""
        self.forget()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def _knows(self, name: str) -> bool:
        if self._keeper is not None and self._keeper.ended:
            self.close()  # the board may have restarted, and lost its files
        return name in self._there

    def _have(
        self, contents: dict[str, Content], folder: str, places: Mapping[str, str]
    ) -> None:
        """Have contents there by name, and the folder that is made of them."""
        whole, missing = self._ask(contents, folder, places)
        if whole:
            return
        small = {}
        for name in missing:
            if contents[name].size > _SMALL_BYTES:
                self._send(contents[name], name)
            else:
                small[name] = contents[name]
        for batch in _batches(small):
            whole, missing = self._ask(batch, folder, places, sent=True)
        if not whole:
            raise TransferDamaged(
                f"of {len(contents)} contents, {len(missing) or 'some'} do not arrive "
                "whole, or do not stay so",
                where=f"{self._host.name}:{self._path}",
                cure="try again; see the board's storage and memory if it stays",
            )

    def _ask(
        self,
        contents: dict[str, Content],
        folder: str,
        places: Mapping[str, str],
        sent: bool = False,
    ) -> tuple[bool, list[str]]:
        """Whether all is there, and the names that are missing.

        :param sent: the contents go with the question.
        """
        names = list(contents)
        question = {
            "contents": [[c.digest, name, c.size] for name, c in contents.items()],
            "sent": sent,
            "folder": folder,
            "files": places,
        }
        data = b"".join(c.read() for c in contents.values()) if sent else b""
        deadline = _allowed(sum(c.size for c in contents.values()))
        try:
            if self._keeper is None:
                self._keeper = Keeper(self._host, self._path)
            whole, missing = self._keeper.ask(question, data, deadline)
        except BaseException:
            self.close()
            raise
        return whole, [names[number] for number in missing]

    def _send(self, content: Content, name: str) -> None:
        """Send a large content by a command of its own."""

        def show(sent: int, total: int) -> None:
            if self._progress:
                self._progress(content.path.name, sent, total)

        self._host.put(
            content.path,
            f"{self._path}/{name}",
            deadline=_allowed(content.size),
            progress=show if content.size > _SHOWN_BYTES else None,
        )
        # Otherwise it lies there under another content's name, which the next
        # question finds out.
        content.check()


def _allowed(size: int) -> Deadline:
    return Deadline(_LEAST_SECONDS + size / _BYTES_PER_SECOND)


def _batches(contents: dict[str, Content]) -> Iterator[dict[str, Content]]:
    """Contents by name, so many as go in one question; at least one, maybe empty."""
    batch: dict[str, Content] = {}
    room = _BATCH_BYTES
    for name, content in contents.items():
        if content.size > room:
            yield batch
            batch, room = {}, _BATCH_BYTES
        batch[name] = content
        room -= content.size
    yield batch

"""Has PySyncObj read pickles by a whitelist, and keep its log, term and vote safely."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import secrets
from pathlib import Path
from typing import IO, Any

import pysyncobj.journal
import pysyncobj.pickle
from pysyncobj.node import Node, TCPNode
from pysyncobj.syncobj import _COMMAND_TYPE

from . import log_file, membership
from .membership import Members

MEMBERSHIP = bytes([_COMMAND_TYPE.MEMBERSHIP])
"""First byte of an entry that has a version of the members; the rest is a pickle."""
REGULAR = bytes([_COMMAND_TYPE.REGULAR])
"""First byte of an entry that calls a replicated method; the rest is a pickle."""


def _text_as_bytes(text: str, encoding: str) -> bytes:
    """Make bytes as protocol 2 does; the real ``_codecs.encode`` would run any codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not allowed")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Make ``b''`` as protocol 2 does; the real ``bytes`` would take any length."""
    return b""


ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _text_as_bytes,
    ("__builtin__", "bytes"): _no_bytes,
    ("__builtin__", "set"): set,
    ("builtins", "set"): set,
    ("pysyncobj.node", "Node"): Node,
    ("pysyncobj.node", "TCPNode"): TCPNode,
}


class Unpickler(pickle.Unpickler):
    """Builds plain values, and of classes only what PySyncObj itself sends and stores."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed") from None


def loads(data: bytes | str) -> Any:
    """Read one pickle. Raises: anything that garbage can make :mod:`pickle` raise; runs nothing."""
    return Unpickler(io.BytesIO(data.encode() if isinstance(data, str) else data)).load()


def load(file: IO[bytes] | gzip.GzipFile) -> Any:
    """Read one pickle from ``file``. As :func:`loads`."""
    return Unpickler(file).load()


class MetaStorer(pysyncobj.journal.MetaStorer):  # type: ignore[misc]  # the library has no types
    """
    Keeps term and vote beside the journal, on the disk before any member hears of them.

    Garbage is not taken for nothing.
    """

    _stored: Any = None

    def getMeta(self) -> Any:
        path = Path(self.getPath())
        return loads(path.read_bytes()) if path.exists() else {}

    def storeMeta(self, meta: Any) -> None:
        if meta == self._stored:
            return  # the library calls every second, whether anything changed or not
        path = Path(self.getPath())
        fresh = path.with_name(path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(pysyncobj.journal.dumps(meta))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._stored = dict(meta)


class FileJournal(log_file.LogFile):
    """
    Keeps the log, and knows its folder's mark and what its entries say of the members.

    ``versions`` are the versions of the members in the log, oldest first, each with its index;
    ``mark`` belongs to the folder.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.versions: list[tuple[int, Members]] = []
        for entry in self:
            self._note(*entry[:2])
        meta = self._FileJournal__meta
        if "mark" not in meta:
            # It lives and dies with the votes beside it: a folder made anew is known by another
            # mark.
            meta["mark"] = new_mark()
            self._FileJournal__metaStorer.storeMeta(meta)
        self.mark: str = meta["mark"]

    def add(self, command: bytes, idx: int, term: int) -> None:
        super().add(command, idx, term)
        self._note(command, idx)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        super().deleteEntriesFrom(entryFrom)
        last = self[-1][1] if len(self) else 0
        self.versions = [version for version in self.versions if version[0] <= last]

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """
        Keep term and vote. Raises: OSError: they are not on the disk, and nothing has changed.
        """
        meta = self._FileJournal__meta
        before = dict(meta)
        try:
            super().setCurrentTerm(term, votedForNodeId)
        except OSError:
            meta.clear()
            meta.update(before)
            raise

    def clear(self) -> None:
        super().clear()
        # what a snapshot replaces had come to it
        self.versions = [(0, newest) for _, newest in self.versions[-1:]]

    def _note(self, command: bytes, idx: int) -> None:
        members = members_of(command)
        if members is not None:
            self.versions.append((idx, members))


def new_mark() -> str:
    """Draw a random word: the mark of a new folder, or the word of a new cluster."""
    return secrets.token_hex(8)


def members_of(command: bytes) -> Members | None:
    """
    Return the version of the members that an entry of the log has.

    None: it is an entry of another kind, or its members cannot be read.
    """
    if command[:1] != MEMBERSHIP:
        return None
    try:
        return membership.read(loads(command[1:]))
    except Exception:
        # garbage can make a pickle raise anything, and every member must judge it alike
        return None


def method_of(command: bytes) -> int | None:
    """Return which replicated method an entry of the log calls; None: it calls none."""
    if command[:1] != REGULAR:
        return None
    try:
        call = loads(command[1:])
    except Exception:
        # garbage can make a pickle raise anything; no member can apply it
        return None
    method = call[0] if isinstance(call, tuple) and call else call
    return method if isinstance(method, int) else None


def entry_of(members: Members) -> bytes:
    """
    Encode what :func:`members_of` reads, but for its first byte, which the library puts there.
    """
    entry: bytes = pysyncobj.pickle.dumps(members.plain())
    return entry


def guard() -> None:
    """Have the library read and keep things this way, in the whole process."""
    for module in (pysyncobj.pickle, pysyncobj.journal):
        module.loads = loads
    pysyncobj.pickle.load = load
    pysyncobj.journal.MetaStorer = MetaStorer
    pysyncobj.journal.FileJournal = FileJournal

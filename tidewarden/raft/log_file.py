"""
PySyncObj keeps its log in this file.

An entry is written before it is spoken of, and never into room that is not there.
"""

from __future__ import annotations

import os
from typing import Any

import pysyncobj.journal

from .journal import RECORD, SIZE

RECORD_BYTES = 2 * SIZE.size + RECORD.size  # around each command


class LogFile(pysyncobj.journal.FileJournal):  # type: ignore[misc]  # the library has no types
    """
    Keeps the log so that its entries are on the disk before the number of them is.

    Both are there before :meth:`sync` returns.

    Who adds entries calls that before anybody hears of them: once for all that came together, for
    each time the disk writes twice, and a member that was long away is sent thousands.

    Room is reserved before an entry is added to anything. Stock lets a file grow with holes and
    maps it: on a full disk the write into a hole ends the process (SIGBUS), and an entry that is in
    memory but not in the file leaves a gap there.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.unsaid = 0
        """Where the entries end that were added, while the file does not say so yet; 0: it does."""
        self._adding = False
        self._reserve(0)

    def add(self, command: Any, idx: int, term: int) -> None:
        """Add an entry. Raises: OSError: there is no room for it, and nothing has changed."""
        self._reserve(len(pysyncobj.journal.to_bytes(command)) + RECORD_BYTES)
        self._adding = True
        try:
            super().add(command, idx, term)
        finally:
            self._adding = False

    def sync(self) -> None:
        """Bring what was added to the disk."""
        if self.unsaid:
            self._say(self.unsaid)

    def _destroy(self) -> None:
        self.sync()
        super()._destroy()

    def _reserve(self, more: int) -> None:
        file = self._FileJournal__journalFile
        number, mapped = file._ResizableFile__f.fileno(), file._ResizableFile__mm
        size, needed = len(mapped), self._FileJournal__currentOffset + more
        if more and needed <= size:
            return
        size = max(2 * size, needed) if more else size
        os.posix_fallocate(number, 0, size)
        if size != len(mapped):
            mapped.resize(size)

    def _FileJournal__setLastRecordOffset(self, offset: int) -> None:
        if self._adding:
            self.unsaid = offset
        else:  # what was cut off is gone from the file before anything is written in its place
            self._say(offset)

    def _say(self, offset: int) -> None:
        self.flush()
        super()._FileJournal__setLastRecordOffset(offset)
        self.flush()
        self.unsaid = 0

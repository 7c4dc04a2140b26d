"""
The disk of a simulated Raft member: when it is full, what is there can be written over in place,
and nothing is added.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from tidewarden.errors import ConfigError
from tidewarden.raft import folder as raft_folder


class Disk:
    """
    ``full`` says whether the disk is, of whichever member writes just now. Between :meth:`take` and
    :meth:`give_back`.
    """

    def __init__(self, full: Callable[[], bool]) -> None:
        self._full = full
        self._before = (os.fsync, os.posix_fallocate)

    def take(self) -> None:
        os.fsync, os.posix_fallocate = self._sync, self._reserve

    def give_back(self) -> None:
        os.fsync, os.posix_fallocate = self._before

    def _sync(self, number: int) -> None:
        """Only of files that are new: the journal is mapped."""
        if self._full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _reserve(self, number: int, offset: int, size: int) -> None:
        if self._full() and offset + size > os.fstat(number).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._before[1](number, offset, size)


def unfit(folder: Path) -> str:
    """Why a member must not begin with that folder; "": it may."""
    try:
        raft_folder.check(folder)
    except ConfigError as error:
        return str(error)
    return ""

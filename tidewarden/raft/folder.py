"""
A node's Raft folder: taken by one process at a time, and looked over before PySyncObj reads it.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import secrets
from pathlib import Path

from tidewarden.errors import ConfigError

from . import files, journal

JOURNAL = "raft.journal"
META = "raft.journal.meta"
DUMP = "raft.dump"
LOCK = "raft.lock"
ADVICE = (
    f"move {JOURNAL}, {META} and {DUMP} aside on this member alone, and the others fill it up again"
)


def take(folder: Path) -> int:
    """
    Make ``folder`` and lock it until the returned descriptor is closed.

    Raises: ConfigError: it cannot be made or written, or another process has it.
    """
    descriptor = -1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, BlockingIOError):
            problem = (
                f"node.data_dir: found {folder}, in use by another node; allowed: a folder of"
                " its own"
            )
        else:
            problem = (
                f"node.data_dir: found {folder}, {error.strerror}; allowed: a folder this process"
                " may write"
            )
        raise ConfigError([problem]) from None


def mark(folder: Path) -> str:
    """
    Return this folder's mark, by which it is told from another node's.

    It is made once and kept in the lock's file, which :func:`take` has taken; empty: the disk is
    full, and a node can do without.
    """
    file = folder / LOCK
    try:
        if not (known := file.read_text("ascii", errors="replace").strip()):
            known = secrets.token_hex(8)
            file.write_text(known + "\n")
    except OSError:
        return ""
    return known


def check(folder: Path) -> None:
    """
    Look over journal, term, vote and dump; a folder without any is a new member's.

    Raises: ConfigError: one of them cannot be read or trusted; the message names it and the way
    out.
    """
    file = folder / JOURNAL
    try:
        data = _read(file)
        meta = _read(folder / META)
        if data == b"" and meta is None:
            # a process ended while it made the file, before anything was written to it
            file.unlink()
            data = None
        if data is None and meta is not None:
            raise ValueError(f"it is missing, though {META} is there")
        term = 0 if data is None else journal.last_term(data)
        file = folder / META
        journal.check_meta(None if meta is None else files.loads(meta), term)
        file = folder / DUMP
        if file.exists():
            with gzip.open(file) as dump:
                files.load(dump)
    except Exception as error:  # garbage can make a pickle raise anything
        if isinstance(error, OSError) and error.errno is not None:
            problem = f"{file}: {error.strerror}; allowed: a file this process may read"
        else:
            problem = f"{file}: cannot be trusted: {error}; allowed: a whole one. Way out: {ADVICE}"
        raise ConfigError([problem]) from error


def _read(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None

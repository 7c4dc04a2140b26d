"""
Mends a store's log which a full disk has left with zeros between its commands.

A valkey-server opens the log that a rewrite begins without ``O_APPEND`` (``aof.c``,
``openNewIncrAofForAppend``; seen with 7.0 and 9.1). Where the disk is full in the midst of a write,
it cuts off what it has written of it (``flushAppendOnlyFile``), and writes that again when there is
room: at the place where it had come to, so that zeros stand before it. All seems well, until the
next start refuses the log, with everything that was written since. No command begins with a zero:
without them, the log is to the byte what the server meant to write.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from tidewarden.config.key_file import sync_folder

TAIL_BYTES = 4096
CHUNK_BYTES = 2**20
_REFUSED = re.compile(
    rb"(?:(?:Bad file format|Unexpected end of file|Unrecoverable error|Unknown command '.*')"
    rb" reading the append only file|Error reading the RDB (?:base file|preamble of the AOF file))"
    rb" ([\w.-]*\w)"
)
_ZEROS = re.compile(rb"\0+")


def refused(server_log: Path) -> str:
    """
    Return which file of its log the server could not read when it started last.

    Empty: it read it, or ended for another reason. ``server_log``: what the server said.
    Raises: OSError.
    """
    try:
        with server_log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().strip().splitlines()
    except FileNotFoundError:
        return ""
    # it ends at once after that line
    found = _REFUSED.search(lines[-1]) if lines else None
    return found[1].decode("ascii") if found else ""


def mend(file: Path) -> int:
    """
    Take the zeros between commands out of a file of the log.

    Returns: how many bytes they were; 0: there are none, or the file is damaged in another way as
    well, and is as it was. Raises: OSError, for instance where a copy of the file has no room.
    """
    with file.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = holes(data)
        if not found:
            return 0
        begins = (0, *(end for _, end in found))
        ends = (*(begin for begin, _ in found), len(data))
        fresh = file.with_name(f"{file.name}.mended")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as target:
            for begin, end in zip(begins, ends, strict=True):
                for at in range(begin, end, CHUNK_BYTES):
                    target.write(data[at : min(at + CHUNK_BYTES, end)])
            target.flush()
            os.fsync(fd)
    fresh.replace(file)
    sync_folder(file.parent)
    return sum(end - begin for begin, end in found)


def holes(data: mmap.mmap) -> list[tuple[int, int]]:
    """
    Return where zeros stand between the commands of a log: from, and up to.

    None are returned where something else is wrong. A last command that was cut short is not: the
    server sees to that itself.
    """
    found, at = list[tuple[int, int]](), 0
    while at < len(data):
        zeros = _ZEROS.match(data, at)
        if zeros is not None:
            found.append(zeros.span())
            at = zeros.end()
        else:
            at = _command_end(data, at)
            if at < 0:
                return []
    return found


def _command_end(data: mmap.mmap, at: int) -> int:
    """Return where a command, or a remark, ends; -1: what begins at ``at`` is neither."""
    if data[at] == ord("#"):
        end = data.find(b"\n", at)
        return end + 1 if end >= 0 else len(data)
    at, words = _number(data, at, "*")
    for _ in range(words):
        if not 0 <= at < len(data):
            break
        at, length = _number(data, at, "$")
        at += length + 2
        if at < length + 2 or (at <= len(data) and data[at - 2 : at] != b"\r\n"):
            return -1
    return at


def _number(data: mmap.mmap, at: int, sign: str) -> tuple[int, int]:
    """Read ``*12\\r\\n``. Returns: where it ends and the number; -1 where it is no such line."""
    end = data.find(b"\r\n", at, at + 24)
    if end < 0:  # cut short, or none
        return (len(data), 0) if len(data) - at < 24 and data[at] == ord(sign) else (-1, 0)
    digits = data[at + 1 : end]
    if data[at] != ord(sign) or not digits.isdigit():
        return -1, 0
    return end + 2, int(digits)

"""
Mends a store's log which a full disk has left with zeros between its commands.

A valkey-server opens the log that a rewrite begins without ``O_APPEND`` (``aof.c``,
``openNewIncrAofForAppend``; seen with 7.0 and 9.1). Where the disk is full in the midst of a write,
it cuts off what it has written of it (``flushAppendOnlyFile``), and writes that again when there is
room: at the place where it had come to, so that zeros stand before it. All seems well, until the
next start refuses the log, with everything that was written since. No command begins with a zero,
and a server passes over remarks (``#``): so zeros between commands become remarks, in their place,
which needs no room.

What it cuts off is reckoned without the zeros. Where the disk is full again before the log is
rewritten, that many bytes of what was answered are gone: so a log that was mended is not known to
be whole.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

ZEROS_MIN = 8
"""Fewer zeros between two commands are not looked for: texts of tasks may have as many."""
CHUNK_BYTES = 2**20
REMARK_BYTES = 512
"""The longest remark, because a server reads no longer lines."""
LINE_BYTES_MAX = 64
_INCREMENT = re.compile(r"^file (\S+) seq (\d+) type i", re.MULTILINE)


def mend(folder: Path) -> int:
    """
    Make remarks of the zeros between the commands of the log that was written last.

    Returns: how many bytes they were; 0: there are none, or the log is damaged otherwise, and is as
    it was. ``folder``: the server's own. Raises: OSError.
    """
    file = _latest(folder / "appendonlydir")
    if file is None:
        return 0
    with file.open("rb+") as log:
        if not _may_have_zeros(log):
            return 0
        found = holes(log)
        for begin, end in found:
            for at in range(begin, end, REMARK_BYTES):
                # no rest of one byte, which has no room for a remark
                last = end if end - at <= REMARK_BYTES + 1 else at + REMARK_BYTES
                log.seek(at)
                log.write(b"#" + b" " * (last - at - 2) + b"\n")
                if last == end:
                    break
        log.flush()
        os.fsync(log.fileno())
    return sum(end - begin for begin, end in found)


def _latest(folder: Path) -> Path | None:
    """Return the file that the server writes to, by its manifest; None: there is none."""
    for manifest in folder.glob("*.manifest"):
        found = _INCREMENT.findall(manifest.read_text("utf-8"))
        if found:
            file = folder / max(found, key=lambda one: int(one[1]))[0]
            return file if file.is_file() else None
    return None


def _may_have_zeros(log: BinaryIO) -> bool:
    """Return whether zeros stand behind the end of a line, or at the beginning."""
    zeros = bytes(ZEROS_MIN)
    log.seek(0)
    tail = b"\r\n"
    while chunk := log.read(CHUNK_BYTES):
        if b"\r\n" + zeros in tail + chunk:
            return True
        tail = chunk[-ZEROS_MIN - 1 :]
    return False


def holes(log: BinaryIO) -> list[tuple[int, int]]:
    """
    Return where zeros stand between the commands of a log: from, and up to.

    None are returned where something else is wrong. A last command that was cut short is not: the
    server sees to that itself.
    """
    found, size = list[tuple[int, int]](), log.seek(0, os.SEEK_END)
    log.seek(0)
    at = 0
    while at < size:
        head = log.read(1)
        if head == b"\0":
            end = _zeros_end(log, at)
            if end - at < ZEROS_MIN:
                return []
            found.append((at, end))
        elif head == b"#":
            log.readline()
        elif head != b"*" or not _pass_command(log, size):
            return []
        at = log.tell()
    return found


def _zeros_end(log: BinaryIO, at: int) -> int:
    """Go to the end of the zeros that begin at ``at``; the first of them was read."""
    end = at + 1
    while chunk := log.read(CHUNK_BYTES):
        rest = chunk.lstrip(b"\0")
        end += len(chunk) - len(rest)
        if rest:
            break
    log.seek(end)
    return end


def _pass_command(log: BinaryIO, size: int) -> bool:
    """Go to the end of a command whose ``*`` was read; False: it is none."""
    words = _number(log)
    if words == 0:
        return False
    for _ in range(words or 0):
        head = log.read(1)
        length = _number(log) if head == b"$" else None
        if head and (head != b"$" or (length is None and log.tell() < size)):
            return False
        if not head or length is None:
            return True  # cut short
        log.seek(length, os.SEEK_CUR)
        if (ending := log.read(2)) != b"\r\n":
            return log.tell() >= size and b"\r\n".startswith(ending)
    return words is not None or log.tell() >= size


def _number(log: BinaryIO) -> int | None:
    """Read ``12\\r\\n``; None: it is no number, or was cut short."""
    line = log.readline(LINE_BYTES_MAX)
    return int(line) if line.endswith(b"\r\n") and line[:-2].isdigit() else None

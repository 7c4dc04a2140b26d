"""
Records every run of a task in one file that all workers append to.

That takes a microsecond, and no worker waits for it.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

RECORD = struct.Struct("<qddq")
PATH = "BENCH_RUNS"
URL = "BENCH_URL"

_file = -1


def ran(number: int, due_s: float, hold_s: float = 0.0) -> None:
    """What every task does: say that it runs, then keep its worker for ``hold_s``."""
    note(number, due_s)
    if hold_s:
        time.sleep(hold_s)


def note(number: int, due_s: float) -> None:
    """
    Record that a task runs in this process.

    It was due at that monotonic time, which is the whole machine's.
    """
    global _file  # one descriptor a process, also after a fork
    if _file < 0:
        _file = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_file, RECORD.pack(number, due_s, time.monotonic(), os.getpid()))


@dataclass(frozen=True)
class Run:
    """
    One run: which task, when it was due and when it began (monotonic seconds), in which process.
    """

    number: int
    due_s: float
    began_s: float
    pid: int


class Runs:
    """The file, as those read it who wait for the runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __len__(self) -> int:
        return self.path.stat().st_size // RECORD.size

    def since(self, first: int) -> list[Run]:
        """All runs but the ``first`` so many."""
        with self.path.open("rb") as file:
            file.seek(first * RECORD.size)
            data = file.read()
        return [
            Run(*found)
            for found in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])
        ]

"""
A clock that a whole group of processes shares, and that runs faster than the machine's.

Whoever is started with :attr:`FastClock.environ` reads it in place of every clock there is, and
waits by it (``fast_clock.c``): Python, Valkey and libraries alike, so that all times of a run keep
their proportions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import mmap
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
ANCHORS_AT, ANCHORS_MAX = 64, 64
ANCHOR = struct.Struct("dqqqq")


def missing_compiler() -> str:
    """Why no clock can be faster here; empty when it can."""
    return "" if shutil.which("gcc") else "no gcc on PATH (Debian: gcc and libc6-dev)"


class FastClock:
    """The group's clock, as the process sees it that drives the group. Seconds are the group's."""

    def __init__(self, library: Path, shared: mmap.mmap, file: Path) -> None:
        self.environ = {"LD_PRELOAD": str(library), "FAST_CLOCK": str(file)}
        self._shared = shared
        self._anchors = 0
        self._factor = 1.0
        self._asked = 1.0
        self._most = math.inf
        self._machine_s = self._our_s = time.monotonic()
        self._offset_s = time.time() - self._our_s
        """Of unix time from the monotonic clock: neither steps while a run lasts."""
        self.run_at(1.0)

    def run_at(self, factor: float) -> None:
        """Run so many times as fast as the machine's from now on, or as :meth:`slow` has found."""
        self._asked, factor = factor, min(factor, self._most)
        machine_s = time.monotonic()
        self._our_s, self._machine_s, self._factor = self.now_s(), machine_s, factor
        moments = (machine_s + self._offset_s, self._our_s + self._offset_s, machine_s, self._our_s)
        place = self._anchors % ANCHORS_MAX  # Nobody reads one that is so old any more.
        ANCHOR.pack_into(
            self._shared,
            ANCHORS_AT + place * ANCHOR.size,
            factor,
            *(int(moment_s * 1e9) for moment_s in moments),
        )
        self._shared[:4] = struct.pack("I", place)  # it is whole before it counts
        self._anchors += 1

    @property
    def factor(self) -> float:
        """How many times as fast as the machine's it runs."""
        return self._factor

    def slow(self, share: float, least: float) -> None:
        """
        Run slower from now on, for the machine is not quick enough; never at below ``least``.

        Who waits by the clock wakes too early then, looks, and waits on: nobody is late for it.
        """
        self._most = max(least, self._factor * share)
        if self._most < self._factor:
            self.run_at(self._asked)

    def quicken(self, share: float) -> None:
        """Run faster again, for the machine is quick enough; never faster than was asked for."""
        if self._factor < self._asked:
            self._most = self._factor * share
            self.run_at(self._asked)

    def now_s(self) -> float:
        """Seconds since a moment that does not matter."""
        return self._our_s + (time.monotonic() - self._machine_s) * self._factor

    def unix_ms(self) -> int:
        """What the group takes for the time, unix milliseconds."""
        return int((self.now_s() + self._offset_s) * 1000)

    async def sleep(self, seconds: float) -> None:
        """Return when so many of the group's seconds have passed."""
        until_s = self.now_s() + seconds
        while (left_s := until_s - self.now_s()) > 0:
            await asyncio.sleep(left_s / self._factor)


@contextlib.contextmanager
def fast_clock(folder: Path) -> Iterator[FastClock]:
    """
    A clock that runs as the machine's until it is told otherwise; its files lie in ``folder``.
    """
    library, file = folder / "fast_clock.so", folder / "clock"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    file.write_bytes(bytes(ANCHORS_AT + ANCHORS_MAX * ANCHOR.size))
    opened = os.open(file, os.O_RDWR)
    try:
        with mmap.mmap(opened, 0) as shared:
            yield FastClock(library, shared, file)
    finally:
        os.close(opened)

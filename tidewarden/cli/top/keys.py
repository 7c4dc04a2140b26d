"""Keys of a terminal, one at a time, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


class Keys:
    """
    Reads single keys; without a terminal there are none.

    ``fd`` is the terminal's, None: there is none.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> str:
        """Return the next key, or nothing when there was none for so long."""
        if self._fd is None:
            select.select([], [], [], seconds)
            return ""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        return os.read(self._fd, 1).decode("ascii", "replace") if ready else ""


@contextmanager
def terminal_keys() -> Iterator[Keys]:
    """Yield the keys of the terminal on standard input, which is as before when this ends."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)

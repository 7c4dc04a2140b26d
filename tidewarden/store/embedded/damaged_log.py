"""
Lets a process that runs a store ask its node, which may be another process, to give up its log.

The question is a file in the store's folder, which says what is wrong. The node answers by another
name of that file, once another store is open as the primary: then the host sets the log aside, and
the store begins empty and copies that primary. Before, a log that nobody can read is left alone:
somebody may have to mend it by hand.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

NOTICE = "log-damaged"
GIVEN_UP = f"{NOTICE}.given-up"


def tell(folder: Path, why: str) -> None:
    """Say that the store cannot start, for its log cannot be read. Raises: OSError."""
    (folder / NOTICE).write_text(why, "utf-8")


def told(folder: Path) -> str:
    """Return what was said; empty: nothing is wrong."""
    with contextlib.suppress(OSError, ValueError):
        return (folder / NOTICE).read_text("utf-8")
    return ""


def give_up(folder: Path) -> bool:
    """Allow the log to be set aside; return whether that was asked for."""
    try:
        (folder / NOTICE).replace(folder / GIVEN_UP)
    except OSError:  # a disk that fails: it is asked for again
        return False
    return True


def is_given_up(folder: Path) -> bool:
    """Return whether the log may be set aside."""
    return (folder / GIVEN_UP).exists()


def forget(folder: Path) -> None:
    """Note that nothing is wrong with the log, any longer. Raises: OSError."""
    for name in (NOTICE, GIVEN_UP):
        (folder / name).unlink(missing_ok=True)

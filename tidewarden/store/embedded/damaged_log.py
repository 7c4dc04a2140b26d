"""
Lets a process that runs a store ask its node, which may be another process, to give up its log.

The question is a file in the store's folder, which says what is wrong. The node answers by another
name of that file, once another store is open as the primary: then the host sets the log aside, and
the store begins empty and copies that primary. Before, a log that nobody can read is left alone:
somebody may have to mend it by hand, and who has done so is heard, too.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

NOTICE = "log-damaged"
GIVEN_UP = f"{NOTICE}.given-up"


def tell(folder: Path, file: Path) -> None:
    """
    Note that the store cannot start, because this file of its log is damaged. Raises: OSError.
    """
    (folder / NOTICE).write_text(f"{file}\n{_state(file)}", "utf-8")


def told(folder: Path) -> str:
    """Return the file of the log that is noted as damaged; empty: none is."""
    return _read(folder / NOTICE)[0]


def give_up(folder: Path) -> bool:
    """Allow the log to be set aside; return whether that was asked for."""
    try:
        (folder / NOTICE).replace(folder / GIVEN_UP)
    except OSError:  # a disk that fails: it is asked for again
        return False
    return True


def is_given_up(folder: Path) -> bool:
    """Return whether the log may be set aside, and has not been mended since it was damaged."""
    file, state = _read(folder / GIVEN_UP)
    return bool(file) and _state(Path(file)) == state


def forget(folder: Path) -> None:
    """Take the question and the answer away, before each start. Raises: OSError."""
    for name in (NOTICE, GIVEN_UP):
        (folder / name).unlink(missing_ok=True)


def _read(notice: Path) -> tuple[str, str]:
    """Return the file of the notice, and its state then; empty: there is no such notice."""
    with contextlib.suppress(OSError, ValueError):
        file, _, state = notice.read_text("utf-8").partition("\n")
        return file, state
    return "", ""


def _state(file: Path) -> str:
    """Return a word that differs after any change of the file."""
    try:
        found = file.stat()
    except OSError:
        return "gone"
    return f"{found.st_size} {found.st_mtime_ns}"

"""
Remembers which starts of a store have every write that the starts before them had.

A store that was killed and started again on the same boot of its host has every write that it ever
acknowledged: they were in the kernel's hands. So may a store that ended in order, whatever happened
since. A store that was cut off by a power failure, or in the midst of taking over another's data,
may not: its lineage begins anew, and it is no member of any in-sync set. The lineage lies in the
store's folder, and is on disk before the store starts.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tidewarden.config.key_file import sync_folder
from tidewarden.config.settings import LINEAGE

MARKER = "syncing"
PLACE = "place"
"""An empty file, made once in each folder: see :func:`place_of`."""
KEPT_MAX = 64
"""The most earlier starts that are remembered: with more a store would do nothing but start."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Names the starts whose every write a store's data have."""

    boot_id: str
    """The boot of the host on which the lineage was last written."""
    incarnations: tuple[str, ...]
    """The starts, the newest last, which runs, or ran last."""
    clean: bool
    """Whether the last start ended in order, all of its log on disk."""
    place: str
    """The name of the store's folder; a copy of the folder, which may be old, has another."""

    @property
    def incarnation(self) -> str:
        """Return the start that runs, or ran last."""
        return self.incarnations[-1]

    @property
    def continues(self) -> tuple[str, ...]:
        """Return the starts before the last one, the newest last."""
        return self.incarnations[:-1]


def boot_id() -> str:
    """Return a word that differs after each boot of this host; empty: the host has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def read(folder: Path) -> Lineage | None:
    """Return the lineage that was written last; None: there is none that can be read."""
    try:
        found = json.loads((folder / LINEAGE).read_text("utf-8"))
        lineage = Lineage(
            str(found["boot_id"]),
            tuple(str(word) for word in found["incarnations"]),
            found["clean"] is True,
            str(found["place"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return lineage if lineage.incarnations else None


def continued(
    before: Lineage | None,
    incarnation: str,
    boot: str,
    place: str,
    *,
    whole: bool,
) -> Lineage:
    """
    Return the lineage of a start: what ``before`` has and itself, or itself alone.

    Args:
        before: of the last start in this folder.
        boot: of the host now; empty: unknown, and no two unknown boots are the same.
        place: of the folder now.
        whole: the data of that start are there, and were not being replaced when it ended.
    """
    kept: tuple[str, ...] = ()
    if before is not None and whole and before.place == place:
        same_boot = bool(boot) and before.boot_id == boot
        if same_boot or before.clean:
            kept = before.incarnations[-KEPT_MAX:]
    return Lineage(boot, (*kept, incarnation), clean=False, place=place)


def place_of(folder: Path) -> str:
    """
    Return a word that differs in every copy of a store's folder, also in the folder's place.

    Raises: OSError: it cannot be written.
    """
    # A number alone would not do: file systems give that of a removed folder to the next one. When
    # a file was made, or put back, nobody can copy; and nothing ever changes this one.
    fd = os.open(folder / PLACE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
        found = os.fstat(fd)
    finally:
        os.close(fd)
    return f"{found.st_ino}.{found.st_ctime_ns}"


def begin(folder: Path, incarnation: str, boot: str) -> Lineage:
    """
    Note on disk that the store of ``folder`` starts as ``incarnation``; return its lineage.

    Raises: OSError: it cannot be written; then the store must not start.
    """
    whole = not (folder / MARKER).exists() and any(folder.glob("appendonlydir/*.manifest"))
    found = continued(read(folder), incarnation, boot, place_of(folder), whole=whole)
    _write(folder, found)
    clear_syncing(folder)  # after that: killed between, the next start finds it again
    return found


def end_cleanly(folder: Path) -> None:
    """
    Note on disk that the store ended in order, having brought its log to disk.

    Raises: OSError: it cannot be written; the next start is then judged as after a kill.
    """
    found = read(folder)
    if found is not None:
        _write(folder, Lineage(found.boot_id, found.incarnations, True, found.place))


def mark_syncing(folder: Path) -> None:
    """
    Note that the store's data are about to be replaced by another's, or may miss a write.

    A start that finds this begins a new lineage. Before every REPLICAOF that names a server.

    Raises: OSError: it cannot be written; then the data must not be replaced.
    """
    # In the kernel's hands is enough, and every failover waits for it: another boot finds no
    # orderly end in the lineage, and begins anew whether the note has come to the disk or not.
    os.close(os.open(folder / MARKER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def clear_syncing(folder: Path) -> None:
    """Take the note of :func:`mark_syncing` away: the data are whole again."""
    with contextlib.suppress(FileNotFoundError):
        (folder / MARKER).unlink()


def _write(folder: Path, lineage: Lineage) -> None:
    fresh = folder / f"{LINEAGE}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(
            {
                "boot_id": lineage.boot_id,
                "incarnations": lineage.incarnations,
                "clean": lineage.clean,
                "place": lineage.place,
            },
            file,
        )
        file.flush()
        os.fsync(fd)
    fresh.replace(folder / LINEAGE)
    sync_folder(folder)

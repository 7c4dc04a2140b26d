"""
Sets a store's diverged or unreadable data aside, before the primary's replace them.

Diverged data are hard links to the files of its log, which cost nothing while the store has them as
well. Once the store has caught up it is known whether they are gone from it: if it took a whole
copy, its log has another base, and the data set aside are kept; else they are dropped. Two are
kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

FOLDER = "discarded"
NOTE = "note.json"
DAMAGED = "damaged-"
KEPT_MAX = 2
_BASE = re.compile(r"^file \S+ seq (\d+) type b$", re.MULTILINE)


def set_aside(
    folder: Path, view: int, seq: int, member: str, at_ms: int, *, missed: bool = True
) -> Path | None:
    """
    Link the files of a store's log aside; None: there is nothing.

    ``view``, ``seq``: of the data; ``member``: ``node.incarnation`` of the store; ``missed``:
    whether they may have what was acknowledged, and the primary has not. Data that were set aside
    before and are there still are not linked again. Raises: OSError.
    """
    log = folder / "appendonlydir"
    base = _base(folder)
    if base < 0:
        return None
    for note in _notes(folder):
        if not note["kept"] and (note["base"], note["view"], note["seq"]) == (base, view, seq):
            return folder / FOLDER / str(note["name"])
    place = folder / FOLDER / f"view{view}-{at_ms}"
    place.mkdir(parents=True, mode=0o700)
    for file in log.iterdir():
        os.link(file, place / file.name)
    note = _note(base, view, seq, member, at_ms, missed=missed)
    (place / NOTE).write_text(json.dumps(note), "utf-8")
    return place


def set_damaged_aside(folder: Path, member: str, at_ms: int) -> Path:
    """
    Move a log that the server cannot read aside, and keep it; the store begins empty.

    ``member``: ``node.incarnation`` of the store. Raises: OSError.
    """
    source = folder / "appendonlydir"
    note = _note(-1, 0, 0, member, at_ms, missed=True, kept=True)
    place = folder / FOLDER / f"{DAMAGED}{at_ms}"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    source.rename(place)
    with contextlib.suppress(OSError):  # the disk is full: it is kept all the same, if not listed
        (place / NOTE).write_text(json.dumps(note), "utf-8")
    return place


def settle(folder: Path) -> list[tuple[Path, bool]]:
    """
    Keep data that are gone from the store, which has caught up, and drop those that are not.

    Returns: what is kept from now on, and whether it may be missed. Raises: OSError.
    """
    base, kept = _base(folder), list[tuple[Path, bool]]()
    noted = {note["name"] for note in _notes(folder)}
    for place in (folder / FOLDER).glob("*/"):
        if place.name not in noted and not place.name.startswith(DAMAGED):
            shutil.rmtree(place)  # cut short, before the store was told to follow
    for note in _notes(folder):
        place = folder / FOLDER / str(note["name"])
        if note["kept"]:
            continue
        if note["base"] == base:
            shutil.rmtree(place)
            continue
        told = {name: value for name, value in note.items() if name != "name"}
        fresh = place / f"{NOTE}.new"
        fresh.write_text(json.dumps({**told, "kept": True}), "utf-8")
        fresh.replace(place / NOTE)
        kept.append((place, note.get("missed", True)))
    for note in _notes(folder)[:-KEPT_MAX]:
        shutil.rmtree(folder / FOLDER / str(note["name"]))
    return kept


def listed(folder: Path) -> list[dict[str, Any]]:
    """Return the kept data, the oldest first: ``path``, ``bytes``, ``at_ms``, ``view``, ``seq``."""
    found = []
    for note in _notes(folder):
        if note["kept"]:
            place = folder / FOLDER / str(note["name"])
            size = sum(file.stat().st_size for file in place.iterdir() if file.name != NOTE)
            facts = {name: note[name] for name in ("at_ms", "view", "seq", "member")}
            found.append({"path": str(place), "bytes": size, **facts})
    return found


def _note(
    base: int, view: int, seq: int, member: str, at_ms: int, *, missed: bool, kept: bool = False
) -> dict[str, Any]:
    return {
        "at_ms": at_ms,
        "view": view,
        "seq": seq,
        "member": member,
        "base": base,
        "missed": missed,
        "kept": kept,
    }


def _notes(folder: Path) -> list[dict[str, Any]]:
    """Return the note of each, the oldest first; data without a note were not finished."""
    notes = []
    for place in (folder / FOLDER).glob("*/"):
        with contextlib.suppress(OSError, ValueError):
            notes.append({**json.loads((place / NOTE).read_text("utf-8")), "name": place.name})
    return sorted(notes, key=lambda note: (note["at_ms"], note["name"]))


def _base(folder: Path) -> int:
    """Return the number of the base of a store's log; -1: there is no log."""
    manifests = list((folder / "appendonlydir").glob("*.manifest"))
    if not manifests:
        return -1
    found = _BASE.search(manifests[0].read_text("utf-8"))
    return int(found[1]) if found else 0

"""What a host's power cut takes from the disk of its store."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

LINEAGE = "lineage.json"


def logs(store: Path) -> dict[int, int]:
    """The length of each part of a store's log, by inode."""
    found = {}
    for path in store.rglob("*.incr.aof"):
        state = path.stat()
        found[state.st_ino] = state.st_size
    return found


def cut(store: Path, synced: dict[int, int]) -> int:
    """
    The store has ended: what stands behind those lengths is lost, and the host booted anew.

    Returns: how many bytes are lost.
    """
    lost = 0
    for path in store.rglob("*.incr.aof"):
        state = path.stat()
        length = min(state.st_size, synced.get(state.st_ino, 0))
        lost += state.st_size - length
        os.truncate(path, length)
    reboot(store)
    return lost


def reboot(store: Path) -> None:
    """What the store wrote last, it wrote on another boot of its host."""
    file = store / LINEAGE
    if file.exists():
        file.write_text(json.dumps(json.loads(file.read_text()) | {"boot_id": secrets.token_hex()}))

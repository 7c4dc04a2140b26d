"""
Lets a process that stops a store tell its node, which is another process, and wait for it.

The notice is a file in the store's folder. The node hands the primary over, has the store leave the
in-sync set, and takes the notice away.
"""

from __future__ import annotations

from pathlib import Path

NOTICE = "stopping"


def give(folder: Path) -> None:
    """Write down that the store is about to stop. Raises: OSError."""
    (folder / NOTICE).touch(mode=0o600)


def is_given(folder: Path) -> bool:
    """Return whether the notice is there, which the node takes away once it has acted on it."""
    return (folder / NOTICE).exists()


def take_away(folder: Path) -> None:
    """Take the notice away: the node has acted, or the store was started again. Raises: OSError."""
    (folder / NOTICE).unlink(missing_ok=True)

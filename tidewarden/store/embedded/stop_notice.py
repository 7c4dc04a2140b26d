"""
Lets a process that stops a store tell its node, which is another process, and wait for it.

The notice is a file in the store's folder. The node hands the primary over, has the store leave the
in-sync set, and takes the notice away.
"""

from __future__ import annotations

from pathlib import Path

NOTICE = "stopping"


def give(folder: Path) -> None:
    """Say that the store is about to stop. Raises: OSError."""
    (folder / NOTICE).touch(mode=0o600)


def is_given(folder: Path) -> bool:
    """Tell whether that was said, and the node has not done what it does then."""
    return (folder / NOTICE).exists()


def take_away(folder: Path) -> None:
    """Note that the node has done it, or that the store was started again. Raises: OSError."""
    (folder / NOTICE).unlink(missing_ok=True)

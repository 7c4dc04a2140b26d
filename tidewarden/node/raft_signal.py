"""Tells the parts of a node that Raft's view has changed."""

from __future__ import annotations

from collections.abc import Callable


class RaftSignal:
    """
    Calls whoever listens whenever Raft's view changes.

    Raft may run before the parts that care for it are built: each listens from when it is there.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change from now on."""
        self._listeners.append(listener)

    def ring(self) -> None:
        """Tell everybody who listens."""
        for listener in self._listeners:
            listener()

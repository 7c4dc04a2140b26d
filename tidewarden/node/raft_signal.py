"""Tells a part of a node that Raft's view has changed."""

from __future__ import annotations

from collections.abc import Callable


class RaftSignal:
    """
    Calls its listener whenever Raft's view changes.

    Raft may run before the part that cares for it is built, which listens from when it is there.
    """

    def __init__(self) -> None:
        self._listener: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change from now on, in the place of the former listener."""
        self._listener = listener

    def ring(self) -> None:
        """Call the listener."""
        self._listener()

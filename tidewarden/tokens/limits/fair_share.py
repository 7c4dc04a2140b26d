"""
How many refreshes one node has under way in all, and how the providers share that.

A provider may hold its fair share, and more while there is room, but never the last tenth: so one that hangs on to all it can
get never keeps another from beginning.
"""

from __future__ import annotations

import asyncio
from collections import Counter

SEATS = 2000  # What the load aimed at needs (3,000 refreshes a second) where each takes more than half a second.


class FairShare:
    """``total`` seats among the providers that have work."""

    RESERVE = 0.1

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, asyncio.Event] = {}

    def free(self, name: str) -> int:
        """How many more this provider may take now."""
        others = sum(1 for other, held in self._held.items() if held and other != name)
        others += sum(1 for other in self._waiting if other != name and not self._held[other])
        held, empty = self._held[name], self._total - self._held.total()
        within = max(1, self._total // (others + 1)) - held
        beyond = empty - max(1, int(self._total * self.RESERVE)) if others else empty
        return max(0, min(empty, max(within, beyond)))

    def take(self, name: str, seats: int) -> None:
        """So many more are taken."""
        self._held[name] += seats

    def leave(self, name: str) -> None:
        """One is free again."""
        self._held[name] -= 1
        for event in self._waiting.values():
            event.set()

    async def wait(self, name: str) -> None:
        """Until somebody leaves one."""
        event = self._waiting.setdefault(name, asyncio.Event())
        event.clear()
        try:
            await event.wait()
        finally:
            self._waiting.pop(name, None)

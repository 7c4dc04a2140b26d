"""
Shares one node's requests under way among its providers.

A provider may hold its fair share, and more while there is room, but never the last tenth: so one
that hangs on to all it can get never keeps another from beginning.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

# What the load aimed at needs (3,000 refreshes a second) where each takes more than half a second.
SEATS = 2000


class FairShare:
    """Shares ``total`` seats among the providers that have work."""

    RESERVE = 0.1

    def __init__(self, total: int) -> None:
        self._total = total
        self._held: Counter[str] = Counter()
        """Of those that hold any."""
        self._taken = 0
        self._waiting: dict[str, asyncio.Event] = {}
        self._empty_handed = 0
        """Of these, who hold none."""

    def free(self, name: str) -> int:
        """How many more this provider may take now."""
        # Each turn of each provider asks: of thousands, to look at all of them took most of a
        # refresh's time.
        others = (
            len(self._held) + self._empty_handed - (name in self._held or name in self._waiting)
        )
        held, empty = self._held[name], self._total - self._taken
        within = max(1, self._total // (others + 1)) - held
        beyond = empty - max(1, int(self._total * self.RESERVE)) if others else empty
        return max(0, min(empty, max(within, beyond)))

    def take(self, name: str, seats: int) -> None:
        """So many more are taken."""
        if seats and name not in self._held and name in self._waiting:
            self._empty_handed -= 1
        self._taken += seats
        if seats:
            self._held[name] += seats

    def leave(self, name: str) -> None:
        """One is free again."""
        self._taken -= 1
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
            self._empty_handed += name in self._waiting
        # Those who have waited longest, as many as there may be room for: who finds none waits on,
        # behind the others.
        room = (
            max(1, self._total - self._taken - int(self._total * self.RESERVE))
            if self._taken
            else None
        )
        for event in islice(self._waiting.values(), room):
            event.set()

    async def wait(self, name: str) -> None:
        """Until somebody leaves one."""
        assert name not in self._waiting, "each provider waits once"
        event = self._waiting[name] = asyncio.Event()
        self._empty_handed += name not in self._held
        try:
            await event.wait()
        finally:
            del self._waiting[name]
            self._empty_handed -= name not in self._held

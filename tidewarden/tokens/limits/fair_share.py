"""
Shares one node's requests under way among its providers.

A provider may hold as many as are free, so that one which hangs on to all it can get never keeps
another from beginning: the dynamic thresholds of Choudhury and Hahne (1998), with a factor of one.
"""

from __future__ import annotations

import asyncio
from collections import Counter

SEATS = 4000
"""
One provider may hold half of them: what the load aimed at needs (3,000 refreshes a second) where
each takes more than half a second.
"""


class FairShare:
    """Shares ``total`` seats among the providers that have work."""

    def __init__(self, total: int) -> None:
        self._total = self._empty = total
        self._held: Counter[str] = Counter()
        """Of those that hold any."""
        self._waiting: dict[str, asyncio.Event] = {}

    def free(self, name: str) -> int:
        """How many more this provider may take now."""
        return max(0, self._empty - self._held[name])

    def take(self, name: str, seats: int) -> None:
        """So many more are taken."""
        if seats:
            self._empty -= seats
            self._held[name] += seats

    def leave(self, name: str) -> None:
        """
        One is free again: as many as may find one are woken, those who waited longest first.

        All of them when nobody holds any, for nobody would wake the others then.
        """
        self._empty += 1
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
        woken = 0
        for waiting, event in self._waiting.items():
            if woken == self._empty < self._total:
                break
            if self.free(waiting):
                event.set()
                woken += 1

    async def wait(self, name: str) -> None:
        """Until somebody leaves one."""
        assert name not in self._waiting, "each provider waits once"
        event = self._waiting[name] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self._waiting[name]

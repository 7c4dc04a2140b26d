"""
How many of a client's refresh tokens are refused, told to the store, which sums it up for all nodes: see ``tokens/lua/trend.lua``.

What goes well is told every half minute. A refusal is told at once, before it is decided what becomes of its account; those that
come while one is on its way go together.
"""

from __future__ import annotations

import asyncio
import logging

from tidewarden import errors
from tidewarden.clock import Clock

from .findings import Trend
from .ledger import Ledger

log = logging.getLogger("tidewarden.tokens")

TELL_S = 30.0


class Evidence:
    """Of one client, as one node sees it. ``latest`` is what the store said last."""

    def __init__(self, queue: str, ledger: Ledger, clock: Clock) -> None:
        self._queue = queue
        self._ledger = ledger
        self._clock = clock
        self._well = 0
        self._refused = 0
        self._told_at = clock.monotonic()
        self._telling = asyncio.Lock()
        self.latest = Trend()

    def note(self, *, refused: bool) -> None:
        """A refresh that was answered, by a pair or a refusal."""
        self._refused += refused
        self._well += not refused

    @property
    def due(self) -> bool:
        """Whether what was noted is to be told, though nobody asks."""
        return self._well > 0 and self._clock.monotonic() - self._told_at >= TELL_S

    async def weigh(self) -> bool:
        """
        Tell what was noted; :attr:`latest` says then what it amounts to. Never raises: untold, it is told with the next.

        Returns: whether by this the state of all nodes has changed, so that it is this one's to say so.
        """
        async with self._telling:
            well, refused = self._well, self._refused
            if not well and not refused:
                return False  # Somebody else's call had ours with it.
            self._well = self._refused = 0
            self._told_at = self._clock.monotonic()
            try:
                self.latest = await self._ledger.trend(self._queue, well, refused)
            except errors.Error as error:
                self._well, self._refused = self._well + well, self._refused + refused
                log.debug("what %s refuses was not told: %s", self._queue, error)
                return False
            return self.latest.news

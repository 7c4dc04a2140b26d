"""A clock that tests move."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class ManualClock:
    """A clock that tests move: an hour of one-second timers plays in a fraction of a second."""

    def __init__(self, unix_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = 1000.0
        self._offset_ms = unix_ms - 1_000_000
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._monotonic

    def unix_ms(self) -> int:
        return round(self._monotonic * 1000) + self._offset_ms

    async def sleep_until(self, until: float) -> None:
        if until <= self._monotonic:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (until, next(self._order), future))
        await future

    def step_unix(self, step_ms: int) -> None:
        """Step the wall clock alone, as an administrator or NTP does."""
        self._offset_ms += step_ms

    def stall(self, seconds: float) -> None:
        """Move both clocks on as for a process that was stopped: sleepers wake too late, next."""
        self._monotonic += seconds

    async def advance(self, seconds: float) -> None:
        """Move both clocks on, waking each sleeper at its own time."""
        end = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            until, _, future = heapq.heappop(self._sleepers)
            self._monotonic = max(self._monotonic, until)
            if not future.done():
                future.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        self._monotonic = end
        await asyncio.sleep(0)

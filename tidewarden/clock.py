"""
Time, passed in.

Two times, never mixed: monotonic seconds for time-outs, unix milliseconds for what outlives a
process.

Due times, deadlines and leases are judged by the *store's* clock, inside its scripts; the clock
here is for this process's own timers, and for wall-clock text.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol, TypeVar


class Clock(Protocol):
    """The clock that parts are given; tests pass a :class:`ManualClock`."""

    def monotonic(self) -> float:
        """Seconds of a clock that never steps."""

    def unix_ms(self) -> int:
        """Milliseconds since 1970, which a host may step."""

    async def sleep_until(self, until: float) -> None:
        """Return when :meth:`monotonic` has reached ``until`` (seconds)."""


class SystemClock:
    """The machine's clocks."""

    # itself, for it is read twice a request
    monotonic = staticmethod(time.monotonic)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - time.monotonic()))


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


TURN_S = 0.002
"""How long a piece of work holds the loop before others have their turn, about."""
LOOK_EVERY = 32

Item = TypeVar("Item")


async def in_turns(items: Iterable[Item], look_every: int = LOOK_EVERY) -> AsyncIterator[Item]:
    """Go through ``items``; after each piece of work of some time others have their turn."""
    began = time.monotonic()
    for number, item in enumerate(items, 1):
        yield item
        if not number % look_every and time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


async def sleep(clock: Clock, seconds: float) -> None:
    """Sleep ``seconds`` on ``clock``."""
    await clock.sleep_until(clock.monotonic() + seconds)

"""
Time, passed in.

Two times, never mixed: monotonic seconds for time-outs, unix milliseconds for what outlives a
process.

Due times, deadlines and leases are judged by the *store's* clock, inside its scripts; the clock
here is for this process's own timers, and for wall-clock text.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol, TypeVar


class Clock(Protocol):
    """Tells the time to parts of the program."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never steps."""

    def unix_ms(self) -> int:
        """Return the milliseconds since 1970, which a host may step."""

    async def sleep_until(self, until: float) -> None:
        """Return when :meth:`monotonic` has reached ``until`` (seconds)."""


class SystemClock:
    """Reads the machine's clocks."""

    # itself, for it is read twice a request
    monotonic = staticmethod(time.monotonic)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - time.monotonic()))


TURN_S = 0.002
"""How long a piece of work holds the loop before others have their turn, about."""
LOOK_EVERY = 32
SHARED_S = 0.1
"""Between two turns that all duties of a process share which have time."""

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


def shared_turn(clock: Clock, seconds: float) -> float:
    """
    Return when about ``seconds`` will have passed, of :meth:`Clock.monotonic`, for a duty at rest.

    It is one of the moments that a process's duties share, at most :data:`SHARED_S` away: to wake
    costs more than most of them do. Fewer seconds than that are as they are.
    """
    now_s = clock.monotonic()
    if seconds < SHARED_S or not isinstance(clock, SystemClock):
        return now_s + seconds
    return max(math.floor(now_s / SHARED_S) + 1, round((now_s + seconds) / SHARED_S)) * SHARED_S


async def rest(clock: Clock, seconds: float) -> None:
    """Sleep about ``seconds`` on ``clock``: see :func:`shared_turn`."""
    await clock.sleep_until(shared_turn(clock, seconds))


async def sleep_or(event: asyncio.Event, clock: Clock, until: float) -> None:
    """Return once ``event`` is set, or :meth:`Clock.monotonic` has reached ``until`` (seconds)."""
    if isinstance(clock, SystemClock):  # some loops do this dozens of times a second
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - clock.monotonic()):
                await event.wait()
        return
    ends = asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep_until(until))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()

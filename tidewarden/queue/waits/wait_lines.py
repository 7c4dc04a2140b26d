"""
Keeps lines of waiters, one for each place.

The first of a line asks the store, the next when it is through. Puts wait in lines for room
(``capacity_wait.py``), acquires for a lock (``queue/locks.py``). Takes do not: several are tried at
once, and they go along with puts (``shards/waitlist.py``, on the path of every take). Waits for the
ends of tasks have no order, since one end answers all of them (``results.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from .drain import Drain

AWAY_S = 0.5  # after the store was away
AGAIN_S = 60.0  # so often is asked anew, in case a message was lost without a reconnect

Place = TypeVar("Place", bound=Hashable)


async def woken(event: asyncio.Event, at: float) -> bool:
    """Wait until ``event`` is set, or the loop's time is ``at``; return whether it was set."""
    try:
        async with asyncio.timeout_at(at):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Turn:
    """Tells one waiter of a line when to ask; :attr:`event` is set whenever it is to."""

    __slots__ = ("_drain", "event")

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self.event = asyncio.Event()

    async def wait(self, until: float, again: float = math.inf) -> None:
        """
        Wait to be woken, or until the loop's time is ``again``.

        Raises: TimeoutError: it is ``until``.
        """
        if not await woken(self.event, min(again, until)) and again >= until:
            raise TimeoutError

    def begin(self) -> None:
        """
        Begin to ask; a message that comes with the answer wakes the waiter anew. Raises: Draining.
        """
        self._drain.check()
        self.event.clear()


class WaitLines(Generic[Place]):
    """Keeps a line of waiters for each place, in the order they came to this node."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self.by_place: dict[Place, OrderedDict[Turn, None]] = {}
        self.waiting = 0  # in all lines

    @contextlib.contextmanager
    def join(self, place: Place) -> Iterator[Turn]:
        """
        Stand at the end of the line of ``place``; a caller that leaves as the first wakes the next.
        """
        turn = Turn(self._drain)
        line = self.by_place.setdefault(place, OrderedDict())
        line[turn] = None
        self.waiting += 1
        if len(line) == 1:
            turn.event.set()
        try:
            yield turn
        finally:
            first = next(iter(line)) is turn
            del line[turn]
            self.waiting -= 1
            if not line:
                del self.by_place[place]
            elif first:
                self.wake(place)

    def __contains__(self, place: Place) -> bool:
        """Return whether a caller waits there."""
        return place in self.by_place

    def wake(self, place: Place) -> None:
        """Let the first of the line ask, because the event that it waits for may have come."""
        line = self.by_place.get(place)
        if line:
            next(iter(line)).event.set()

    def wake_all(self) -> None:
        """Let the first of each line ask, because messages may have been missed."""
        for place in self.by_place:
            self.wake(place)

    def end_waits(self) -> None:
        """Wake and refuse every waiter, because the node drains."""
        for line in self.by_place.values():
            for turn in line:
                turn.event.set()

"""
Leads the links of a member to the store that takes the writes.

It goes by the facts of Raft and the nodes' reports, so no node has to be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable

from tidewarden.errors import StoreDown

FIND_S = 1.0
"""A link waits so long, at pace 1 or below, for a primary at each attempt."""
Moved = Callable[[str], None]


class ReplicatedPrimary:
    """
    Knows the URL of the primary: see :class:`tidewarden.store.endpoint.PrimaryFinder`.

    One for all links of a process. Links may live in loops of other threads.
    """

    def __init__(self, name: str, pace: float = 1.0) -> None:
        """Call the cluster of stores ``name`` in messages; ``pace`` is Raft's."""
        self.name = name
        self._find_s = FIND_S * max(1.0, pace)
        self.fault = ""
        """
        Why no primary can be chosen, or why it may be lost; empty: one may be chosen at any time.
        """
        self.alone = False
        """Whether none can be chosen because no majority of the nodes is in reach."""
        self.on_fault: Callable[[str, bool], None] = lambda _fault, _alone: None
        """Called in the loop of :meth:`note_fault` with each new fault."""
        self._lock = threading.Lock()
        self._url = ""
        self._why = "it is not known yet who is the primary"
        self._followers: list[tuple[asyncio.AbstractEventLoop, Moved]] = []
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def tell(self, url: str, why: str) -> None:
        """
        Note where the primary is open now; ``url`` is empty while there is none, ``why`` says why.

        Each follower hears of another URL. While there is none no follower does: their connections
        may serve on, or end by themselves.
        """
        with self._lock:
            self._why = why
            if url == self._url:
                return
            self._url = url
            followers = list(self._followers) if url else []
            waiting, self._waiting = (self._waiting, []) if url else ([], self._waiting)
        for loop, moved in followers:
            _call(loop, functools.partial(moved, url))
        for loop, future in waiting:
            _call(loop, functools.partial(_wake, future))

    def note_fault(self, fault: str, *, alone: bool) -> None:
        """
        Note why no primary can be chosen; empty: one may be at any time.

        ``alone``: because no majority of the nodes is in reach.
        """
        if (fault, alone) != (self.fault, self.alone):
            self.fault, self.alone = fault, alone
            self.on_fault(fault, alone)

    def follow(self, moved: Moved) -> None:
        """Call ``moved`` in this loop with the URL of each other primary from now on."""
        with self._lock:
            self._followers.append((asyncio.get_running_loop(), moved))

    async def forget(self, moved: Moved) -> None:
        """Stop calling ``moved``."""
        with self._lock:
            self._followers = [one for one in self._followers if one[1] != moved]

    async def find(self) -> str:
        """
        Return the URL of the primary, as soon as there is one that is open.

        Raises: StoreDown: there is none within a second; why.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._url:
                return self._url
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.append((loop, future))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._find_s):
                await future
        with self._lock:
            self._waiting = [one for one in self._waiting if one[1] is not future]
            if self._url:
                return self._url
            raise StoreDown(f"{self.name} has no primary that is open: {self.fault or self._why}")


def _call(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have ``call`` run in a loop, unless that was closed meanwhile."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)

"""Tells the cluster's readers of events what changed among the replicated stores."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.cluster.replication.store_changes import StoreChange
from tidewarden.errors import Error

log = logging.getLogger("tidewarden.daemon")

KEPT_MAX = 100
AWAY_S = 1.0

Tell = Callable[[str, str, int, Mapping[str, Any]], Awaitable[None]]
"""``Events.tell_of_cluster``."""


class StoreEvents:
    """
    Writes events about the stores to the stream, which lies in the primary.

    So the primary's node tells a change, whichever node noticed it: :meth:`note` on every node, and
    :meth:`run` for ever. A change is in the log and the metrics of every node; its event is lost
    when the node that was to tell it dies first.
    """

    def __init__(self, tell: Tell, is_primary: Callable[[], bool], clock: Clock) -> None:
        """
        Ask ``is_primary`` whether this node's store is the primary, as the members have agreed.
        """
        self._tell, self._is_primary, self._clock = tell, is_primary, clock
        self._untold: deque[tuple[int, StoreChange]] = deque(maxlen=KEPT_MAX)
        self._noted = asyncio.Event()

    def note(self, change: StoreChange) -> None:
        """Tell of this change soon, if this node is the one to do so; returns at once."""
        if self._is_primary():
            self._untold.append((self._clock.unix_ms(), change))
            self._noted.set()

    async def run(self) -> None:
        """Tell what was noted, for ever."""
        while True:
            await self._noted.wait()
            try:
                await self._tell_all()
            except Error as error:
                log.info("what changed among the stores is told later: %s %s", error.code, error)
                await sleep(self._clock, AWAY_S)

    async def _tell_all(self) -> None:
        while self._untold:
            at_ms, change = self._untold.popleft()
            if not self._is_primary():
                continue
            try:
                await self._tell(_id(change), change.kind, at_ms, _details(change))
            except Error:
                self._untold.appendleft((at_ms, change))
                raise
        self._noted.clear()


def _id(change: StoreChange) -> str:
    """Make the event's id, the same on every node that tells it, so that a webhook gets it once."""
    return f"{change.kind}-{change.view}-{change.version}-{change.node}"


def _details(change: StoreChange) -> dict[str, Any]:
    return {"node": change.node, "view": change.view, "message": change.text}

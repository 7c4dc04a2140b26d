"""Ends queues that nobody has used for as long as their ``expire_ms`` says."""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import Error, Full, NotFound, Stale, StoreDown
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.shards.shard_group import TOGETHER
from tidewarden.queue.shards.shard_scripts import ShardScripts

from .dropped_queues import DroppedQueues

log = logging.getLogger("tidewarden.queue")

GAP_S = 10.0  # without a look for so long: this leader is new, or the store was away
REFUSED_MAX = 8
"""
The most queues of one look that could not be dropped, because many were: more would hold up the
leader.
"""
TEND_S = 60.0  # how often it is looked for drops that broke off


class QueueExpiry:
    """
    Looks for queues to end, on the leader.

    A queue is in use while somebody takes from it or waits there, and while tasks are leased. A
    shard notes the last take. Takes that wait are not known to the store for certain, so their
    nodes are woken first: a take that still waits asks again, and that is a use. A use that comes
    after the look is seen as the shards are closed. After a gap in the looks, in which perhaps
    nobody could use it, a queue has another minute.
    """

    def __init__(
        self, catalog: Catalog, scripts: ShardScripts, dropped: DroppedQueues, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._scripts = scripts
        self._dropped = dropped
        self._clock = clock
        self._looked_at_s = self._tend_at_s = float("-inf")
        self.expired = self._refused = 0
        self._behind = ""

    async def look(self, step: Callable[[], None]) -> None:
        """
        End the queues that nobody uses any more, and now and then drops that others left half done.

        ``step`` is called after each. Raises: StoreDown.
        """
        gap = self._clock.monotonic() - self._looked_at_s > GAP_S
        self._refused = 0
        names = sorted(self._catalog.expiring)
        at = bisect.bisect(names, self._behind)  # whoever was refused last waits for all others
        queues = names[at:] + names[:at]
        for first in range(0, len(queues), TOGETHER):
            some = queues[first : first + TOGETHER]
            asked = (
                self._scripts.run_each("queue.unused", queue, (int(gap),), together=True)
                for queue in some
            )
            found = await asyncio.gather(*asked, return_exceptions=True)
            for queue, unused in zip(some, found, strict=True):
                await self._end(queue, unused)
                step()
        self._looked_at_s = self._clock.monotonic()
        if self._clock.monotonic() >= self._tend_at_s:
            self._tend_at_s = self._clock.monotonic() + TEND_S
            await self._dropped.tend()

    async def _end(self, queue: str, unused: list[Any] | BaseException) -> None:
        """End a queue that is in use in none of its shards. Raises: StoreDown."""
        try:
            if isinstance(unused, BaseException):
                raise unused
            if all(unused) and self._refused < REFUSED_MAX:
                tasks = await self._dropped.drop(queue, force=True, free=True)
                self.expired += 1
                log.info("the queue %s, which nobody used, ended with %d tasks", queue, tasks)
        except (NotFound, Stale):
            log.debug("%s was dropped, changed or used by somebody else", queue)
        except Full as error:
            self._refused, self._behind = self._refused + 1, queue
            log.warning("queues that nobody uses stay: %s", error)
        except StoreDown:
            raise
        except Error as error:
            log.error("it is not known whether %s is used: %s", queue, error)

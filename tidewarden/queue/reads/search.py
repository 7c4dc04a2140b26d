"""Searches the tasks of a queue that are in one state, a bounded number of them a call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tidewarden.clock import in_turns
from tidewarden.queue.shards.shard import Shard
from tidewarden.queue.task import COUNT_MAX, check_name, check_range, check_state, described

from .condition import Condition
from .near_reads import Mark
from .store_reads import StoreReads, place_of

LOOKED_MAX = 1000
"""Tasks that one call looks at."""
BYTES_MAX = 8_388_608
"""Of payloads that one call reads, and the task with which it goes past them."""
PIECE = 100
PIECE_BYTES = 1_000_000
"""What one script reads: more would hold up the store, and the loop that takes its answer in."""


class Search:
    """Holds what one call has found so far; it goes from shard to shard, and ends in one."""

    def __init__(
        self,
        reads: StoreReads,
        queue: str,
        state: str,
        condition: Condition,
        count: int,
        max_stale_ms: int,
        mark: Mark | None,
    ) -> None:
        self._queue = queue
        self._state = state
        self._condition = condition
        self._count = count
        self._mark = mark
        self._run = functools.partial(reads.run, max_stale_ms=max_stale_ms, mark=mark)
        self._read_bytes = 0
        self.tasks: list[dict[str, Any]] = []
        self.looked = 0
        self.unread = 0

    @property
    def is_over(self) -> bool:
        """Return whether this call has done its part."""
        return (
            len(self.tasks) >= self._count
            or self.looked >= LOOKED_MAX
            or self._read_bytes >= BYTES_MAX
        )

    async def through(self, shard: Shard, cursor: str) -> str:
        """Look at a shard's tasks behind a cursor; where to go on there, empty: at no other."""
        args = (self._state, LOOKED_MAX - self.looked, cursor, 2)
        rows, last = await self._run(shard, "queue.peek", args)
        places = {row[0]: (number, row[1]) for number, row in enumerate(rows, 1)}
        ids = [row[0] async for row in in_turns(rows) if self._condition.fits_id(row[0])]
        before = self.looked
        while ids:
            args = ("ids", PIECE_BYTES, "", 0, *ids[:PIECE])
            found, many = await self._run(shard, "queue.peek", args)
            stopped_at = await self._choose(found) or (
                ids[int(many) - 1] if self._read_bytes >= BYTES_MAX else None
            )
            if stopped_at is not None:
                number, place = places[stopped_at]
                self.looked = before + number
                return _text(place)
            ids = ids[int(many) :]
        self.looked = before + len(rows)
        return _text(last)

    async def _choose(self, rows: Sequence[Any]) -> bytes | None:
        """Take over the rows that fit; the id of the last that there was room for."""
        async for row in in_turns(rows, 1):
            task_id, state, payload, reason = row[0], row[1], row[2], row[11]
            self._read_bytes += len(payload)
            if state != self._state.encode():
                continue  # it went on since its id was read
            fits = self._condition.fits(payload, reason)
            self.unread += fits is None
            if fits:
                self.tasks.append(described(self._queue, row) | (self._mark or {}))
                if len(self.tasks) == self._count:
                    return bytes(task_id)
        return None


class QueueSearch:
    """Searches queues, at the primary or in the node's own copy."""

    def __init__(self, reads: StoreReads) -> None:
        self._reads = reads

    async def find(
        self,
        queue: str,
        state: str,
        count: int = 100,
        after: str = "",
        max_stale_ms: int = 0,
        *,
        condition: Condition,
        marks: bool = False,
    ) -> dict[str, Any]:
        """
        Return at most ``count`` tasks in one state that fit a condition, and how far it looked.

        ``after``, also of the answer, as of :meth:`.admin.QueueAdmin.page`; ``looked`` at so many
        tasks, at most :data:`LOOKED_MAX`, ``unread`` of them too long to be read as JSON. It may
        have found nothing, and there is more. Raises: BadArg; NoQuorum.
        """
        check_state(state)
        check_range(count, "count", 1, COUNT_MAX)
        check_name(queue)
        read = functools.partial(self._find, queue, state, condition, count, after, max_stale_ms)
        return await self._reads.answered(read, max_stale_ms, marks=marks)

    async def _find(
        self,
        queue: str,
        state: str,
        condition: Condition,
        count: int,
        after: str,
        max_stale_ms: int,
        mark: Mark | None,
    ) -> dict[str, Any]:
        shards = await self._reads.shards(queue, mark)
        at, cursor = place_of(queue, shards, after)
        search = Search(self._reads, queue, state, condition, count, max_stale_ms, mark)
        place = ""
        while at < len(shards):
            cursor = await search.through(shards[at], cursor)
            if cursor:
                place = f"{at}:{cursor}"
                break
            at += 1
            if search.is_over and at < len(shards):
                place = f"{at}:"
                break
        told = {"tasks": search.tasks, "after": place}
        return told | {"looked": search.looked, "unread": search.unread} | (mark or {})


def _text(place: bytes) -> str:
    return place.decode("utf-8", "surrogateescape")

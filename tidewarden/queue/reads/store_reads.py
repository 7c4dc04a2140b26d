"""Runs reading scripts of shards at the primary, or in the node's own copy of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidewarden.errors import BadArg, Error, Field, NoQuorum
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.partitioning import DIGITS_MAX
from tidewarden.queue.shards.shard import Shard
from tidewarden.store.connection import Arg

from .near_reads import ALONE, Answer, Mark, NearReads


class StoreReads:
    """
    Reads shards of queues, as old as the caller allows.

    ``near``: the node's own copy; None: it has none.
    """

    def __init__(self, catalog: Catalog, near: NearReads | None) -> None:
        self._catalog = catalog
        self.near = near

    async def answered(
        self, read: Callable[[Mark | None], Awaitable[Answer]], max_stale_ms: int, *, marks: bool
    ) -> Answer:
        """Have ``read`` ask the primary, or the near copy: see :meth:`.NearReads.answered`."""
        if self.near is None:
            return await read(None)
        return await self.near.answered(read, max_stale_ms, marks=marks)

    async def shards(self, queue: str, mark: Mark | None) -> Sequence[Shard]:
        """Return a queue's shards; with a mark as the copy knows them."""
        if self.near is not None and mark is not None:
            return await self.near.shards(queue)
        return await self._catalog.open(queue)

    async def run(
        self,
        shard: Shard,
        name: str,
        args: Sequence[Arg],
        max_stale_ms: int,
        mark: Mark | None,
    ) -> Any:
        """
        Run a reading script on the near copy, if that stands in or is known to be no older.

        Else it is run at the primary.
        """
        if self.near is not None and mark is not None:
            return await self.near.run_at(shard, name, args)
        if max_stale_ms and self.near is not None and self.near.age.within(max_stale_ms):
            with contextlib.suppress(Error):  # the primary answers, or says what is wrong
                return await self.near.run_at(shard, name, args)
        return await shard.run(name, args)


def absent(what: str) -> NoQuorum:
    """Say that a copy which stands in for the primary lacks something."""
    return NoQuorum(f"{ALONE}, and this node's copy, which may be old, has no {what}")


def place_of(queue: str, shards: Sequence[Shard], after: str) -> tuple[int, str]:
    """
    Return the shard that a page begins in, and the cursor there.

    Raises: BadArg: ``after`` is no cursor of the queue.
    """
    number, _, cursor = after.partition(":")
    if after and (not number.isdecimal() or len(number) > DIGITS_MAX or int(number) >= len(shards)):
        raise BadArg(Field("after"), f" is {after[:60]!r}, which is no cursor of {queue}")
    return int(number or 0), cursor

"""Runs one script on several shards of a queue, in one call where they lie on one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tidewarden.errors import StoreDown
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.scripts.loader import EACH

from .shard import Shard


class ShardGroup:
    """Runs scripts whose header says EACH on several shards of one queue."""

    def __init__(self, link: StoreClient, scripts: Scripts, holder: Callable[[], str]) -> None:
        self._link = link
        self._scripts = scripts
        self._holder = holder

    async def run(self, shards: Sequence[Shard], name: str, args: Sequence[Arg]) -> list[Any]:
        """
        Run a script on these shards of one queue; returns the items of each.

        A shard that has refused runs the script by itself, and finds out what that means. Raises:
        as :meth:`Shard.run`.
        """
        replies: list[Any] = [StoreDown("it was not asked")] * len(shards)
        if not self._link.clustered and len(shards) > 1 and not any(one.flies for one in shards):
            keys = (*(shard.keys[0] for shard in shards), *shards[0].keys[1:])
            said = (len(shards), shards[0].stamped(0), self._holder(), *args)
            for shard in shards:
                shard.sent()
            try:
                replies = await self._scripts.run(self._link, name + EACH, keys, said)
            finally:
                for shard in shards:
                    shard.answered()
        found: list[Any] = [None] * len(shards)
        alone: dict[int, asyncio.Future[Any]] = {}
        for place, (shard, reply) in enumerate(zip(shards, replies, strict=True)):
            if isinstance(reply, Exception):
                alone[place] = shard.run(name, args)
            else:
                now_ms, next_ms, woke, found[place] = reply
                shard.on_shard_state(now_ms, next_ms, bool(woke))
        for place, items in zip(alone, await asyncio.gather(*alone.values()), strict=True):
            found[place] = items
        return found

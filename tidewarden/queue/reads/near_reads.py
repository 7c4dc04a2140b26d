"""
Reads shards of queues in the node's own copy of the data.

While no majority of the nodes is in reach, that copy stands in for the primary: it may be old, and
the primary may be another store by now. So its answers are marked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tidewarden.clock import Clock, in_turns
from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.queue.catalog import Catalog
from tidewarden.queue.settings import QueueSettings, settings_from
from tidewarden.queue.shards.shard import Shard
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.durability import SYSTEM
from tidewarden.store.near_copy import CopyAge, NearCopy
from tidewarden.store.reply_errors import NoMajority

ALONE = "no majority of the nodes is in reach"
Answer = TypeVar("Answer")
Mark = dict[str, int]
"""
The mark of each answer of a copy that stands in for the primary: ``stale_ms``, how long ago the
copy had everything; -1: that is not known.
"""


class NearReads:
    """
    Runs scripts that only read on shards as the node's own copy has them.

    What their replies say of a shard's next events is not believed: the primary knows better.
    """

    def __init__(
        self, catalog: Catalog, copy: NearCopy, primary: StoreClient, clock: Clock
    ) -> None:
        """Ask by ``primary``, the connection by which the node reads otherwise."""
        self._catalog = catalog
        self._copy = copy
        self._primary = primary
        self.age = CopyAge(copy, primary, clock, self._confirm)

    def _confirm(self) -> Callable[[], Awaitable[None]]:
        catalog = self._catalog
        return catalog.durability.firm(self._primary, SYSTEM, f"{{{catalog.cluster}}}")

    async def answered(
        self,
        read: Callable[[Mark | None], Awaitable[Answer]],
        max_stale_ms: int = 0,
        *,
        marks: bool,
    ) -> Answer:
        """
        Have ``read`` ask the primary; or this copy, for which it gets the mark of its answer.

        Each read comes by here that may be answered by a copy which cannot be compared with the
        others: if no majority is in reach, the caller ``marks`` the answer, and lets it be older
        than ``max_stale_ms`` (0: as old as the copy is). Raises: NoQuorum: no majority is in reach,
        and the answer has to be newer; what ``read`` raises.
        """
        if await self.reaches_majority():
            try:
                return await read(None)
            except NoMajority:  # it is known by now
                if not marks:
                    raise
        return await read(self._mark(max_stale_ms, marks))

    async def reaches_majority(self) -> bool:
        """
        Return whether the primary answers for a majority, as far as is known.

        A node that hears no majority may reach a primary that one confirms. If its own store is the
        primary and no majority confirms it, another may have been elected: it is a copy like
        others.
        """
        if not self._copy.alone():
            return True
        if not self._primary.up:
            return False
        try:
            await self._confirm()()
        except (NoQuorum, StoreDown):
            return False
        return True

    def _mark(self, max_stale_ms: int, marks: bool) -> Mark:
        known_ms = self.age.known_ms()
        if not marks:
            raise NoQuorum(f"{ALONE}, and this node's copy may be old")
        if max_stale_ms and not 0 <= known_ms <= max_stale_ms:
            raise NoQuorum(f"{ALONE}, and this node's copy may be older than {max_stale_ms} ms")
        return {"stale_ms": known_ms}

    async def names(self) -> list[str]:
        """List every queue that the copy has, sorted. Raises: StoreDown."""
        raw = await self._copy.ask("HKEYS", self._catalog.names_key)
        return sorted([name.decode() async for name in in_turns(raw) if name.isascii()])

    async def settings(self, queue: str) -> QueueSettings:
        """Read a queue's settings. Raises: NoQuorum: the copy has no such queue; StoreDown."""
        raw = await self._copy.ask("HGET", self._catalog.names_key, queue)
        if raw is None:
            raise NoQuorum(f"{ALONE}, and this node's copy has no queue {queue}")
        return settings_from(queue, raw)

    async def shards(self, queue: str) -> Sequence[Shard]:
        """
        Return a queue's shards, as this node or its copy knows them.

        Raises: as :meth:`settings` does.
        """
        shards = self._catalog.shards.get(queue)
        return shards or self._catalog.shards_with(queue, await self.settings(queue))

    async def run(self, name: str, queue: str, shard: int, args: Sequence[Arg]) -> Any:
        """
        Run a script (``room.file``, its header says READS) on one shard; return its items.

        Raises: StoreDown: the copy does not answer, or this node does not know the queue; the
        script's own refusals.
        """
        shards = self._catalog.shards.get(queue)
        if shards is None or shard >= len(shards):
            raise StoreDown(f"the queue {queue} is not known here, and the store does not say")
        return await self.run_at(shards[shard], name, args)

    async def run_at(self, shard: Shard, name: str, args: Sequence[Arg]) -> Any:
        """Run a script as :meth:`run` does, on a shard that is at hand."""
        said = (shard.stamped(0), self._catalog.holder, *args)
        _, _, _, items = await self._copy.run(name, shard.keys, said)
        return items

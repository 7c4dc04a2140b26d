"""Reads shards of queues in the node's own copy of the data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import StoreDown
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.durability import SYSTEM
from tidewarden.store.near_copy import CopyAge, NearCopy

from .catalog import Catalog
from .shards.shard import Shard


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

        def confirm() -> Callable[[], Awaitable[None]]:
            return catalog.durability.firm(primary, SYSTEM, f"{{{catalog.cluster}}}")

        self.age = CopyAge(copy, primary, clock, confirm)

    async def run(self, name: str, queue: str, shard: int, args: Sequence[Arg]) -> Any:
        """
        Run a script (``room.file``, its header says READS) on one shard; its items.

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

"""Runs scripts of any room on the shards of queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from tidewarden.clock import in_turns
from tidewarden.errors import NotFound
from tidewarden.queue.catalog import Catalog, clock_ms
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg
from tidewarden.store.durability.held_answers import Moved

from .resharding import Resharded
from .shard import Shard

log = logging.getLogger("tidewarden.queue")

KEYS_TOGETHER = 64  # keys in one EXISTS; where it finds any, they are asked for one by one
HAVING_MAX = 1024  # keys asked for at a time
READS_MAX = 3  # of what is to be shown, if each time another server takes over meanwhile
NEVER_MS = 1 << 42  # stands for never in a shard's record, as record.lua has it


class ShardScripts:
    """Runs scripts (``room.file``) on one shard or on each shard of a queue."""

    def __init__(self, catalog: Catalog, link: StoreClient, scripts: Scripts) -> None:
        self._catalog = catalog
        self._link = link
        self._scripts = scripts

    async def run(
        self, name: str, queue: str, shard: int, args: Sequence[Arg], *, now_ms: int = 0
    ) -> Any:
        """
        Run a script of any room (``room.file``) on one shard; returns its items.

        Raises: StoreDown: it may or may not have run; the script's own refusals; Full.
        """
        await self._catalog.open(queue)
        try:
            return await self._shard_at(queue, shard).run(name, args, now_ms)
        except Resharded:
            return await self._shard_at(queue, shard).run(name, args, now_ms)

    async def run_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> tuple[int, int, Any]:
        """
        Run a script of one shard on another connection.

        Its answer waits for no durability but ``strongest``.

        Returns: the store's clock (ms), when anything happens next (ms, -1: nothing), the script's
        items. Raises: what :meth:`run` raises.
        """
        await self._catalog.open(queue)
        try:
            now_ms, next_ms, _, items = await self._run_by(link, name, queue, shard, args)
        except Resharded:
            now_ms, next_ms, _, items = await self._run_by(link, name, queue, shard, args)
        return now_ms, next_ms, items

    async def items_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        """Return the items of a script that is run as by :meth:`run_on`."""
        return (await self.run_on(link, name, queue, shard, args))[2]

    async def shown_on(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        """
        Return the items of a script that reads, once they may be shown.

        A later reader is shown nothing older, see :meth:`Durability.shown`. If another server takes
        over meanwhile, they are read again. It runs on another connection. Raises: NoQuorum:
        nothing may be shown now; what :meth:`run` raises.
        """
        await self._catalog.open(queue)
        for _ in range(READS_MAX - 1):
            try:
                return await self._shown(link, name, queue, shard, args)
            except (Moved, Resharded) as error:
                log.debug("%s of %s is read again: %s", name, queue, error)
        return await self._shown(link, name, queue, shard, args)

    async def _shown(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        place = self._shard_at(queue, shard)
        firm = self._catalog.durability.shown(link)
        _, _, _, items = await place.run_by(link, name, args)
        await firm()
        return items

    async def _run_by(
        self, link: StoreClient, name: str, queue: str, shard: int, args: Sequence[Arg]
    ) -> Any:
        place = self._shard_at(queue, shard)
        if self._scripts[name].durability != "strongest":
            return await place.run_by(link, name, args)
        sender, firm = self._catalog.durability.strongest_route(link, place.keys[0])
        reply = await place.run_by(sender, name, args)
        await firm()
        return reply

    async def run_each(
        self, name: str, queue: str, args: Sequence[Arg], *, together: bool = False
    ) -> list[Any]:
        """
        Run a script (its header says EACH) on every shard of a queue; returns the items of each.

        It is one call where all shards lie on one server. ``together``: as of
        :meth:`.ShardGroup.run`. Raises: as :meth:`run`.
        """
        group, shards = self._catalog.group, await self._catalog.open(queue)
        try:
            return await group.run(shards, name, args, together=together)
        except Resharded:
            return await group.run(self._catalog.shards[queue], name, args, together=together)

    async def delays(self, queue: str) -> list[int]:
        """
        Return in how many ms the next event comes in each shard; -1: none does.

        The shard's record says so, and every script keeps it true. The result is 0 on several
        servers, which have a clock each, and where a record cannot be read. Raises: StoreDown;
        Internal.
        """
        shards = await self._catalog.open(queue)
        if self._link.clustered:
            return [0] * len(shards)
        records = (
            self._link.call("HMGET", f"{shard.keys[0]}:shard", "alarm", "tick") for shard in shards
        )
        now, *found = await asyncio.gather(self._catalog.time(), *records)
        now_ms = clock_ms(now)
        return [_delay_ms(record, now_ms) for record in found]

    async def having(self, queues: Iterable[str], name: str) -> list[tuple[str, int]]:
        """
        Return the shards of these queues that have a key of that name.

        On one server a command asks for many keys. Raises: StoreDown.
        """
        places: list[tuple[str, int, str]] = []
        async for queue in in_turns(queues):
            with contextlib.suppress(NotFound):  # it was dropped since its name was read
                shards = await self._catalog.open(queue)
                places += [(queue, one.index, f"{one.keys[0]}:{name}") for one in shards]
        together = 1 if self._link.clustered else KEYS_TOGETHER
        found = []
        for first in range(0, len(places), HAVING_MAX):
            some = places[first : first + HAVING_MAX]
            parts = [some[at : at + together] for at in range(0, len(some), together)]
            there = await asyncio.gather(
                *(self._link.call("EXISTS", *(key for *_, key in part)) for part in parts)
            )
            doubtful = [
                place for part, count in zip(parts, there, strict=True) if count for place in part
            ]
            each = await asyncio.gather(*(self._link.call("EXISTS", key) for *_, key in doubtful))
            found += [
                (queue, shard) for (queue, shard, _), one in zip(doubtful, each, strict=True) if one
            ]
        return found

    def _shard_at(self, queue: str, index: int) -> Shard:
        """Return the shard of that index. Raises: NotFound: the queue has fewer shards."""
        shards = self._catalog.shards[queue]
        if index >= len(shards):
            raise NotFound(f"{queue} has no shard {index}; it has {len(shards)}")
        return shards[index]


def _delay_ms(moments: Sequence[bytes | None], now_ms: int) -> int:
    """Return the time until the first of these moments of a shard's record; -1: there is none."""
    said = [moment for moment in moments if moment is not None]
    if not all(moment.isdigit() for moment in said):
        return 0  # a script that reads the record puts it right
    at_ms = min((int(moment) for moment in said), default=NEVER_MS)
    return max(0, at_ms - now_ms) if at_ms < NEVER_MS else -1

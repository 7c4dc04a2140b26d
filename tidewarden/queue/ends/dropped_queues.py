"""
Drops queues and topics.

A queue is dropped in three steps: its shards are closed to every node, as for a new cut; its name
leaves the cluster's and is noted as dropped, from when on the drop is done; the tasks in its shards
are removed. A node that dies in between leaves the last step to the leader, and the first to the
next caller (:meth:`Catalog.keep_layout`). The note stays for a day: until then a late caller is
told that the queue was dropped, whatever it asks for, and only Q.CONFIG makes a queue of that name
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from tidewarden.errors import BadArg, Error, Full, NotFound, Stale, StoreDown
from tidewarden.queue.bulk import Bulk
from tidewarden.queue.catalog import Catalog, clock_ms
from tidewarden.queue.settings import Dropped, QueueSettings, dropped_from
from tidewarden.queue.shards.resharding import Resharded
from tidewarden.queue.shards.shard import Shard
from tidewarden.queue.shards.shard_settings import Closing, above, close, last_lease
from tidewarden.queue.task import STATES, check_name
from tidewarden.store.client import StoreClient

log = logging.getLogger("tidewarden.queue")

KEPT_MS = 86_400_000  # how long a dropped queue is known as such
DROPPED_MAX = 100_000  # that are known as such


def _holds_error(queue: str, *, force: bool) -> BadArg:
    holds = "has schedules" if force else "holds tasks or has schedules"
    remedy = "delete these first" if force else "FORCE drops it with its tasks"
    return BadArg(f"{queue} {holds}; {remedy}")


class DroppedQueues:
    """Drops queues and topics, and ends drops that other nodes left half done."""

    def __init__(self, catalog: Catalog, link: StoreClient, bulk: Bulk) -> None:
        self._catalog = catalog
        self._link = link
        self._bulk = bulk

    async def drop(self, queue: str, *, force: bool = False, free: bool = False) -> int:
        """
        Drop a queue; returns how many tasks went with it, the leased ones too.

        Without ``force`` it has to be empty, and linked to no topic. ``free``: it ends because
        nobody uses it, and whoever uses the name makes a new queue, at once.

        Raises: NotFound: there is no such queue; BadArg: it is a topic, the system's, holds tasks,
        is linked, or has schedules, which have to be deleted before; Full: as many were dropped
        within a day as may be, or of those of its maker; Stale: its settings were changed
        meanwhile, or it is ``free`` and in use; NoQuorum, StoreDown.
        """
        catalog = self._catalog
        if check_name(queue).startswith("_"):
            raise BadArg(f"{queue} is the system's, and is not dropped")
        if queue not in catalog.shards and not await catalog.exists(queue):
            if await catalog.stored_links(queue) is not None:
                raise BadArg(f"{queue} is a topic, which Q.DROPTOPIC drops")
            await catalog.refuse_dropped(queue)
            raise NotFound(f"there is no queue {queue}")
        shards = await catalog.open(queue)
        raw, settings = await catalog.stored(queue)
        firm = catalog.durability.firm(self._link, settings.durability, f"{{{catalog.cluster}}}")
        # Before the shards are closed, which ends waits and holds up puts.
        await self._look(queue, shards, raw, force=force)
        now_ms = clock_ms(await self._catalog.time())
        note = Dropped(settings.layout + 1, settings.shards, now_ms, free=free)
        how: Closing = "unused_layout" if free else "last_layout" if force else "layout"
        if not await close(shards, note.layout, how):
            await catalog.keep_layout(queue, raw, settings, note.layout)
            raise Stale(f"{queue} is in use") if free else _holds_error(queue, force=force)
        try:
            await self._take_name(queue, raw, note, force=force)
        except (BadArg, Full, Stale):
            raw, stored = await catalog.stored(queue)
            if stored.layout < note.layout:
                await catalog.keep_layout(queue, raw, stored, note.layout)
            raise
        catalog.lose(queue, free=free)
        await firm()
        return await self._clear(queue, note)

    async def _look(self, queue: str, shards: Sequence[Shard], raw: bytes, *, force: bool) -> None:
        """Check that the queue may be dropped; raise as :meth:`drop` does."""
        rows = await asyncio.gather(*(shard.run("queue.stats", ()) for shard in shards))
        if any(row[10] or (not force and any((*row[:4], row[11]))) for row in rows):
            raise _holds_error(queue, force=force)
        await self._take_name(queue, raw, None, force=force)

    async def _take_name(
        self, queue: str, raw: bytes, note: Dropped | None, *, force: bool
    ) -> None:
        """
        Take the name out of the cluster's and note the drop; without a note nothing is done.

        Raises: BadArg: it is linked; Full; Stale: other settings are stored.
        """
        text = b"" if note is None else msgspec.json.encode(note)
        word, links = await self._catalog.run_on_names(
            "queue.drop_queue", queue, raw, text, int(force), DROPPED_MAX, self._catalog.maker[1]
        )
        if word == b"LINKED":
            raise BadArg(f"{queue} is linked to topics: to {links}; FORCE unlinks it")
        if word != 1:
            raise Stale(
                f"the settings of {queue} were changed by somebody else at the same time; repeat"
                " this"
            )

    async def drop_topic(self, topic: str) -> int:
        """
        Drop a topic; its queues stay, with their tasks.

        Returns how many were linked to it. Raises: NotFound: there is no such topic; StoreDown.
        """
        links = await self._catalog.run_on_names("queue.drop_topic", check_name(topic, "topic"))
        if links is None:
            raise NotFound(f"there is no topic {topic}")
        self._catalog.topics.pop(topic, None)
        return len(links.split())

    async def tend(self) -> None:
        """
        End drops that others left half done, and forget queues that were dropped a day ago.

        The leader calls it. Raises: StoreDown.
        """
        now_ms = clock_ms(await self._catalog.time())
        async for queue, raw in self._catalog.all_dropped():
            try:
                note = dropped_from(queue, raw)
                if not note.cleared:
                    await self._clear(queue, note)
                elif now_ms - note.at_ms > KEPT_MS:
                    await self._catalog.run_on_names("queue.note_dropped", queue, raw, "")
            except StoreDown:
                raise
            except Error as error:
                log.error("%s was dropped, and is not removed yet: %s", queue, error)

    async def _clear(self, queue: str, note: Dropped) -> int:
        """Remove the tasks in the shards; return how many. It may be repeated."""
        shards = self._catalog.shards_with(
            queue, QueueSettings(shards=note.shards, layout=note.layout)
        )
        try:
            removed = await self._bulk.purge_shards(shards, STATES, final=True)
            lease = above(await last_lease(self._link, shards))
            await asyncio.gather(
                *(shard.run("queue.configure", lease, final=True) for shard in shards)
            )
            answers = await asyncio.gather(
                *(shard.run("queue.wipe", (KEPT_MS,), final=True) for shard in shards)
            )
        except Resharded:
            return 0  # somebody else was through, and the name is in use again
        if any(answer != 1 for answer in answers):
            log.warning("%s was dropped, and still holds tasks; the leader removes them", queue)
            return removed
        cleared = msgspec.structs.replace(note, cleared=True)
        await self._catalog.run_on_names(
            "queue.note_dropped", queue, msgspec.json.encode(note), msgspec.json.encode(cleared)
        )
        return removed

"""
The verbs that look at single tasks and queues and mend them: nothing here is on the hot path.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidewarden.clock import in_turns
from tidewarden.errors import BadArg, Error, Field, Full, NotFound, NotHeld, Stale
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import Arg

from .catalog import Catalog
from .partitioning import STRATEGIES, shard_for
from .reads.near_reads import Mark, NearReads
from .reads.store_reads import StoreReads, absent, place_of
from .settings import CUT_FIELDS, LANE_FIELDS, QueueSettings, changed
from .shards.shard import Shard
from .shards.shard_scripts import ShardScripts
from .shards.shard_settings import close, last_lease, look_at_lanes, set_order
from .task import (
    COUNT_MAX,
    STATES,
    TIME_MAX_MS,
    Changes,
    check_id,
    check_name,
    check_range,
    check_state,
    described,
    lease_of,
)


class QueueAdmin:
    """Looks at single tasks and mends them; pauses queues, counts them and sets their settings."""

    def __init__(
        self,
        catalog: Catalog,
        scripts: ShardScripts,
        link: StoreClient,
        payload_max: int,
        reads: StoreReads,
    ) -> None:
        self._catalog = catalog
        self._link = link
        self._scripts = scripts
        self._payload_max = payload_max
        self._reads = reads

    async def update(self, queue: str, task_id: str, changes: Changes) -> None:
        """
        Change a task in place.

        Raises: BadArg, TooBig, NotFound, NotHeld (leased, and not by ``changes.lease``).
        """
        args = changes.arguments(task_id, self._payload_max)
        shards = await self._catalog.open(check_name(queue))
        reply = await shard_for(shards, task_id).run("queue.update", args)
        if reply == b"NOTFOUND":
            raise NotFound(f"there is no task {task_id} in {queue}")
        if reply == b"NOTHELD":
            leased = f"the task {task_id} of {queue} is leased; "
            raise NotHeld(leased, Field("lease"), " has to be its current number")

    async def delete(self, queue: str, task_id: str, *, lease: int = 0, force: bool = False) -> int:
        """
        Remove a task in any state; 1, or 0 when there is none.

        Raises: NotHeld: it is leased and neither its lease nor ``force`` was given.
        """
        shards = await self._catalog.open(check_name(queue))
        reply = await shard_for(shards, check_id(task_id)).run(
            "queue.delete", (task_id, lease, int(force))
        )
        if reply == b"NOTHELD":
            leased = f"the task {task_id} of {queue} is leased; give its "
            raise NotHeld(leased, Field("lease"), " number, or ", Field("force"))
        return int(reply)

    async def peek(
        self, queue: str, task_id: str, max_stale_ms: int = 0, *, marks: bool = False
    ) -> dict[str, Any]:
        """
        Return a task as it lies, or lay at most ``max_stale_ms`` ago, without taking it.

        ``marks``: see :meth:`.reads.near_reads.NearReads.answered`; what needs the mark has it.

        Raises: NotFound: there is none now. NoQuorum: a copy that stands in has none, or none may.
        """
        check_name(queue)
        check_id(task_id)
        read = functools.partial(self._peek, queue, task_id, max_stale_ms)
        return await self._reads.answered(read, max_stale_ms, marks=marks)

    async def _peek(
        self, queue: str, task_id: str, max_stale_ms: int, mark: Mark | None
    ) -> dict[str, Any]:
        shard = shard_for(await self._reads.shards(queue, mark), task_id)
        args = ("id", task_id, "")
        rows, _ = await self._reads.run(shard, "queue.peek", args, max_stale_ms, mark)
        if not rows and mark is not None:
            raise absent(f"task {task_id} in {queue}")
        if not rows and max_stale_ms:  # it may have come since
            rows, _ = await shard.run("queue.peek", args)
        if not rows:
            raise NotFound(f"there is no task {task_id} in {queue}")
        return described(queue, rows[0]) | (mark or {})

    async def page(
        self,
        queue: str,
        state: str,
        count: int = 100,
        after: str = "",
        max_stale_ms: int = 0,
        *,
        marks: bool = False,
        payloads: bool = True,
    ) -> tuple[list[dict[str, Any]], str]:
        """
        Return at most ``count`` tasks in one state, in its order, shard by shard.

        Also the cursor to go on from, "" at the end.

        A page of long payloads may be short before the end, also one that is asked for without
        them. With ``max_stale_ms`` it is as it was at most so long ago. ``marks``: as of
        :meth:`peek`, in each task. Raises: NoQuorum: also where a copy that stands in has none at
        all, so that nothing would have the mark.
        """
        check_state(state)
        check_range(count, "count", 1, COUNT_MAX)
        check_name(queue)
        show = functools.partial(described, queue)
        args = (queue, state, count, after, max_stale_ms)
        read = functools.partial(self._page, *args, show=show, payloads=payloads)
        return await self._reads.answered(read, max_stale_ms, marks=marks)

    async def _page(
        self,
        queue: str,
        state: str,
        count: int,
        after: str,
        max_stale_ms: int,
        mark: Mark | None,
        *,
        show: Callable[[list[Any]], dict[str, Any]],
        payloads: bool,
    ) -> tuple[list[dict[str, Any]], str]:
        """Read a page; ``show`` makes of a row what is shown of it."""
        shards = await self._reads.shards(queue, mark)
        at, cursor = place_of(queue, shards, after)
        tasks: list[dict[str, Any]] = []
        while at < len(shards):
            args = (state, count - len(tasks), cursor, int(not payloads))
            rows, last = await self._reads.run(shards[at], "queue.peek", args, max_stale_ms, mark)
            tasks += [show(row) | (mark or {}) async for row in in_turns(rows)]
            cursor = last.decode("utf-8", "surrogateescape")
            if cursor:
                return tasks, f"{at}:{cursor}"
            if len(tasks) >= count and at + 1 < len(shards):
                return tasks, f"{at + 1}:"
            at += 1
            cursor = ""
        if not tasks and not after and mark is not None:
            raise absent(f"{state} task in {queue}")
        return tasks, ""

    async def leases(
        self, queue: str, count: int, after: str = "", task_id: str = ""
    ) -> tuple[list[dict[str, Any]], str]:
        """
        Return at most ``count`` leases of the queue, without their tasks' payloads, and the cursor.

        ``task_id``: of this task alone. See :func:`.task.lease_of`. Raises: BadArg: no cursor;
        NotFound: it was dropped.
        """
        check_name(queue)
        if task_id:
            shard = shard_for(await self._catalog.open(queue), check_id(task_id))
            rows, _ = await shard.run("queue.peek", ("id", task_id, "", 1))
            return [lease_of(row) for row in rows if row[1] == b"leased"], ""
        args = (queue, "leased", count, after, 0, None)
        return await self._page(*args, show=lease_of, payloads=False)

    async def pause(self, queue: str, ms: int | None = None) -> None:
        """Stop takes, for ``ms`` or until :meth:`resume`; puts go on."""
        if ms is not None:
            check_range(ms, "ms", 1, TIME_MAX_MS // 2)
        await self._each(queue, "queue.pause", (-1 if ms is None else ms,))

    async def resume(self, queue: str) -> None:
        """Let takes go on."""
        await self._each(queue, "queue.pause", (0,))

    async def _each(self, queue: str, name: str, args: Sequence[Arg]) -> list[Any]:
        shards = await self._catalog.open(check_name(queue))
        return list(await asyncio.gather(*(shard.run(name, args) for shard in shards)))

    async def names(self) -> list[str]:
        """
        List every queue, for a caller that marks what it answers of them: see :meth:`peek`.

        Raises: StoreDown.
        """

        async def read(mark: Mark | None) -> list[str]:
            if self._reads.near is not None and mark is not None:
                return await self._reads.near.names()
            return await self._catalog.names()

        return await self._reads.answered(read, 0, marks=True)

    async def stats(
        self, queue: str, *, by_shard: bool = False, max_stale_ms: int = 0, marks: bool = False
    ) -> dict[str, Any]:
        """
        Return counts by state, counters since the queue was made, and its next event.

        For a topic: its queues.

        ``by_shard``: the counts of each shard, too. ``max_stale_ms``: they may be so old.
        ``marks``: as of :meth:`peek`. Raises: NotFound: there is no such queue. NoQuorum: a copy
        that stands in has none, or none may.
        """
        check_name(queue)
        read = functools.partial(self._stats, queue, by_shard, max_stale_ms)
        return await self._reads.answered(read, max_stale_ms, marks=marks)

    async def _stats(
        self, queue: str, by_shard: bool, max_stale_ms: int, mark: Mark | None
    ) -> dict[str, Any]:
        near = self._reads.near
        if near is not None and mark is not None:
            shards = await near.shards(queue)
            rows = await _stats_of_copy(near, shards)
            return _summed(queue, shards, rows, by_shard=by_shard) | mark
        if queue not in self._catalog.shards and not await self._catalog.exists(queue):
            links = await self._catalog.stored_links(queue)
            if links is None:
                raise NotFound(f"there is no queue {queue}")
            return {"topic": queue, "queues": sorted(links)}
        if max_stale_ms and near is not None and near.age.within(max_stale_ms):
            shards = await self._catalog.open(queue)
            with contextlib.suppress(Error):  # the primary answers, or says what is wrong
                rows = await _stats_of_copy(near, shards)
                return _summed(queue, shards, rows, by_shard=by_shard)
        rows = await self._scripts.run_each("queue.stats", queue, ())
        return _summed(queue, self._catalog.shards[queue], rows, by_shard=by_shard)

    async def settings(self, queue: str, *, marks: bool = False) -> dict[str, Any]:
        """
        Return the queue's settings, as they are stored. Raises: StoreDown; NoQuorum.

        ``marks``: its caller shows them beside :meth:`stats`, which have the mark.
        """
        check_name(queue)

        async def read(mark: Mark | None) -> dict[str, Any]:
            if self._reads.near is not None and mark is not None:
                return (await self._reads.near.settings(queue)).shown()
            await self._catalog.open(queue)
            _, settings = await self._catalog.stored(queue)
            return settings.shown()

        return await self._reads.answered(read, 0, marks=marks)

    async def configure(self, queue: str, values: dict[str, Any]) -> dict[str, Any]:
        """
        Change settings of a queue, which is made when it is new or was dropped; the settings now.

        Raises: BadArg: an unknown name, a value that is not allowed, or ``shards``, ``strategy`` or
        ``order`` of a queue that holds tasks, or a durability that cannot be had here; Full: for so
        many shards there is no room, or not for those of this user; Stale: somebody else changed
        them at the same time; NoQuorum.
        """
        await self._catalog.open(check_name(queue), again=True)
        raw, old = await self._catalog.stored(
            queue
        )  # another node may have changed it a moment ago
        strategies = (*STRATEGIES, *self._catalog.strategies)
        if values.get("durability") == "fsync":
            # the server may have been set to it a moment ago
            await self._catalog.durability.look(self._link)
        new = changed(old, values, refusal=self._catalog.durability.refusal, strategies=strategies)
        firm = self._catalog.durability.firm(
            self._link, new.durability, f"{{{self._catalog.cluster}}}"
        )
        cut = [name for name in CUT_FIELDS if getattr(new, name) != getattr(old, name)]
        new = msgspec.structs.replace(new, version=old.version + 1, layout=old.layout + bool(cut))
        if cut:
            if new.shards > old.shards:  # once they are closed it is late to refuse
                await self._catalog.swap(queue, raw, new, asked=True, look=True)
            await self._close_cut(queue, raw, old, new, cut)
        refused: Error = Stale(
            f"the settings of {queue} were changed by somebody else at the same time; repeat this"
        )
        try:
            swapped = await self._catalog.swap(queue, raw, new, asked=True)
        except Full as error:
            swapped, refused = False, error
        if not swapped:
            raw, stored = await self._catalog.stored(queue)
            if cut and stored.layout < new.layout:  # what was closed for nothing
                await self._catalog.keep_layout(queue, raw, stored, new.layout)
            raise refused
        self._catalog.build(queue, new)
        await self._catalog.settle(queue)
        if any(getattr(new, name) != getattr(old, name) for name in LANE_FIELDS):
            # another node may have been first to write into a shard
            await look_at_lanes(self._catalog.shards[queue])
        await firm()
        return new.shown()

    async def _close_cut(
        self, queue: str, raw: bytes, old: QueueSettings, new: QueueSettings, cut: Sequence[str]
    ) -> None:
        """
        Close the shards of a queue, if all are empty, to nodes that know it only as it is cut now.

        Give the new shards their order: once a node knows of them it is too late for that. From
        then until the new settings are stored the queue answers no caller; where they never come,
        :meth:`Catalog.keep_layout` ends it.
        """
        same = list(cut) == ["order"]
        schedules = "" if same else " and has no schedules"
        refused = BadArg(
            f"{' and '.join(cut)} of {queue} can be changed only while it is empty{schedules}"
        )
        stats = await self.stats(queue)
        if stats["total"] or (stats["schedules"] and not same):
            raise refused
        closed = await close(
            self._catalog.shards[queue], new.layout, "same_layout" if same else "layout"
        )
        lease = await last_lease(self._link, self._catalog.shards[queue])
        shards = self._catalog.shards_with(queue, new)
        # something was put meanwhile
        if not (closed and await set_order(shards, new.order, lease)):
            await self._catalog.keep_layout(queue, raw, old, new.layout)
            raise refused


async def _stats_of_copy(near: NearReads, shards: Sequence[Shard]) -> Sequence[Any]:
    return await asyncio.gather(*(near.run_at(shard, "queue.stats", ()) for shard in shards))


def _summed(
    queue: str, shards: Sequence[Shard], rows: Sequence[Any], *, by_shard: bool
) -> dict[str, Any]:
    """Add up what each shard says of itself; see :meth:`QueueAdmin.stats`."""
    total: dict[str, Any] = {
        "queue": queue,
        "shards": 0,
        **dict.fromkeys(STATES, 0),
        "paused_until_ms": 0,
        "waiting_nodes": 0,
        "schedules": 0,
    }
    oldest: list[int] = []
    upcoming: list[int] = []
    counters: dict[str, int] = {}
    waiting_takes = 0
    each: list[dict[str, int]] = []
    for row, shard in zip(rows, shards, strict=True):
        counts = dict(zip(STATES, (*row[:4], row[11]), strict=True))
        for name, value in counts.items():
            total[name] += value
        each.append({"shard": shard.index, **counts, "total": sum(counts.values())})
        total["paused_until_ms"] = max(total["paused_until_ms"], row[4])
        total["waiting_nodes"] = max(total["waiting_nodes"], row[5])
        oldest += [row[6]] if row[6] >= 0 else []
        upcoming += [row[7]] if row[7] >= 0 else []
        for name, value in zip(row[9][::2], row[9][1::2], strict=True):
            counters[name.decode()] = counters.get(name.decode(), 0) + int(value)
        total["schedules"] += row[10]
        waiting_takes = max(waiting_takes, len(shard.parked))
    total["shards"] = len(shards)
    total["total"] = sum(total[name] for name in STATES)
    total["waiting_takes_here"] = waiting_takes
    total["oldest_ready_deadline_ms"] = min(oldest, default=-1)
    total["next_ms"] = min(upcoming, default=-1)
    if by_shard:
        total["by_shard"] = each
    return total | {f"count_{name}": value for name, value in sorted(counters.items())}

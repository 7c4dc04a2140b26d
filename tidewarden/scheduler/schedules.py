"""
Keeps schedules: rows that put a task at each tick. Any node writes them; the leader fires them.

A row lies in a shard of its task's queue (the one its name hashes to), so that one script puts the
task and moves the schedule to its next tick, only if that tick is still the stored one: each tick
is put once, however many nodes fire. The directory, a shard of a queue of our own, says which queue
a name belongs to. It is written before the row and cleaned after it, so a crash between leaves at
worst an entry without a row, which the next put of that name replaces; and S.LIST and S.DELETE find
rows that the directory does not name by asking every shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, MutableSequence, Sequence
from typing import Any

import msgspec

from tidewarden.clock import in_turns
from tidewarden.errors import BadArg, Exists, Field, Full, NotFound
from tidewarden.queue.catalog import clock_ms
from tidewarden.queue.put import put_error
from tidewarden.queue.queues import Queues
from tidewarden.queue.task import TaskSpec, check_id, check_name, check_range

from .outlook import WITHIN_MS_MAX, next_ticks, outlook
from .rows import UNREADABLE, check_schedule_name, described, shown, spec_of, task_of
from .trigger import DAY_MS, Spec, first_tick, ticks_due

log = logging.getLogger("tidewarden.scheduler")

DIRECTORY = "_schedules"
SCHEDULES_MAX = 10_000  # of one shard
FIRE_MAX = 100  # schedules of one script call
TICKS_MAX = 200  # tasks of one script call
STUCK_RETRY_MS = 60_000
STUCK_SAID_MAX = 1000  # schedules that are remembered as said
FULL_RETRY_MS = 1_000
PAGE = 100
PAYLOAD_SHOWN_BYTES = 256
CLAIM_TRIES = 5
NEXT_SHOWN, NEXT_MAX = 5, 100  # ticks of one schedule that are told
KEY_BYTES_MAX = 60  # of a run: with the schedule's name and a number it makes a task's id

Arg = str | bytes | int
Rows = list[dict[str, Any]]


class Schedules:
    """
    Puts, lists and fires schedules.

    ``payload_max`` is the limit of a task's payload, in bytes; ``schedules_max`` that of the
    cluster's schedules.
    """

    def __init__(
        self, queues: Queues, payload_max: int = 1024 * 1024, schedules_max: int = 100_000
    ) -> None:
        self._queues = queues
        self._schedules_max = schedules_max
        self._payload_max = payload_max
        self._stuck_said: dict[str, bytes] = {}  # by name: the stamp of the one that was said last
        self._full_said = False
        self._listing: asyncio.Task[Rows] | None = None
        self._next_listing: asyncio.Task[Rows] | None = None

    async def put(self, name: str, spec: Spec, queue: str, task: TaskSpec) -> int:
        """
        Store a schedule under ``name``, replacing one of that name in the same queue.

        Putting what is there already changes nothing: an interval keeps its anchor. DELAY and
        WITHIN count from the tick.

        Returns: the next tick, unix ms. Raises: BadArg, TooBig: a field that is not allowed, or a
        schedule that never ticks; Exists: the name is another queue's; Full: no room, or none
        for the user who acts; StoreDown: it may or may not be stored, put it again.
        """
        check_schedule_name(name)
        check_name(queue)
        options = task_of(task, self._payload_max)
        if task.lane and await self._queues.catalog.shard_count(queue) > 1:
            raise BadArg(
                Field("lane"),
                f" in a schedule needs a queue of one shard; {queue} has more, and the name has"
                " chosen one",
            )
        shard = await self._shard(queue, name)
        now_ms, _ = await self._queues.scripts.run("scheduler.find", queue, shard, [name])
        tick_ms = first_tick(spec.anchored(now_ms), now_ms)
        stamp = secrets.token_hex(8)
        row: Sequence[Arg] = [
            name,
            tick_ms,
            stamp,
            now_ms,
            msgspec.msgpack.encode(described(spec)),
            msgspec.msgpack.encode(options),
            task.payload,
            SCHEDULES_MAX,
        ]
        for _ in range(CLAIM_TRIES):
            await self._claim(name, queue, stamp)
            _, tick_ms = await self._queues.scripts.run("scheduler.put", queue, shard, row)
            place = await self._place(name)
            if place.partition(" ")[0] == queue:
                # The leader may be this very node, whom the store does not tell what its own
                # scripts did.
                self._queues.catalog.on_next(queue, shard, max(0, tick_ms - now_ms))
                return int(tick_ms)
            # The name went to another queue between claim and row: this row is one too many.
            if place:
                await self._queues.scripts.run("scheduler.delete", queue, shard, [name, stamp])
        raise Exists(f"schedule {name!r} is being changed by others at the same time; put it again")

    async def delete(self, name: str) -> bool:
        """
        Remove a schedule; tasks that it has put stay.

        Returns: whether there was one. Raises: BadArg, StoreDown.
        """
        check_schedule_name(name)
        place = await self._place(name)
        gone = 0
        if place:
            queue = place.partition(" ")[0]
            with contextlib.suppress(NotFound):  # the queue was dropped
                gone = await self._queues.scripts.run(
                    "scheduler.delete", queue, await self._shard(queue, name), [name, ""]
                )
            await self._queues.scripts.run("scheduler.forget", DIRECTORY, 0, [name, place])
        if not gone:
            for queue, shard in await self._places():
                gone += await self._queues.scripts.run("scheduler.delete", queue, shard, [name, ""])
        return bool(gone)

    async def pause(self, name: str) -> None:
        """
        Pause a schedule until it is resumed; a new put of the name leaves it paused.

        Twice is as once.

        Raises: NotFound: there is none of this name. BadArg, StoreDown.
        """
        await self._stand(name, pause=True)

    async def resume(self, name: str) -> int:
        """
        Continue with the tick at which it was paused.

        Its CATCHUP says what becomes of the missed ones.

        Returns: that tick, unix ms, which may have come already; of one that is not paused, its
        next. Raises: as :meth:`pause`.
        """
        return await self._stand(name, pause=False)

    async def run(self, name: str, key: str = "") -> str:
        """
        Put the task of a schedule now, paused or not; its ticks stay as they are.

        DELAY and WITHIN count from now. With a ``key`` of the caller's the task is put once for it,
        however often that is asked, until it was done ``dedup_ms`` ago and the schedule has run
        again.

        Returns: the task's id. Raises: NotFound: there is no schedule of this name; BadArg: this
        node cannot read it; Full, StoreDown: as of a put.
        """
        check_schedule_name(name)
        if key and len(check_id(key, "id of a run").encode()) > KEY_BYTES_MAX:
            raise BadArg(Field("id"), f" has more than {KEY_BYTES_MAX} bytes")
        async for queue, shard in self._looked_in(name):
            task_id = self._own_id(queue, shard, f"{name}:run:{key or secrets.token_hex(8)}")
            done = await self._queues.scripts.run("scheduler.run", queue, shard, [name, task_id])
            if done == -2:
                raise BadArg(f"schedule {name!r} cannot be run: {UNREADABLE}")
            if type(done) is bytes:
                raise put_error(done, queue, task_id)
            if done >= 0:
                return task_id
        raise NotFound(f"there is no schedule {name!r}")

    async def get(self, name: str, count: int = NEXT_SHOWN) -> dict[str, Any]:
        """
        Return one schedule as :meth:`list` shows it, and its ``next`` ticks (unix ms).

        There are at most ``count`` of these, and none while it is paused or stuck. Raises:
        NotFound: there is no schedule of this name; BadArg, StoreDown.
        """
        check_schedule_name(name)
        check_range(count, "count", 1, NEXT_MAX)
        async for queue, shard in self._looked_in(name):
            now_ms, row = await self._queues.scripts.run(
                "scheduler.show", queue, shard, [name, PAYLOAD_SHOWN_BYTES]
            )
            if row:
                known = shown(queue, row)
                return known | {"next": await next_ticks(known, now_ms, count)}
        raise NotFound(f"there is no schedule {name!r}")

    async def outlook(
        self, within_ms: int = DAY_MS, seen: Callable[[str], bool] = bool
    ) -> dict[str, Any]:
        """
        Return what will be put within ``within_ms``, of the schedules whose names are ``seen``.

        It has ``from_ms`` and ``until_ms``; ``ticks``, each with ``name``, ``queue`` and ``at_ms``,
        in their order, a bounded number (``more``: there are others, behind ``until_ms``);
        ``rates`` of the schedules that tick more often than each half hour, with ``name``,
        ``queue``, ``next_ms`` and ``per_day``; and how many are ``resting``: paused, stuck or
        unreadable. Raises: BadArg, StoreDown.
        """
        check_range(within_ms, "ms", 1, WITHIN_MS_MAX)
        rows = [row async for row in in_turns(await self.list()) if seen(row["name"])]
        now_ms = clock_ms(await self._queues.catalog.time())
        return await outlook(rows, now_ms, now_ms + within_ms)

    async def list(self) -> list[dict[str, Any]]:
        """
        List every schedule by name.

        Each has its words, queue, next tick (unix ms), state (``active``, ``paused``, ``stuck``
        when its next tick cannot be computed, ``unreadable``), task options, the first bytes of its
        payload, and its ``last`` run (see :func:`.rows.last_run`). Those who ask at the same time
        are answered by one look at the store, which began after each had asked.
        """
        if self._next_listing is None:
            self._next_listing = asyncio.create_task(self._list_after(self._listing))
            # who asked for it may have gone
            self._next_listing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._next_listing)

    async def _list_after(self, before: asyncio.Task[Rows] | None) -> Rows:
        if before is not None:
            await asyncio.wait([before])
        self._listing, self._next_listing = self._next_listing, None
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for queue, shard in await self._places():
            with contextlib.suppress(NotFound):  # its schedules were deleted and it was dropped
                async for row in self._pages(queue, shard):
                    known = shown(queue, row)
                    rows[known["name"], queue] = known
        return [rows[key] for key in sorted(rows)]

    async def _pages(self, queue: str, shard: int) -> AsyncIterator[Any]:
        """Yield the schedules of a shard as list.lua shows them."""
        cursor: bytes = b"0"
        for page in itertools.count():
            if page and cursor == b"0":
                return
            args: MutableSequence[Arg] = [cursor, PAGE, PAYLOAD_SHOWN_BYTES]
            cursor, found = await self._queues.scripts.run("scheduler.list", queue, shard, args)
            for row in found:
                yield row

    async def fire_due(self, queue: str, shard: int, now_ms: int, epoch: int, holder: str) -> int:
        """
        Put the tasks of the ticks that have come in one shard, a bounded number at once.

        The leader's sweep calls it.

        ``now_ms`` is for tests; 0 is the store's time. Safe to run twice, or by two.

        Returns: the shard's next tick, unix ms, which may have come already; -1 when it has none.
        While the store is full, nothing is put and the answer is a second from now: the ticks stay
        due. Raises: Stale: a newer leader is there; StoreDown: they may or may not have been put;
        the next round tells.
        """
        seen_ms, next_ms, rows = await self._queues.scripts.run(
            "scheduler.due", queue, shard, [FIRE_MAX], now_ms=now_ms
        )
        if not rows:
            return int(next_ms)
        args: MutableSequence[Arg] = [epoch, holder]
        limit = max(1, TICKS_MAX // len(rows))
        over: MutableSequence[Arg] = []
        async for name_bytes, place_ms, tick_ms, stamp, anchor_ms, spec_bytes in in_turns(rows, 1):
            name = name_bytes.decode()
            try:
                spec = spec_of(spec_bytes, anchor_ms)
                ticks, following = ticks_due(spec, tick_ms, seen_ms, limit)
            except (BadArg, msgspec.MsgspecError) as error:
                self._say_stuck(name, stamp, error)
                args += [name, stamp, place_ms, seen_ms + STUCK_RETRY_MS, 1, 0]
                continue
            args += [name, stamp, place_ms, -1 if following is None else following, 0, len(ticks)]
            async for tick in in_turns(ticks, 4):  # to find an id in a shard of many takes time
                args += [tick, self._own_id(queue, shard, f"{name}:{tick}")]
            if following is None:
                over += [name, f"{queue} {stamp.decode()}"]
        try:
            next_ms, *_ = await self._queues.scripts.run(
                "scheduler.fire", queue, shard, args, now_ms=now_ms
            )
        except Full as error:
            if not self._full_said:
                log.error("the schedules of %s wait: %s", queue, error)
            self._full_said = True
            return int(seen_ms) + FULL_RETRY_MS
        self._full_said = False
        if over:
            await self._queues.scripts.run("scheduler.forget", DIRECTORY, 0, over)
        return int(next_ms)

    async def _stand(self, name: str, *, pause: bool) -> int:
        check_schedule_name(name)
        async for queue, shard in self._looked_in(name):
            if (tick_ms := await self._stand_at(queue, shard, name, pause)) >= 0:
                return tick_ms
        raise NotFound(f"there is no schedule {name!r}")

    async def _looked_in(self, name: str) -> AsyncIterator[tuple[str, int]]:
        """Yield the shard where a schedule should lie, then each that has schedules."""
        named = (await self._place(name)).partition(" ")[0]
        shard = -1
        if named:
            with contextlib.suppress(NotFound):  # the queue was dropped
                shard = await self._shard(named, name)
        if shard >= 0:
            yield named, shard
        for place in await self._places():
            yield place

    async def _stand_at(self, queue: str, shard: int, name: str, pause: bool) -> int:
        now_ms, tick_ms = await self._queues.scripts.run(
            "scheduler.pause", queue, shard, [name, int(pause)]
        )
        if tick_ms >= 0 and not pause:  # As of a put: the leader may be this very node.
            self._queues.catalog.on_next(queue, shard, max(0, tick_ms - now_ms))
        return int(tick_ms)

    def _own_id(self, queue: str, shard: int, beginning: str) -> str:
        """
        Return ``beginning``, with a number behind it if it must hash to the schedule's own shard.

        It is the first number that does, and the same for every caller, so that a tick's task has
        one id in the cluster.
        """
        candidates = itertools.chain([beginning], (f"{beginning}:{n}" for n in itertools.count(1)))
        return next(
            task_id
            for task_id in candidates
            if self._queues.catalog.shard_of(queue, task_id) == shard
        )

    async def _claim(self, name: str, queue: str, stamp: str) -> None:
        """
        Write this put's place into the directory. Raises: Exists: the name is another queue's.
        """
        seen = ""
        for _ in range(CLAIM_TRIES):
            mine, place_bytes = await self._queues.scripts.run(
                "scheduler.claim",
                DIRECTORY,
                0,
                [name, queue, seen, stamp, *self._queues.catalog.maker, self._schedules_max],
            )
            place: str = place_bytes.decode()
            if mine:
                return
            other = place.partition(" ")[0]
            tick_ms = -1
            with contextlib.suppress(NotFound):  # the queue was dropped
                _, tick_ms = await self._queues.scripts.run(
                    "scheduler.find", other, await self._shard(other, name), [name]
                )
            if tick_ms >= 0:
                raise Exists(
                    f"schedule {name!r} lies in queue {other!r}; delete it before putting it into"
                    f" {queue!r}"
                )
            seen = place  # an entry without its row: what a crash left, or a schedule that is over
        raise Exists(f"schedule {name!r} is being changed by others at the same time; put it again")

    async def _shard(self, queue: str, name: str) -> int:
        await self._queues.catalog.shard_count(
            queue
        )  # reads the queue's settings, where they are not known yet
        return self._queues.catalog.shard_of(queue, name)

    async def _place(self, name: str) -> str:
        found: bytes = await self._queues.scripts.run("scheduler.place", DIRECTORY, 0, [name])
        return found.decode()

    async def _places(self) -> Sequence[tuple[str, int]]:
        """Return the shards of users' queues that have schedules."""
        names = [name for name in await self._queues.catalog.names() if not name.startswith("_")]
        return await self._queues.scripts.having(names, "schedules")

    def _say_stuck(self, name: str, stamp: bytes, error: Exception) -> None:
        if self._stuck_said.get(name) != stamp:
            if len(self._stuck_said) >= STUCK_SAID_MAX:
                self._stuck_said.clear()
            self._stuck_said[name] = stamp
            log.error("schedule %s cannot be computed and waits: %s", name, error)

"""
Schedules: rows that put a task at each tick. Any node writes them; the leader fires them.

A row lies in a shard of its task's queue (the one its name hashes to), so that one script puts the task and moves the
schedule to its next tick, only if that tick is still the stored one: each tick is put once, whoever fires.
The directory, a shard of a queue of our own, says which queue a name belongs to. It is written before the row and
cleaned after it, so a crash between leaves at worst an entry without a row, which the next put of that name replaces;
and S.LIST and S.DELETE find rows that the directory does not name by asking every shard.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import MutableSequence, Sequence
from typing import Any

import msgspec

from tidewarden.errors import BadArg, Exists, Full
from tidewarden.queue.queues import Queues
from tidewarden.queue.task import NewTask, check_name
from tidewarden.scheduler.trigger import Spec, first_tick, ticks_due

log = logging.getLogger("tidewarden.scheduler")

DIRECTORY = "_schedules"
NAME_MAX = 128  # a task's id, at most 200 bytes, is the name with its tick
SCHEDULES_MAX = 10_000  # of one shard
FIRE_MAX = 100  # schedules of one script call
TICKS_MAX = 1_000  # tasks of one script call
STUCK_RETRY_MS = 60_000
FULL_RETRY_MS = 1_000
PAGE = 100
PAYLOAD_SHOWN_BYTES = 256
CLAIM_TRIES = 5

Arg = str | bytes | int


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """What each tick's task is given, as fire.lua reads it; ``within_ms`` -1: no deadline of its own."""

    priority: int = 50
    delay_ms: int = 0
    within_ms: int = -1
    lease_ms: int = 0
    attempts: int = 0
    backoff_ms: int = 0
    ttl_ms: int = 0
    lane: str = ""


class Schedules:
    """``payload_max`` is the limit of a task's payload, in bytes."""

    def __init__(self, queues: Queues, payload_max: int = 1024 * 1024) -> None:
        self._queues = queues
        self._payload_max = payload_max
        self._stuck_said: set[tuple[str, bytes]] = set()
        self._full_said = False

    async def put(self, name: str, spec: Spec, queue: str, task: NewTask) -> int:
        """
        Store a schedule under ``name``, replacing one of that name in the same queue.

        Putting what is there already changes nothing: an interval keeps its anchor. DELAY and WITHIN count from
        the tick.

        Returns: the next tick, unix ms.
        Raises: BadArg, TooBig: a field that is not allowed, or a schedule that never ticks; Exists: the name is another
        queue's; Full: no room; StoreDown: it may or may not be stored, put it again.
        """
        check_schedule_name(name)
        check_name(queue)
        options = _task(task, self._payload_max)
        if task.lane and await self._queues.shards(queue) > 1:
            raise BadArg(
                f"LANE in a schedule needs a queue of one shard; {queue} has more, and the name has chosen one"
            )
        shard = await self._shard(queue, name)
        now_ms, _ = await self._queues.script("scheduler.find", queue, shard, [name])
        tick_ms = first_tick(spec.anchored(now_ms), now_ms)
        stamp = secrets.token_hex(8)
        row: Sequence[Arg] = [
            name,
            tick_ms,
            stamp,
            now_ms,
            msgspec.msgpack.encode(_described(spec)),
            msgspec.msgpack.encode(options),
            task.payload,
            SCHEDULES_MAX,
        ]
        for _ in range(CLAIM_TRIES):
            await self._claim(name, queue, stamp)
            _, tick_ms = await self._queues.script("scheduler.put", queue, shard, row)
            place = await self._place(name)
            if place.partition(" ")[0] == queue:
                # The leader may be this very node, whom the store does not tell what its own scripts did.
                self._queues.on_next(queue, shard, max(0, tick_ms - now_ms))
                return int(tick_ms)
            if place:  # The name went to another queue between claim and row: this row is one too many.
                await self._queues.script("scheduler.delete", queue, shard, [name, stamp])
        raise Exists(f"schedule {name!r} is being changed by others at the same time; put it again")

    async def delete(self, name: str) -> bool:
        """Remove a schedule; tasks that it has put stay. Returns: whether there was one. Raises: BadArg, StoreDown."""
        check_schedule_name(name)
        place = await self._place(name)
        gone = 0
        if place:
            queue = place.partition(" ")[0]
            gone = await self._queues.script("scheduler.delete", queue, await self._shard(queue, name), [name, ""])
            await self._queues.script("scheduler.forget", DIRECTORY, 0, [name, place])
        if not gone:
            for queue in await self._user_queues():
                for shard in range(await self._queues.shards(queue)):
                    gone += await self._queues.script("scheduler.delete", queue, shard, [name, ""])
        return bool(gone)

    async def list(self) -> list[dict[str, Any]]:
        """
        Every schedule, by name: its words, queue, next tick (unix ms), state (``active``, ``stuck`` when its next tick cannot
        be computed, ``unreadable``), task options,
        and the first bytes of its payload.
        """
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for queue in await self._user_queues():
            for shard in range(await self._queues.shards(queue)):
                cursor: bytes = b"0"
                for page in itertools.count():
                    if page and cursor == b"0":
                        break
                    args: MutableSequence[Arg] = [cursor, PAGE, PAYLOAD_SHOWN_BYTES]
                    cursor, found = await self._queues.script("scheduler.list", queue, shard, args)
                    for row in found:
                        shown = _shown(queue, row)
                        rows[shown["name"], queue] = shown
        return [rows[key] for key in sorted(rows)]

    async def fire_due(self, queue: str, shard: int, now_ms: int, epoch: int, holder: str) -> int:
        """
        Put the tasks of the ticks that have come in one shard, a bounded number at once. The leader's sweep calls it.

        ``now_ms`` is for tests; 0 is the store's time. Safe to run twice, or by two.

        Returns: the shard's next tick, unix ms, which may have come already; -1 when it has none. While the store is full,
        nothing is put and the answer is a second from now: the ticks stay due.
        Raises: Stale: a newer leader is there; StoreDown: they may or may not have been put; the next round tells.
        """
        seen_ms, next_ms, rows = await self._queues.script("scheduler.due", queue, shard, [FIRE_MAX], now_ms=now_ms)
        if not rows:
            return int(next_ms)
        args: MutableSequence[Arg] = [epoch, holder]
        limit = max(1, TICKS_MAX // len(rows))
        over: MutableSequence[Arg] = []
        for name_bytes, place_ms, tick_ms, stamp, anchor_ms, spec_bytes in rows:
            name = name_bytes.decode()
            try:
                spec = _spec(spec_bytes, anchor_ms)
                ticks, following = ticks_due(spec, tick_ms, seen_ms, limit)
            except (BadArg, msgspec.MsgspecError) as error:
                self._say_stuck(name, stamp, error)
                args += [name, stamp, place_ms, seen_ms + STUCK_RETRY_MS, 1, 0]
                continue
            args += [name, stamp, place_ms, -1 if following is None else following, 0, len(ticks)]
            for tick in ticks:
                args += [tick, self._task_id(queue, shard, name, tick)]
            if following is None:
                over += [name, f"{queue} {stamp.decode()}"]
        try:
            next_ms, *_ = await self._queues.script("scheduler.fire", queue, shard, args, now_ms=now_ms)
        except Full as error:
            if not self._full_said:
                log.error("the schedules of %s wait: %s", queue, error)
            self._full_said = True
            return int(seen_ms) + FULL_RETRY_MS
        self._full_said = False
        if over:
            await self._queues.script("scheduler.forget", DIRECTORY, 0, over)
        return int(next_ms)

    def _task_id(self, queue: str, shard: int, name: str, tick_ms: int) -> str:
        """
        ``name:tick``, or with the first number behind it that makes the id hash to the schedule's own shard.

        The same for every caller, so that a tick's task has one id in the cluster.
        """
        candidates = itertools.chain([f"{name}:{tick_ms}"], (f"{name}:{tick_ms}:{n}" for n in itertools.count(1)))
        return next(task_id for task_id in candidates if self._queues.shard_of(queue, task_id) == shard)

    async def _claim(self, name: str, queue: str, stamp: str) -> None:
        """Write this put's place into the directory. Raises: Exists: the name is another queue's."""
        seen = ""
        for _ in range(CLAIM_TRIES):
            mine, place_bytes = await self._queues.script("scheduler.claim", DIRECTORY, 0, [name, queue, seen, stamp])
            place: str = place_bytes.decode()
            if mine:
                return
            other = place.partition(" ")[0]
            _, tick_ms = await self._queues.script("scheduler.find", other, await self._shard(other, name), [name])
            if tick_ms >= 0:
                raise Exists(f"schedule {name!r} lies in queue {other!r}; delete it before putting it into {queue!r}")
            seen = place  # an entry without its row: what a crash left, or a schedule that is over
        raise Exists(f"schedule {name!r} is being changed by others at the same time; put it again")

    async def _shard(self, queue: str, name: str) -> int:
        await self._queues.shards(queue)  # reads the queue's settings, where they are not known yet
        return self._queues.shard_of(queue, name)

    async def _place(self, name: str) -> str:
        found: bytes = await self._queues.script("scheduler.place", DIRECTORY, 0, [name])
        return found.decode()

    async def _user_queues(self) -> Sequence[str]:
        return [queue for queue in await self._queues.names() if not queue.startswith("_")]

    def _say_stuck(self, name: str, stamp: bytes, error: Exception) -> None:
        if (name, stamp) not in self._stuck_said:
            self._stuck_said.add((name, stamp))
            log.error("schedule %s cannot be computed and waits: %s", name, error)


def check_schedule_name(name: str) -> str:
    """The name, if a schedule may have it. Raises: BadArg."""
    check_name(name, "schedule")
    if len(name) > NAME_MAX:
        raise BadArg(f"the schedule name has {len(name)} characters; at most {NAME_MAX} are allowed")
    return name


def _task(task: NewTask, payload_max: int) -> _Task:
    """The row's part of a task. Raises: BadArg: an option that a schedule decides itself."""
    task.check(payload_max)
    refused = {"ID": task.id, "AT": task.at_ms, "DEADLINE": task.deadline_ms}
    for option, value in refused.items():
        if value not in (None, ""):
            raise BadArg(
                f"{option} is not allowed in a schedule, whose ticks decide it; DELAY and WITHIN count from the tick"
            )
    if task.if_exists != "keep":
        raise BadArg("IFEXISTS is not allowed in a schedule: each tick has an id of its own")
    return _Task(
        priority=task.priority,
        delay_ms=task.delay_ms or 0,
        within_ms=-1 if task.within_ms is None else task.within_ms,
        lease_ms=task.lease_ms,
        attempts=task.attempts,
        backoff_ms=task.backoff_ms,
        ttl_ms=task.ttl_ms,
        lane=task.lane or "",
    )


def _described(spec: Spec) -> dict[str, str | int]:
    """A spec as its row keeps it, without the anchor, which lies beside it."""
    match spec.kind:
        case "cron":
            return {"kind": "cron", "expr": spec.expr, "zone": spec.zone, "catchup": spec.catchup}
        case "every":
            return {"kind": "every", "every_ms": spec.every_ms, "catchup": spec.catchup}
        case "at":
            return {"kind": "at", "at_ms": spec.at_ms, "catchup": spec.catchup}


def _spec(raw: bytes, anchor_ms: int) -> Spec:
    """The spec of a row. Raises: BadArg, msgspec.MsgspecError: this node cannot read it."""
    if not raw:
        raise BadArg("its row is of a newer format, or damaged")
    fields = msgspec.msgpack.decode(raw, type=dict[str, Any])
    try:
        match fields["kind"]:
            case "cron":
                return Spec.cron(fields["expr"], fields["zone"], fields["catchup"])
            case "every":
                return Spec.every(fields["every_ms"], fields["catchup"]).anchored(anchor_ms)
            case "at":
                return Spec.at(fields["at_ms"], fields["catchup"])
            case kind:
                raise BadArg(f"this version knows no schedule of kind {kind!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise BadArg(f"the schedule's row does not read: {error!r}") from None


def _shown(queue: str, row: list[Any]) -> dict[str, Any]:
    """A schedule as S.LIST shows it, from list.lua's row."""
    name, tick_ms, stuck, anchor_ms, spec_bytes, task_bytes, payload_head, payload_bytes = row
    if not spec_bytes:
        return {"name": name.decode(), "queue": queue, "next_ms": tick_ms, "state": "unreadable"}
    fields = msgspec.msgpack.decode(spec_bytes, type=dict[str, Any])
    shown: dict[str, Any] = {"name": name.decode(), "queue": queue, **fields}
    if fields.get("kind") == "every":
        shown["anchor_ms"] = anchor_ms
    shown["next_ms"] = tick_ms
    shown["state"] = "stuck" if stuck else "active"
    shown.update(msgspec.msgpack.decode(task_bytes, type=dict[str, Any]))
    if shown["within_ms"] < 0:
        del shown["within_ms"]
    shown["payload"] = payload_head
    shown["payload_bytes"] = payload_bytes
    return shown

"""
Buried tasks, which failed for good: why they were buried, and what an operator does with them.

What is done with many goes in pieces, each of which is one script. Tasks that are buried meanwhile
are left for the next call, so that what fails at once is not dealt with for ever.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from tidewarden.clock import Clock, in_turns
from tidewarden.errors import BY_CODE, BadArg, Error, Field, Full, NotFound, NotHeld
from tidewarden.store.connection import Arg

from .catalog import Catalog
from .partitioning import in_lane, shard_for, shard_of
from .reads.near_reads import Mark
from .reads.store_reads import StoreReads
from .shards.shard import Shard
from .task import (
    COUNT_MAX,
    STATES,
    TIME_MAX_MS,
    TaskSpec,
    check_id,
    check_name,
    check_payload,
    check_range,
    traceparent,
)

ALL = 2**31  # a count that is no limit
REASONS_LOOKED = 100_000  # buried tasks whose reasons are counted at most
REASONS_MAX = 100  # reasons that are told apart
IDS_PIECE = 100  # ids that one script is given
PICK_MAX = 100  # tasks read at a time
PICK_BYTES = 1_000_000  # or so many bytes of theirs
LOOK_BYTES = 16_000_000


class Choice(TypedDict, total=False):
    """Names the fields of :class:`Chosen`."""

    count: int
    ids: Sequence[str]
    reason_prefix: str
    reason: str | None
    age_ms: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    Says which buried tasks a verb is about: ``ids``, or ``count`` at most, the longest buried.

    Of these only those whose reason is ``reason``, or begins with ``reason_prefix``, and that were
    buried ``age_ms`` ago or earlier.
    """

    count: int = 0
    ids: Sequence[str] = ()
    reason_prefix: str = ""
    reason: str | None = None
    age_ms: int = 0

    async def check(self) -> None:
        """Raises: BadArg: what is not allowed."""
        if self.ids:
            if self != Chosen(ids=self.ids):
                raise BadArg(Field("ids", "ID"), " names the tasks, and stands alone")
            check_range(len(self.ids), "ids", 1, COUNT_MAX, "the number of ids")
            async for one in in_turns(self.ids):
                check_id(one)
            return
        check_range(self.count, "count", 1, ALL)
        check_range(self.age_ms, "age_ms", 0, TIME_MAX_MS // 2)
        if self.reason is not None and self.reason_prefix:
            prefix = Field("reason_prefix", "REASON")
            raise BadArg(Field("reason", "REASONIS"), " excludes ", prefix, ": give one of them")

    @property
    def most(self) -> int:
        """Return how many tasks it can be about."""
        return len(self.ids) or self.count

    @property
    def is_any(self) -> bool:
        """Return whether no buried task is left out."""
        return not (self.ids or self.reason_prefix or self.age_ms) and self.reason is None

    def filter(self, till_ms: int) -> tuple[Arg, ...]:
        """Write the last arguments of scripts; without ``till_ms`` as of the store's clock."""
        reason = self.reason_prefix if self.reason is None else self.reason
        return reason, till_ms, self.age_ms, int(self.reason is not None)

    def fits(self, reason: bytes) -> bool:
        """Tell whether a task buried for this reason is meant."""
        if self.reason is None:
            return reason.startswith(self.reason_prefix.encode())
        return reason == self.reason.encode()

    def by_shard(self, shards: Sequence[Shard]) -> Iterator[tuple[Shard, list[str]]]:
        """Yield shards with the ids that lie there, some at a time; without ids each shard."""
        if not self.ids:
            yield from ((shard, []) for shard in shards)
            return
        ids: dict[int, list[str]] = {}
        for one in dict.fromkeys(self.ids):
            ids.setdefault(shard_of(one, len(shards)), []).append(one)
        for index, some in ids.items():
            for start in range(0, len(some), IDS_PIECE):
                yield shards[index], some[start : start + IDS_PIECE]


@dataclass(slots=True)
class Work:
    """Counts what a call has done so far of what it was asked for."""

    chosen: Chosen
    done: int = 0

    @property
    def left(self) -> int:
        """Return how many more it may do."""
        return self.chosen.most - self.done


Piece = Callable[[Work, Shard, list[str], int, int], Awaitable[int]]
"""
Deals with some of a shard's tasks: of these ids, or from a rank on those that were buried by then
(0: by now). It returns the rank to go on from, of ids how many it has dealt with; -1: with all.
"""


class BuriedTasks:
    """
    Looks at buried tasks, makes them ready, moves and removes them.

    What takes ``within_s`` begins no further piece after so many seconds, if it has done any.
    """

    def __init__(self, catalog: Catalog, reads: StoreReads, clock: Clock, payload_max: int) -> None:
        self._catalog = catalog
        self._reads = reads
        self._clock = clock
        self._payload_max = payload_max

    async def reasons(
        self, queue: str, max_stale_ms: int = 0, *, marks: bool = False
    ) -> dict[str, Any]:
        """
        Return why tasks of the queue were buried, the most frequent reason first.

        ``max_stale_ms``: it may be so old. It is looked at :data:`REASONS_LOOKED` tasks, those that
        were buried first; ``more`` says whether there are others. Tasks of further reasons than
        :data:`REASONS_MAX` are counted as ``others``. ``marks``: as of :meth:`.QueueAdmin.peek`.
        Raises: NoQuorum: a copy that stands in has no such queue, or none may.
        """
        check_name(queue)
        read = functools.partial(self._reasons, queue, max_stale_ms)
        return await self._reads.answered(read, max_stale_ms, marks=marks)

    async def _reasons(self, queue: str, max_stale_ms: int, mark: Mark | None) -> dict[str, Any]:
        found: dict[bytes, list[Any]] = {}
        looked = others = 0
        more = False
        for shard in await self._reads.shards(queue, mark):
            rank = 0
            while rank >= 0 and looked < REASONS_LOOKED:
                args = (COUNT_MAX, rank)
                rows, rank = await self._reads.run(shard, "queue.reasons", args, max_stale_ms, mark)
                looked += sum(row[1] for row in rows)
                for reason, *row in rows:
                    others += row[0] * (not _added(found, reason, row))
            more = more or rank >= 0
        rows = [
            {
                "reason": reason.decode("utf-8", "replace"),
                "tasks": row[0],
                "first_ms": row[1],
                "last_ms": row[2],
                "example": row[3].decode("utf-8", "surrogateescape"),
            }
            for reason, row in sorted(found.items(), key=lambda one: -one[1][0])
        ]
        told = {"queue": queue, "tasks": looked, "reasons": rows, "others": others, "more": more}
        return told | (mark or {})

    async def left(self, queue: str, **choice: Unpack[Choice]) -> int:
        """
        Count the chosen tasks that are buried now, whatever ``count`` says.

        Of a reason, or by their age, :data:`REASONS_LOOKED` tasks are looked at: there may be more.
        """
        chosen = Chosen(**choice)
        shards = await self._catalog.open(check_name(queue))
        if chosen.is_any:
            stats = await asyncio.gather(*(shard.run("queue.stats", ()) for shard in shards))
            return sum(row[STATES.index("buried")] for row in stats)
        found = looked = 0
        for shard, ids in chosen.by_shard(shards):
            while ids:
                rows, many = await shard.run("queue.peek", ("ids", LOOK_BYTES, "", 1, *ids))
                found += sum(row[1] == b"buried" for row in rows)
                ids = ids[int(many) :]
            rank = -1 if chosen.ids else 0
            while rank >= 0 and looked < REASONS_LOOKED:
                args = (COUNT_MAX, rank, chosen.age_ms)
                rows, rank = await shard.run("queue.reasons", args)
                looked += sum(row[1] for row in rows)
                found += sum(row[1] for row in rows if chosen.fits(row[0]))
        return found

    async def kick(
        self, queue: str, *, within_s: float = math.inf, **choice: Unpack[Choice]
    ) -> int:
        """Make the chosen tasks ready; how many. Raises: BadArg, StoreDown, NoQuorum."""
        piece = functools.partial(self._run, "queue.kick")
        return await self._through(queue, Chosen(**choice), within_s, piece)

    async def delete(
        self, queue: str, *, within_s: float = math.inf, **choice: Unpack[Choice]
    ) -> int:
        """Remove the chosen tasks; how many. Raises: BadArg, StoreDown, NoQuorum."""
        piece = functools.partial(self._run, "queue.delete_buried")
        return await self._through(queue, Chosen(**choice), within_s, piece)

    async def move(
        self, queue: str, target: str, *, within_s: float = math.inf, **choice: Unpack[Choice]
    ) -> int:
        """
        Put the chosen tasks into another queue under their ids, as new tasks; how many.

        Each is put there first and removed here then: a crash in between leaves it in both, and the
        same call again finishes. One whose id another task has there stays. Raises: BadArg; Full:
        the target has no room for more; StoreDown.
        """
        chosen = Chosen(**choice)
        await chosen.check()
        if check_name(queue) == check_name(target):
            raise BadArg(f"a move goes to another queue; both are {queue}")
        piece = functools.partial(self._move, await self._catalog.open(target))
        return await self._through(queue, chosen, within_s, piece)

    async def put_again(
        self, queue: str, task_id: str, payload: bytes, *, buried_ms: int = 0
    ) -> bool:
        """
        Make a buried task ready with another payload; whether it was not so already.

        ``buried_ms``: only if it is buried since then; 0: since whenever. Raises: BadArg, TooBig;
        NotFound: it was done or removed; NotHeld: it is leased, or is not buried any more, or since
        another time; Full: the store has no room for a longer payload.
        """
        check_payload(payload, "the payload", self._payload_max)
        check_range(buried_ms, "buried_ms", 0, TIME_MAX_MS)
        shards = await self._catalog.open(check_name(queue))
        shard = shard_for(shards, check_id(task_id))
        reply = await shard.run("queue.put_again", (task_id, payload, buried_ms))
        if reply == b"NOTFOUND":
            raise NotFound(f"there is no task {task_id} in {queue} any more")
        if reply in (b"NOTHELD", b"KICKED"):
            now = "leased" if reply == b"NOTHELD" else "not buried any more, or was buried anew"
            raise NotHeld(
                f"the task {task_id} of {queue} is {now}: somebody has kicked it, and its payload"
                " is not changed"
            )
        return bool(reply)

    # --- piece by piece

    async def _through(self, queue: str, chosen: Chosen, within_s: float, piece: Piece) -> int:
        """Deal with the chosen tasks; an error says how many there were before it."""
        await chosen.check()
        until = self._clock.monotonic() + within_s
        work = Work(chosen)
        try:
            for shard, ids in chosen.by_shard(await self._catalog.open(check_name(queue))):
                rank = till_ms = 0
                while rank >= 0 and work.left > 0:
                    rank = await piece(work, shard, ids, rank, till_ms)
                    till_ms = till_ms or max(1, shard.now_ms - chosen.age_ms)
                    if work.done and self._clock.monotonic() >= until:
                        return work.done
        except Error as error:
            if not work.done:
                raise
            told = f"{work.done} tasks are done; the same again goes on with the others. Then: "
            raise BY_CODE.get(error.code, Error)(told, *error.args) from error
        return work.done

    async def _run(
        self, name: str, work: Work, shard: Shard, ids: list[str], rank: int, till_ms: int
    ) -> int:
        reason, *rest = work.chosen.filter(till_ms)
        most, start = min(work.left, COUNT_MAX), 0 if ids else rank
        args: tuple[Arg, ...] = (most, "", reason, start, *rest, *ids[rank:])
        done, behind = await shard.run(name, args)
        work.done += done
        return int(rank + behind if ids and behind >= 0 else behind)

    async def _move(
        self,
        targets: Sequence[Shard],
        work: Work,
        shard: Shard,
        ids: list[str],
        rank: int,
        till_ms: int,
    ) -> int:
        most, chosen = min(work.left, PICK_MAX), work.chosen.filter(till_ms)
        args: tuple[Arg, ...] = (most, PICK_BYTES, rank, *chosen, *ids[rank:])
        rows, behind, read_ms = await shard.run("queue.read_buried", args)
        copies = await asyncio.gather(
            *(_copy(targets, row) for row in rows), return_exceptions=True
        )
        there = [row[0] for row, copied in zip(rows, copies, strict=True) if copied is True]
        if there:
            # Not what was kicked and buried anew since it was read: it may have another payload.
            args = (len(there), "", "", 0, read_ms, 0, 0, *there)
            done, _ = await shard.run("queue.delete_buried", args)
            work.done += done
        for error in copies:
            if isinstance(error, BaseException):
                raise error
        if behind < 0:
            return -1
        return int(rank + behind if ids else behind - len(there))


def _added(found: dict[bytes, list[Any]], reason: bytes, row: list[Any]) -> bool:
    """Add what a page has of a reason to the others; return whether there is room for it."""
    known = found.get(reason)
    if known is None:
        if len(found) == REASONS_MAX:
            return False
        found[reason] = row
        return True
    tasks, first_ms, last_ms, example = row
    if last_ms >= known[2]:
        known[2:] = last_ms, example
    known[:2] = known[0] + tasks, min(known[1], first_ms)
    return True


async def _copy(targets: Sequence[Shard], row: list[Any]) -> bool:
    """Put a picked task; whether it is there now. Raises: Full, StoreDown."""
    if len(row) == 1:
        return False  # no body: nothing to move
    task_id = row[0].decode("utf-8", "surrogateescape")
    priority, due_ms, deadline_ms, lease_ms, attempts, backoff_ms, payload, lane, trace = row[1:]
    task = TaskSpec(
        id=task_id,
        at_ms=due_ms,
        deadline_ms=None if deadline_ms == due_ms else deadline_ms,
        priority=priority,
        lease_ms=lease_ms,
        attempts=attempts,
        backoff_ms=backoff_ms,
        lane=lane.decode() or None,
        trace=traceparent(trace) if trace else "",
    )
    if task.lane:
        task_id = in_lane(task_id, task.lane, len(targets), moved=True)
    shard = shard_for(targets, task_id)
    reply = await shard.put(task_id, task.options(own=False), payload)
    if reply == 0:
        rows, _ = await shard.run("queue.peek", ("id", task_id, ""))
        if rows:
            return bool(rows[0][2] == payload)  # a move that broke off has put it
        # the id was done there a moment ago: this is another life of it
        task.if_exists = "replace"
        reply = await shard.put(task_id, task.options(own=False), payload)
    if reply == b"FULL":
        raise Full("the queue it moves to is at its capacity")
    return bool(reply == 1)

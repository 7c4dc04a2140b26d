"""The verbs on many tasks at once, in bounded pieces: purge, release all, move."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tidewarden.errors import BadArg, Field, Full

from .admin import ALL
from .catalog import Catalog
from .partitioning import in_lane, shard_for
from .sessions.sessions import hex_of
from .shards.shard import Shard
from .task import COUNT_MAX, STATES, TIME_MAX_MS, TaskSpec, check_name, check_range, traceparent

PIECE = 500  # tasks that one script removes or releases
PICK_MAX = 100  # tasks read at a time
PICK_BYTES = 1_000_000  # or so many bytes of theirs
# Against the way that tasks take, so that none slips past; those of lanes before what would bring
# them up.
PURGE_ORDER = ("buried", "waiting", "leased", "ready", "delayed")


class Bulk:
    """
    Removes, releases or moves all tasks of a queue.

    What was there when a verb began is dealt with; what comes meanwhile may be.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def purge(self, queue: str, state: str = "") -> int:
        """
        Remove every task in that state, or in any, the leased ones too; how many. Raises: BadArg.
        """
        if state and state not in STATES:
            raise BadArg(Field("state"), f" is {state[:60]!r}; allowed are {', '.join(STATES)}")
        shards = await self._catalog.open(check_name(queue))
        return await self.purge_shards(shards, (state,) if state else STATES)

    async def purge_shards(
        self, shards: Sequence[Shard], states: Sequence[str], *, final: bool = False
    ) -> int:
        """
        Remove the tasks of these states from shards; returns how many.

        ``final``: see :meth:`Shard.run`.
        """
        total = 0
        for name in (name for name in PURGE_ORDER if name in states):
            pieces = (
                self._pieces(shard, name, "queue.purge", (name,), final=final) for shard in shards
            )
            total += sum(await asyncio.gather(*pieces))
        return total

    async def release_all(self, queue: str, *, holder: str = "", session: str = "") -> int:
        """
        End every lease as a release, whoever holds it, and return how many.

        ``holder``: those alone that this ``node.boot`` took for connections without a session;
        ``session``: those of the session alone. Raises: BadArg.
        """
        uuid = hex_of(session) if session else ""
        shards = await self._catalog.open(check_name(queue))
        if uuid:
            pieces = [self._of_session(shard, uuid) for shard in shards]
        else:
            args = (holder,) if holder else ()
            pieces = [
                self._pieces(shard, "leased", "queue.release_all", (), behind=args)
                for shard in shards
            ]
        return sum(await asyncio.gather(*pieces))

    async def _of_session(self, shard: Shard, uuid: str) -> int:
        total, more = 0, 1
        while more:
            ended, more = await shard.run("queue.session_release", (uuid, PIECE, "release"))
            total += ended
        return total

    async def _pieces(
        self,
        shard: Shard,
        state: str,
        name: str,
        args: tuple[str, ...],
        *,
        behind: tuple[str, ...] = (),
        final: bool = False,
    ) -> int:
        """
        Run a script until it has dealt with as many tasks as are in ``state`` now, or finds none.
        """
        row = await shard.run("queue.stats", (), final=final)
        left = int(row[11 if state == "waiting" else STATES.index(state)])
        total = 0
        while left > 0:
            done = int(await shard.run(name, (*args, min(left, PIECE), *behind), final=final))
            if done == 0:
                break
            total += done
            left -= done
        return total

    async def move(
        self, queue: str, target: str, *, count: int, reason_prefix: str = "", age_ms: int = 0
    ) -> int:
        """
        Put at most ``count`` buried tasks into another queue under their ids, and return how many.

        They are new tasks there.

        Those whose reason begins with the prefix and that were buried ``age_ms`` ago or earlier.

        Each is put there first and removed here then: a crash in between leaves it in both, and the
        same call again finishes. One whose id another task has there stays. Raises: BadArg; Full:
        the target has no room for more; StoreDown.
        """
        check_range(count, "count", 1, ALL)
        check_range(age_ms, "age_ms", 0, TIME_MAX_MS // 2)
        if check_name(queue) == check_name(target):
            raise BadArg(f"a move goes to another queue; both are {queue}")
        targets = await self._catalog.open(target)
        moved = 0
        for shard in await self._catalog.open(queue):
            rank = till_ms = 0
            while rank >= 0 and moved < count:
                args = (
                    min(count - moved, PICK_MAX),
                    PICK_BYTES,
                    rank,
                    reason_prefix,
                    till_ms,
                    age_ms,
                )
                rows, behind = await shard.run("queue.read_buried", args)
                till_ms = till_ms or max(1, shard.now_ms - age_ms)
                copies = await asyncio.gather(
                    *(self._copy(targets, row) for row in rows), return_exceptions=True
                )
                there = [row[0] for row, copied in zip(rows, copies, strict=True) if copied is True]
                if there:
                    moved += int(
                        await shard.run(
                            "queue.purge", ("buried", min(len(there), COUNT_MAX), *there)
                        )
                    )
                for error in copies:
                    if isinstance(error, BaseException):
                        raise error
                rank = behind - len(there) if behind >= 0 else -1
        return moved

    async def _copy(self, targets: list[Shard], row: list[Any]) -> bool:
        """Put a picked task; whether it is there now. Raises: Full, StoreDown."""
        if len(row) == 1:
            return False  # no body: nothing to move
        task_id = row[0].decode("utf-8", "surrogateescape")
        priority, due_ms, deadline_ms, lease_ms, attempts, backoff_ms, payload, lane, trace = row[
            1:
        ]
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

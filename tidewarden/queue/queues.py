"""The queues of one node: the verbs that carry the load, batched into scripts by their shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, Full, NotHeld
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.durability.durability import Durability

from .capacity_wait import put_error
from .fast_path import FastPath
from .partitioning import in_lane
from .sessions.session import Session
from .settings import QueueSettings
from .shards.shard import Shard
from .take import give_back
from .task import (
    COUNT_MAX,
    LEASE_MAX_MS,
    LEASE_NUMBER_MAX,
    REASON_MAX,
    TIME_MAX_MS,
    Taken,
    TaskSpec,
    check_id,
    check_name,
    check_payload,
    check_range,
)

FAIR_ROUND = 4
NO_ROOM = -1  # as ack.lua says it
LONG_RESULT = (
    "the store's memory is full, and the result is longer than its task: acknowledge without it, or"
    " later"
)


class Queues(FastPath):
    """
    Every verb of the queues. Results come as futures or coroutines; all raise
    :mod:`tidewarden.errors`.
    """

    def __init__(
        self,
        config: Config,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        *,
        views: bool,
        system_queues: Mapping[str, QueueSettings],
        commits: Durability | None = None,
    ) -> None:
        super().__init__(
            config, link, scripts, clock, views=views, system_queues=system_queues, commits=commits
        )
        self._turn: dict[str, int] = {}

    # --- the hot verbs

    def put(self, queue: str, task: TaskSpec) -> asyncio.Future[str]:
        """
        Put a task into a queue, or into each queue of a topic; a future of its id.

        Raises: BadArg, TooBig, and what a strategy does (at once); in the future: Exists, NotHeld
        (by ``if_exists``), Full, StoreDown (with the same id a retry is safe).
        """
        task.check(self._config.limits.payload_bytes)
        shards = self._shards.get(queue)
        if shards is None:
            return self._loop.create_task(self._put_by_name(check_name(queue), task))
        own = not task.id
        task_id = task.id or self._ids.make(self._clock.unix_ms())
        if task.lane:
            task_id = in_lane(task_id, task.lane, len(shards))
        elif queue in self._choosers:
            task_id = self._choosers[queue](task_id, task.payload, own=own)
        future: asyncio.Future[str] = self._loop.create_future()

        def answered(done: asyncio.Future[Any]) -> None:
            if future.done() or done.cancelled():
                return
            error = done.exception()
            if error is not None:
                future.set_exception(error)
                return
            reply = done.result()
            if type(reply) is bytes:
                future.set_exception(put_error(reply, queue, task_id))
            else:
                future.set_result(task_id)

        self._lane(shards, task_id).put(task_id, task.options(own), task.payload).add_done_callback(
            answered
        )
        return future

    async def _put_by_name(self, name: str, task: TaskSpec) -> str:
        """A put into a topic, or into a queue that this node does not know yet."""
        links = await self._links_of(name)
        if links is None:
            return await self.put(name, task)
        return await self._put_to_each(name, links, task, lambda queue, copy: self.put(queue, copy))

    def take(
        self,
        session: Session,
        queues: Sequence[str],
        *,
        count: int = 1,
        wait_ms: int = 0,
        lease_ms: int = 0,
        task_id: str = "",
    ) -> asyncio.Future[list[Taken]]:
        """
        Take at most ``count`` ready tasks, from earlier queues first, waiting at most ``wait_ms``
        for the first; a future of the tasks.

        Cancel the future when the consumer goes: nothing is taken for it, and what already was goes
        back. Raises: BadArg (at once); Full: too many takes wait, or the connection holds too many
        tasks; StoreDown, Stale (in the future).
        """
        check_range(count, "COUNT", 1, COUNT_MAX)
        # the system's own takes wait whatever users' may
        if queues and not queues[0].startswith("_"):
            check_range(wait_ms, "WAIT", 0, self._config.limits.wait_ms)
            if wait_ms and len(self._takes) >= self._config.limits.waiting_max:
                raise Full(
                    f"{len(self._takes)} takes wait on this node; that is its limit"
                    " (limits.waiting_max)"
                )
        check_range(lease_ms, "LEASE", 0, LEASE_MAX_MS)
        if task_id:
            check_id(task_id)
        if not queues:
            raise BadArg("a take names at least one queue")
        shards: list[Shard] = []
        for queue in queues:
            known = self._shards.get(queue)
            if known is None:
                return self._loop.create_task(
                    self._take_later(session, queues, count, wait_ms, lease_ms, task_id)
                )
            if task_id:
                shards.append(self._lane(known, task_id))
            elif len(known) == 1:
                shards.append(known[0])
            else:
                shards += self._in_turn(queue, known)
        if session.is_full or (
            session.shared is not None and not self._entered(session.shared, shards)
        ):
            return self._loop.create_task(
                self._take_later(session, queues, count, wait_ms, lease_ms, task_id, shards)
            )
        until = self._loop.time() + wait_ms / 1000 if wait_ms else 0.0
        take = self.begin_take(
            session, shards, until, count=count, lease_ms=lease_ms, task_id=task_id
        )
        take.start()
        return take.future

    def _in_turn(self, queue: str, known: list[Shard]) -> list[Shard]:
        """
        The shards in the order in which a take asks them: each is first in turn, but those that had
        nothing lately come last.

        In every fourth round that does not count: other nodes may have put something there, of
        which nobody here was told.
        """
        turn = self._turn[queue] = self._turn.get(queue, -1) + 1
        first = turn % len(known)
        around = known[first:] + known[:first]
        if turn // len(known) % FAIR_ROUND:
            around.sort(key=lambda shard: shard.bare.dry(shard))
        return around

    async def _take_later(
        self,
        session: Session,
        queues: Sequence[str],
        count: int,
        wait_ms: int,
        lease_ms: int,
        task_id: str,
        shards: Sequence[Shard] = (),
    ) -> list[Taken]:
        for queue in queues:
            check_name(queue)
            await self._open(queue)
        if session.shared is not None and shards:
            await self._enter(session.shared, shards)
        if session.is_full:
            await self.hold_limit.make_room(session)
        if session.closed:
            return []
        taking = self.take(
            session, queues, count=count, wait_ms=wait_ms, lease_ms=lease_ms, task_id=task_id
        )
        try:
            return await taking
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                # The tasks and the end of their consumer came in one turn of the loop.
                found = taking.result()
                give_back(found, [self._lane(self._shards[task.queue], task.id) for task in found])
            raise

    def ack(
        self, session: Session, queue: str, pairs: Iterable[tuple[str, int]], result: bytes = b""
    ) -> asyncio.Future[list[int]]:
        """
        Tasks are done; a future of 1 or 0 (the lease is not current) for each. :meth:`wait` finds
        the ``result``.

        The same ack of an id of the caller's is 1 again while the queue remembers it
        (``dedup_ms``).

        Raises: BadArg, TooBig (at once); Full (in the future): the store is, and the result longer
        than its task: nothing was done, it goes without; StoreDown.
        """
        pairs = list(pairs)
        check_range(len(pairs), "the number of tasks", 1, self._config.limits.batch_max)
        # here, for in the script it would fail those of others that came along
        for _, lease in pairs:
            check_range(lease, "the lease number", 0, LEASE_NUMBER_MAX)
        check_payload(result, "the result", self._config.limits.payload_bytes)

        def act(shards: list[Shard]) -> asyncio.Future[Any]:
            dropped = {}
            for task_id, lease in pairs:
                entry = session.drop(queue, task_id, lease)
                if entry is not None:
                    dropped[queue, task_id] = entry
            if len(pairs) == 1:
                task_id, lease = pairs[0]
                answer = _acked_one(self._lane(shards, task_id).ack(task_id, lease, result))
            else:
                answer = asyncio.gather(
                    *(
                        self._lane(shards, task_id).ack(task_id, lease, result)
                        for task_id, lease in pairs
                    )
                )
            if dropped:
                answer.add_done_callback(lambda done: self._acked(session, dropped, done))
            return answer

        return self._then(check_name(queue) if queue not in self._shards else queue, act)

    def _acked(
        self,
        session: Session,
        dropped: dict[tuple[str, str], tuple[int, int]],
        done: asyncio.Future[Any],
    ) -> None:
        if not done.cancelled() and done.exception() is not None:
            self.hold_again(session, dropped)

    async def _end(
        self,
        session: Session,
        queue: str,
        task_id: str,
        lease: int,
        how: str,
        delay_ms: int,
        reason: str,
    ) -> None:
        if delay_ms != -1:
            check_range(delay_ms, "DELAY", 0, TIME_MAX_MS // 2)
        check_range(lease, "the lease number", 0, LEASE_NUMBER_MAX)
        shards = await self._open(check_name(queue))
        ended = await self._lane(shards, task_id).end(
            task_id, lease, how, delay_ms, reason[:REASON_MAX]
        )
        session.drop(queue, task_id, lease)
        if not ended:
            raise NotHeld(f"the task {task_id} of {queue} is not held under lease {lease}")

    async def release(
        self,
        session: Session,
        queue: str,
        task_id: str,
        lease: int,
        delay_ms: int = 0,
        reason: str = "",
    ) -> None:
        """Hand a task on; the attempt is given back. Raises: NotHeld."""
        await self._end(session, queue, task_id, lease, "release", delay_ms, reason)

    async def fail(
        self,
        session: Session,
        queue: str,
        task_id: str,
        lease: int,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> None:
        """
        A try failed, and the attempt counts: again after ``delay_ms`` or the backoff, or buried
        when attempts are used up.

        Raises: NotHeld.
        """
        await self._end(
            session, queue, task_id, lease, "fail", -1 if delay_ms is None else delay_ms, reason
        )

    async def bury(
        self, session: Session, queue: str, task_id: str, lease: int, reason: str = ""
    ) -> None:
        """Put a task aside until it is kicked. Raises: NotHeld."""
        await self._end(session, queue, task_id, lease, "bury", -1, reason or "buried")

    async def touch(
        self, session: Session, queue: str, task_id: str, lease: int, lease_ms: int = 0
    ) -> int:
        """The lease runs on from now; its new end in unix ms of the store. Raises: NotHeld."""
        check_range(lease_ms, "LEASE", 0, LEASE_MAX_MS)
        check_range(lease, "the lease number", 0, LEASE_NUMBER_MAX)
        shards = await self._open(check_name(queue))
        end_ms: int = await self._lane(shards, task_id).touch(task_id, lease, lease_ms)
        if not end_ms:
            raise NotHeld(f"the task {task_id} of {queue} is not held under lease {lease}")
        if (queue, task_id) in session.held:
            session.held[queue, task_id] = (lease, end_ms)
        return end_ms

    def waiting(self) -> int:
        """Takes under way or waiting on this node."""
        return len(self._takes)

    def end_waits(self) -> None:
        """
        Answer every waiting take with nothing, every other wait with a time-out: the node goes
        down.
        """
        self.draining = True
        self._end_endings()
        self._end_lines()
        for take in list(self._takes):
            take.stop_waiting()


def _acked_one(future: asyncio.Future[Any]) -> asyncio.Future[list[Any]]:
    """A future of a list with the answer to the one ack."""
    listed: asyncio.Future[list[Any]] = future.get_loop().create_future()

    def done(inner: asyncio.Future[Any]) -> None:
        if listed.done() or inner.cancelled():
            return
        error = inner.exception()
        if error is not None:
            listed.set_exception(error)
        elif inner.result() == NO_ROOM:
            listed.set_exception(Full(LONG_RESULT))
        else:
            listed.set_result([inner.result()])

    future.add_done_callback(done)
    return listed

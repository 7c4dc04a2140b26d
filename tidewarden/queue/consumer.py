"""Takes tasks, and ends their leases: by ack, release, failure or burial."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tidewarden.config.settings import Limits
from tidewarden.errors import BadArg, Full, NotHeld

from .catalog import Catalog
from .partitioning import shard_for
from .sessions.hold_limit import HoldLimit
from .sessions.session import Held, Session
from .sessions.sessions import Sessions
from .shards.shard import Shard
from .take import Take, TakesUnderWay, give_back
from .task import (
    COUNT_MAX,
    LEASE_MAX_MS,
    LEASE_NUMBER_MAX,
    REASON_MAX,
    TIME_MAX_MS,
    Taken,
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


class Consumer:
    """Takes tasks for sessions, and ends or extends their leases."""

    def __init__(
        self,
        catalog: Catalog,
        sessions: Sessions,
        hold_limit: HoldLimit,
        under_way: TakesUnderWay,
        limits: Limits,
    ) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._hold_limit = hold_limit
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.under_way = under_way
        self.times = under_way.times

    def take(
        self,
        session: Session,
        queues: Sequence[str],
        *,
        count: int = 1,
        wait_ms: int = 0,
        lease_ms: int = 0,
        task_id: str = "",
        anyhow: bool = False,
    ) -> asyncio.Future[list[Taken]]:
        """
        Take at most ``count`` ready tasks; return a future of them.

        Tasks of earlier queues come first; it waits at most ``wait_ms`` for the first task.
        ``anyhow``: the task of ``task_id``, which is not waited for, is taken also where it is
        buried, or its queue paused.

        Cancel the future when the consumer goes: nothing is taken for it, and what already was goes
        back. Raises: BadArg (at once); Full: too many takes wait, or the connection holds too many
        tasks; StoreDown, Stale (in the future).
        """
        check_range(count, "count", 1, COUNT_MAX)
        # the system's own takes wait whatever users' may
        if queues and not queues[0].startswith("_"):
            check_range(wait_ms, "wait_ms", 0, self._limits.wait_ms)
            if wait_ms and len(self.under_way) >= self._limits.waiting_max:
                raise Full(
                    f"{len(self.under_way)} takes wait on this node; that is its limit"
                    " (limits.waiting_max)"
                )
        check_range(lease_ms, "lease_ms", 0, LEASE_MAX_MS)
        if task_id:
            check_id(task_id)
        if not queues:
            raise BadArg("a take names at least one queue")
        shards: list[Shard] = []
        for queue in queues:
            known = self._catalog.shards.get(queue)
            if known is None:
                return self._loop.create_task(
                    self._take_later(session, queues, count, wait_ms, lease_ms, task_id, anyhow)
                )
            if task_id:
                shards.append(shard_for(known, task_id))
            elif len(known) == 1:
                shards.append(known[0])
            else:
                shards += self._in_turn(queue, known)
        if session.is_full or (
            session.shared is not None and not self._sessions.entered(session.shared, shards)
        ):
            return self._loop.create_task(
                self._take_later(session, queues, count, wait_ms, lease_ms, task_id, anyhow, shards)
            )
        until = self._loop.time() + wait_ms / 1000 if wait_ms else 0.0
        future: asyncio.Future[list[Taken]] = self._loop.create_future()
        take = Take(self.under_way, session, shards, until, future)
        future.add_done_callback(take.caller_left)
        take.anyhow = anyhow
        take.start(count, lease_ms, task_id)
        return future

    def _in_turn(self, queue: str, known: list[Shard]) -> list[Shard]:
        """
        Return the shards in the order in which a take asks them.

        Each is first in turn, but those that had nothing lately come last. In every fourth round
        that does not count: another node may have put something there, of which this node was not
        told.
        """
        turns = self._catalog.turns
        turn = turns[queue] = turns.get(queue, -1) + 1
        first = turn % len(known)
        around = known[first:] + known[:first]
        if turn // len(known) % FAIR_ROUND:
            around.sort(key=lambda shard: shard.known_empty.dry(shard))
        return around

    async def _take_later(
        self,
        session: Session,
        queues: Sequence[str],
        count: int,
        wait_ms: int,
        lease_ms: int,
        task_id: str,
        anyhow: bool,
        shards: Sequence[Shard] = (),
    ) -> list[Taken]:
        for queue in queues:
            check_name(queue)
            await self._catalog.open(queue, for_use=True)
        if session.shared is not None and shards:
            await self._sessions.enter(session.shared, shards)
        if session.is_full:
            await self._hold_limit.make_room(session)
        if session.closed:
            return []
        taking = self.take(
            session,
            queues,
            count=count,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            task_id=task_id,
            anyhow=anyhow,
        )
        try:
            return await taking
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                # The tasks and the end of their consumer came in one turn of the loop.
                self.give_back(session, taking.result())
            raise

    def give_back(self, session: Session, tasks: Sequence[Taken]) -> None:
        """Hand back tasks that no consumer has received; no attempt is counted."""
        shards = self._catalog.shards
        for task in tasks:
            session.drop(task.queue, task.id, task.lease)
        there = [task for task in tasks if task.queue in shards]  # not dropped meanwhile
        give_back(there, [shard_for(shards[task.queue], task.id) for task in there])

    def ack(
        self, session: Session, queue: str, pairs: Iterable[tuple[str, int]], result: bytes = b""
    ) -> asyncio.Future[list[int]]:
        """
        Acknowledge tasks; returns a future of 1 or 0 (the lease is not current) for each.

        A wait for the end of the task gets the ``result``.

        The same ack of an id of the caller's is 1 again while the queue remembers it
        (``dedup_ms``).

        Raises: BadArg, TooBig (at once); Full (in the future): the store is, and the result longer
        than its task: nothing was done, it goes without; StoreDown.
        """
        pairs = list(pairs)
        many = "the number of tasks"
        check_range(len(pairs), many, 1, self._limits.batch_max, many)
        # here, for in the script it would fail those of others that came along
        for _, lease in pairs:
            check_range(lease, "lease", 0, LEASE_NUMBER_MAX, "the lease number")
        check_payload(result, "the result", self._limits.payload_bytes)

        def act(shards: list[Shard]) -> asyncio.Future[Any]:
            dropped = {}
            for task_id, lease in pairs:
                entry = session.drop(queue, task_id, lease)
                if entry is not None:
                    dropped[queue, task_id] = entry
                    self.times.ended(entry, "ack", self._loop.time())
            if len(pairs) == 1:
                task_id, lease = pairs[0]
                answer = _acked_one(shard_for(shards, task_id).ack(task_id, lease, result))
            else:
                answer = asyncio.gather(
                    *(
                        shard_for(shards, task_id).ack(task_id, lease, result)
                        for task_id, lease in pairs
                    )
                )
            if dropped:
                answer.add_done_callback(lambda done: self._acked(session, dropped, done))
            return answer

        return self._then(check_name(queue) if queue not in self._catalog.shards else queue, act)

    def _acked(
        self,
        session: Session,
        dropped: dict[tuple[str, str], Held],
        done: asyncio.Future[Any],
    ) -> None:
        if not done.cancelled() and done.exception() is not None:
            self.hold_again(session, dropped)

    def _then(
        self, queue: str, act: Callable[[list[Shard]], asyncio.Future[Any]]
    ) -> asyncio.Future[Any]:
        """
        Run ``act`` on the queue's shards: at once when they are known, else after they were read.
        """
        shards = self._catalog.shards.get(queue)
        if shards is not None:
            return act(shards)

        async def later() -> Any:
            return await act(await self._catalog.open(queue))

        return self._loop.create_task(later())

    def hold_again(self, session: Session, dropped: dict[tuple[str, str], Held]) -> None:
        """
        Give tasks whose ack has an unknown outcome back to the session that held them.

        It goes on holding them; if it has closed, their leases are ended.
        """
        if not session.closed:
            session.held.update(dropped)
        elif session.joining is None:
            self._sessions.end_soon(dropped, session.how)

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
            check_range(delay_ms, "delay_ms", 0, TIME_MAX_MS // 2)
        check_range(lease, "lease", 0, LEASE_NUMBER_MAX, "the lease number")
        shards = await self._catalog.open(check_name(queue))
        ended = await shard_for(shards, task_id).end(
            task_id, lease, how, delay_ms, reason[:REASON_MAX]
        )
        entry = session.drop(queue, task_id, lease)
        if entry is not None:
            self.times.ended(entry, how, self._loop.time())
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
        Record a failed try, which counts as an attempt.

        The task is ready again after ``delay_ms`` or the backoff, or buried when its attempts are
        used up.

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
        """
        Let the lease run on from now; return its new end in unix ms of the store. Raises: NotHeld.
        """
        check_range(lease_ms, "lease_ms", 0, LEASE_MAX_MS)
        check_range(lease, "lease", 0, LEASE_NUMBER_MAX, "the lease number")
        shards = await self._catalog.open(check_name(queue))
        end_ms: int = await shard_for(shards, task_id).touch(task_id, lease, lease_ms)
        if not end_ms:
            raise NotHeld(f"the task {task_id} of {queue} is not held under lease {lease}")
        if (entry := session.held.get((queue, task_id))) is not None:
            session.held[queue, task_id] = (lease, end_ms, entry[2])
        return end_ms

    def waiting(self) -> int:
        """Return how many takes are under way or wait on this node."""
        return len(self.under_way)

    def arrived(self) -> Iterator[tuple[str, str, int]]:
        """Return queue, id and lease of the tasks that takes have while they go on asking."""
        for take in self.under_way.takes:
            yield from take.arrived

    def end_waits(self) -> None:
        """Answer every waiting take with the tasks that it has, because the node goes down."""
        for take in list(self.under_way.takes):
            take.stop_waiting()


def _acked_one(future: asyncio.Future[Any]) -> asyncio.Future[list[Any]]:
    """Return a future of a list with the answer to the one ack."""
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

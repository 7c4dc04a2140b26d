"""Does the work of commands on jobs, which are the tasks of queues to beanstalkd's clients."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import msgspec

from tidewarden.errors import BadArg, Exists, NotFound, NotHeld
from tidewarden.queue import Session
from tidewarden.queue.partitioning import shard_for
from tidewarden.queue.queues import Queues
from tidewarden.queue.settings import QueueSettings
from tidewarden.queue.task import LEASE_MAX_MS, TIME_MAX_MS, Changes, Taken, TaskSpec

from .job_numbers import Job, JobNumbers

PRIORITY_MAX = 2**32 - 1
FIRST_DEADLINE_MS = TIME_MAX_MS - PRIORITY_MAX
"""
The deadline of a job of priority 0; each further one is a millisecond later. So the earliest
deadline is the job that beanstalkd would give, and none is ever late: they lie in the year 2109.
"""
KICKED_MAX = 2**31
KICKED_AT_ONCE = 1000
DELAY_MAX_MS = TIME_MAX_MS // 2
TUBE = QueueSettings(order="edf", losses_max=0, dedup_ms=0, version=1, tube=1)
"""
The settings of a queue that is first used here: in the order of priorities, and a job is never
buried by itself.
"""


class Reserved(NamedTuple):
    """
    Holds a job that a connection has reserved.

    ``until``: when its time to run ends, in the loop's time; ``priority``: as it was when it was
    reserved.
    """

    job: Job
    lease: int
    until: float
    lease_ms: int
    priority: int


def priority_of(deadline_ms: int) -> int:
    """Return the priority of a job by its deadline; a task put elsewhere has the least."""
    return max(0, min(PRIORITY_MAX, deadline_ms - FIRST_DEADLINE_MS))


class Jobs:
    """Puts, takes and changes jobs. All raise what the queues do."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.numbers = JobNumbers(queues.catalog)
        self._loop = asyncio.get_running_loop()

    async def open(self, queue: str) -> None:
        """Make the queue of a tube, unless it is there."""
        catalog = self.queues.catalog
        if queue not in catalog.shards:
            durability = catalog.durability.of_new_queues
            new = msgspec.structs.replace(TUBE, durability=durability)
            await catalog.open(queue, new, for_use=True)

    async def put(self, queue: str, priority: int, delay_s: int, run_s: int, body: bytes) -> int:
        """Put a job; return its number."""
        await self.open(queue)
        while True:
            number = await self.numbers.next(queue)
            spec = TaskSpec(
                body,
                id=self.numbers.id_of(number),
                delay_ms=min(delay_s * 1000, DELAY_MAX_MS) if delay_s else None,
                deadline_ms=FIRST_DEADLINE_MS + priority,
                lease_ms=min(max(run_s, 1) * 1000, LEASE_MAX_MS),
                if_exists="fail",
            )
            try:
                await self.queues.put(queue, spec)
            except Exists:
                continue  # the store has lost which numbers were given out, and not the job
            return number

    def take(
        self, session: Session, queues: list[str], wait_ms: int
    ) -> asyncio.Future[list[Taken]]:
        """Take one job of open queues; return a future of it, or of nothing."""
        return self.queues.take(session, queues, wait_ms=wait_ms)

    def take_named(self, session: Session, job: Job) -> asyncio.Future[list[Taken]]:
        """Take this job unless it is reserved: also a buried one, and of a paused tube."""
        return self.queues.take(session, [job.queue], task_id=job.task_id, anyhow=True)

    async def kick(self, queue: str, count: int) -> int:
        """Make buried jobs ready, or delayed ones where none is buried; how many."""
        moved = await self.queues.buried.kick(queue, count=min(count, KICKED_MAX))
        if moved:
            return moved
        for shard in await self.queues.catalog.open(queue):
            while moved < count:
                some = await shard.run(
                    "queue.kick_delayed", (min(count - moved, KICKED_AT_ONCE), "")
                )
                moved += some
                if some < KICKED_AT_ONCE:
                    break
        return moved

    async def kick_named(self, job: Job) -> bool:
        """Make a buried or delayed job ready; whether it was either."""
        if await self.queues.buried.kick(job.queue, ids=[job.task_id]):
            return True
        shard = await self.queues.catalog.shard(job.queue, job.task_id)
        return bool(await shard.run("queue.kick_delayed", (1, job.task_id)))

    async def tally(self, job: Job) -> tuple[list[int], int]:
        """Read what has happened to a job (see tally.lua), and the store's clock (ms)."""
        shard = await self.queues.catalog.shard(job.queue, job.task_id)
        found = await shard.run("queue.tally", (job.task_id,))
        return found, shard.now_ms

    def reserved(self, task: Taken) -> Reserved:
        """Return the record that a connection keeps of a task that it has taken."""
        shard = shard_for(self.queues.catalog.shards[task.queue], task.id)
        lease_ms = max(0, task.lease_end_ms - shard.now_ms)
        until = self._loop.time() + lease_ms / 1000
        job = Job(task.queue, task.id)
        return Reserved(job, task.lease, until, lease_ms, priority_of(task.deadline_ms))

    async def peek(self, job: Job) -> dict[str, Any] | None:
        """Return the job as it lies; None: it is not there."""
        try:
            return await self.queues.admin.peek(job.queue, job.task_id)
        except NotFound:
            return None

    async def delete_reserved(self, session: Session, held: Reserved) -> bool:
        """Delete a job that the session may have; return whether it had it."""
        pairs = [(held.job.task_id, held.lease)]
        (done,) = await self.queues.ack(session, held.job.queue, pairs)
        return bool(done)

    async def delete(self, job: Job) -> bool:
        """Delete a job unless it is reserved; returns whether it was there."""
        try:
            return bool(await self.queues.admin.delete(job.queue, job.task_id))
        except (NotHeld, BadArg):
            return False

    async def release(self, session: Session, held: Reserved, priority: int, delay_s: int) -> bool:
        """Give a job back; return whether the session had it."""
        try:
            await self._set_priority(held, priority)
            delay_ms = min(delay_s * 1000, DELAY_MAX_MS)
            job = held.job
            await self.queues.release(session, job.queue, job.task_id, held.lease, delay_ms)
        except (NotHeld, NotFound):
            return False
        return True

    async def bury(self, session: Session, held: Reserved, priority: int) -> bool:
        """Bury a job; returns whether the session had it."""
        try:
            await self._set_priority(held, priority)
            await self.queues.bury(session, held.job.queue, held.job.task_id, held.lease)
        except (NotHeld, NotFound):
            return False
        return True

    async def touch(self, session: Session, held: Reserved) -> Reserved | None:
        """Let the time to run begin anew; None: the session does not have the job any more."""
        job = held.job
        try:
            end_ms = await self.queues.touch(session, job.queue, job.task_id, held.lease)
        except NotHeld:
            return None
        shard = shard_for(self.queues.catalog.shards[job.queue], job.task_id)
        left_ms = max(0, end_ms - shard.now_ms)
        return held._replace(until=self._loop.time() + left_ms / 1000, lease_ms=left_ms)

    async def _set_priority(self, held: Reserved, priority: int) -> None:
        """
        Set a job's priority, as another deadline.

        A task that was put elsewhere keeps its own until it is given one.
        """
        if priority != held.priority:
            changes = Changes(deadline_ms=FIRST_DEADLINE_MS + priority, lease=held.lease)
            await self.queues.admin.update(held.job.queue, held.job.task_id, changes)

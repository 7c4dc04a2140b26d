"""Reserves the next job of the tubes that a connection watches, or waits for one."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from tidewarden.queue.task import Taken

from .job_numbers import Job
from .replies import DEADLINE_SOON, TIMED_OUT, job
from .tube_names import queue_of
from .tube_state import read_tubes

if TYPE_CHECKING:
    from .connection import JobConnection

TRIES = 5
MARGIN_S = 1.0
"""The last second of the time to run, in which a connection is not made to wait."""


def watched_queues(connection: JobConnection) -> list[str]:
    """
    Return the queues that a reserve takes from: the watched ones from which the user may take.

    Everybody watches the tube ``default`` at first, whether it may or not.

    Raises: Denied: it may take from none.
    """
    rights = connection.peer.rights
    found = [queue for tube in connection.watched if (queue := queue_of(tube)) is not None]
    allowed = [queue for queue in found if rights.allow("take", queue)]
    if not allowed:
        connection.check("reserve", ("take",), found[0])
    return allowed


def soonest(connection: JobConnection) -> float:
    """
    Return when the first of the peer's jobs runs out of time (the loop's).

    Jobs whose time is over are forgotten.
    """
    now = asyncio.get_running_loop().time()
    over = [number for number, held in connection.reserved.items() if held.until <= now]
    for number in over:
        del connection.reserved[number]
    return min((held.until for held in connection.reserved.values()), default=math.inf)


async def reserve(connection: JobConnection, timeout_s: float) -> bytes:
    """Reserve a job, waiting at most so long (``inf``: for ever)."""
    loop, door = asyncio.get_running_loop(), connection.door
    if not timeout_s:
        return await _reserve(connection, loop.time())
    with door.limits.waits.held(connection.peer.user or ""):
        return await _reserve(connection, loop.time() + timeout_s)


async def _reserve(connection: JobConnection, until: float) -> bytes:
    loop, door = asyncio.get_running_loop(), connection.door
    queues = watched_queues(connection)
    connection.is_worker = True
    session = connection.open_session()
    for queue in queues:
        await door.jobs.open(queue)
    door.waiting.update(connection.watched)
    try:
        while True:
            soon = soonest(connection) - MARGIN_S
            left_s = max(0.0, min(until, soon) - loop.time())
            if (task := await take_first(connection, queues)) is not None:
                return await hold(connection, task)
            wait_ms = door.wait_ms if left_s > door.wait_ms / 1000 else math.ceil(left_s * 1000)
            tasks = await connection.wait_for(door.jobs.take(session, queues, wait_ms))
            if tasks is None:
                if door.peers.draining:
                    connection.close()
                return TIMED_OUT
            if tasks:
                return await hold(connection, tasks[0])
            if loop.time() >= soon:
                return DEADLINE_SOON
            if loop.time() >= until:
                return TIMED_OUT
    finally:
        door.waiting.subtract(connection.watched)
        for tube in connection.watched:
            if door.waiting[tube] <= 0:
                del door.waiting[tube]


async def take_first(connection: JobConnection, queues: list[str]) -> Taken | None:
    """
    Take the job that goes before all others of these queues; None: no job is ready.

    If there is one shard alone, its own take does that, and no tube has to be read before.
    """
    jobs = connection.door.jobs
    shards = [shard for queue in queues for shard in jobs.queues.catalog.shards[queue]]
    tries = 0 if len(shards) == 1 else TRIES
    for _ in range(tries):
        seen = await read_tubes(jobs.queues, queues)
        heads = [one.ready for one in seen if one.ready is not None and not one.paused_until_ms]
        if not heads:
            return None
        _, first = min(heads)
        session = connection.open_session()
        tasks = await jobs.queues.take(session, [first.queue], task_id=first.task_id)
        if tasks:
            return tasks[0]
    return None  # others were faster each time: whatever comes first will do


async def hold(connection: JobConnection, task: Taken) -> bytes:
    """Give the connection this task from now on; return the reply."""
    door = connection.door
    number = await door.jobs.numbers.number_of(Job(task.queue, task.id))
    connection.reserved[number] = door.jobs.reserved(task)
    return job("RESERVED", number, task.payload)

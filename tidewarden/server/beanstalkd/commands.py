"""
Serves the commands of beanstalkd, each by a function; the table names them as its statistics do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from tidewarden.errors import BadArg, Draining
from tidewarden.server.access.required_rights import ADMIN, TAKE_OR_ADMIN

from . import statistics
from .context import DEFAULT_TUBE, count_down
from .job_numbers import Job
from .jobs import DELAY_MAX_MS
from .parser import Request
from .replies import NOT_FOUND, data, job, listed
from .reserving import hold, reserve, soonest
from .tube_names import queue_of, tube_of
from .tube_state import TubeState, read_tube, read_tubes

if TYPE_CHECKING:
    from .connection import JobConnection

    Reply = bytes | Coroutine[Any, Any, bytes]

PUT, TAKE = ("put",), ("take",)
WATCHED_MAX = 1000  # tubes: a reserve looks at each


def queue_named(tube: str) -> str:
    """Return the queue of a tube. Raises: BadArg: it can have none."""
    queue = queue_of(tube)
    if queue is None:
        raise BadArg("the tube's name is too long for a queue's")
    return queue


# --- producers


async def put(c: JobConnection, request: Request) -> bytes:
    priority, delay_s, run_s, *_ = request.numbers
    c.is_producer = True
    queue = queue_named(c.used)
    c.check("put", PUT, queue)
    if c.door.peers.draining:
        raise Draining("This node is going down.")
    number = await c.door.jobs.put(queue, priority, delay_s, run_s, request.body)
    return b"INSERTED %d\r\n" % number


def use(c: JobConnection, request: Request) -> Reply:
    queue_named(request.name)
    count_down(c.door.using, c.used)
    c.used = request.name
    c.door.using[c.used] += 1
    return f"USING {c.used}\r\n".encode()


# --- workers


def reserve_for_ever(c: JobConnection, request: Request) -> Reply:
    return reserve(c, math.inf)


def reserve_with_timeout(c: JobConnection, request: Request) -> Reply:
    timeout_s = request.numbers[0]
    return reserve(c, math.inf if timeout_s < 0 else timeout_s)


async def reserve_job(c: JobConnection, request: Request) -> bytes:
    found = await _find(c, request, "reserve-job", TAKE)
    if found is None:
        return NOT_FOUND
    session = c.open_session()
    tasks = await c.door.jobs.take_named(session, found)
    if not tasks:
        return NOT_FOUND
    c.is_worker = True
    return await hold(c, tasks[0])


async def delete(c: JobConnection, request: Request) -> bytes:
    number = request.numbers[0]
    held = c.reserved.get(number)
    done = False
    if held is not None:
        c.check("delete", TAKE, held.job.queue)
        done = await c.door.jobs.delete_reserved(c.open_session(), held)
        c.reserved.pop(number, None)  # not before: who hears INTERNAL_ERROR may say it again
    if not done:
        found = await _find(c, request, "delete", ADMIN)
        done = found is not None and await c.door.jobs.delete(found)
    return b"DELETED\r\n" if done else NOT_FOUND


async def release(c: JobConnection, request: Request) -> bytes:
    number, priority, delay_s = request.numbers
    soonest(c)
    held = c.reserved.get(number)
    if held is None:
        return NOT_FOUND
    done = await c.door.jobs.release(c.open_session(), held, priority, delay_s)
    c.reserved.pop(number, None)
    return b"RELEASED\r\n" if done else NOT_FOUND


async def bury(c: JobConnection, request: Request) -> bytes:
    number, priority = request.numbers
    soonest(c)
    held = c.reserved.get(number)
    if held is None:
        return NOT_FOUND
    done = await c.door.jobs.bury(c.open_session(), held, priority)
    c.reserved.pop(number, None)
    return b"BURIED\r\n" if done else NOT_FOUND


async def touch(c: JobConnection, request: Request) -> bytes:
    number = request.numbers[0]
    soonest(c)
    held = c.reserved.get(number)
    if held is None:
        return NOT_FOUND
    touched = await c.door.jobs.touch(c.open_session(), held)
    if touched is None:
        c.reserved.pop(number, None)
        return NOT_FOUND
    c.reserved[number] = touched
    return b"TOUCHED\r\n"


def watch(c: JobConnection, request: Request) -> Reply:
    c.check("watch", TAKE, queue_named(request.name))
    if request.name not in c.watched:
        if len(c.watched) >= WATCHED_MAX:
            raise BadArg(f"a connection watches at most {WATCHED_MAX} tubes")
        c.watched.append(request.name)
        c.door.watching[request.name] += 1
    return b"WATCHING %d\r\n" % len(c.watched)


def ignore(c: JobConnection, request: Request) -> Reply:
    if request.name in c.watched:
        if len(c.watched) == 1:
            return b"NOT_IGNORED\r\n"
        at = c.watched.index(request.name)
        c.watched[at] = c.watched[-1]  # as beanstalkd does: the last one has its place
        c.watched.pop()
        count_down(c.door.watching, request.name)
    return b"WATCHING %d\r\n" % len(c.watched)


# --- others


async def peek(c: JobConnection, request: Request) -> bytes:
    found = await _find(c, request, "peek", TAKE_OR_ADMIN)
    row = None if found is None else await c.door.jobs.peek(found)
    return NOT_FOUND if row is None else job("FOUND", request.numbers[0], row["payload"])


async def peek_ready(c: JobConnection, request: Request) -> bytes:
    return await _peek_next(c, request, lambda seen: seen.ready)


async def peek_delayed(c: JobConnection, request: Request) -> bytes:
    return await _peek_next(c, request, lambda seen: seen.delayed)


async def peek_buried(c: JobConnection, request: Request) -> bytes:
    return await _peek_next(c, request, lambda seen: seen.buried)


async def _peek_next(
    c: JobConnection, request: Request, next_of: Callable[[TubeState], tuple[Any, Job] | None]
) -> bytes:
    queue = queue_named(c.used)
    c.check(request.op, TAKE_OR_ADMIN, queue)
    jobs = c.door.jobs
    while await jobs.queues.catalog.exists(queue):
        found = next_of(await read_tube(jobs.queues, queue))
        if found is None:
            break
        row = await jobs.peek(found[1])
        if row is not None:  # else it has gone meanwhile
            return job("FOUND", await jobs.numbers.number_of(found[1]), row["payload"])
    return NOT_FOUND


async def kick(c: JobConnection, request: Request) -> bytes:
    queue, count = queue_named(c.used), request.numbers[0]
    c.check("kick", ADMIN, queue)
    jobs, moved = c.door.jobs, 0
    if count and await jobs.queues.catalog.exists(queue):
        words = (queue, "COUNT", str(count))
        moved = await c.noted("Q.KICK", words, jobs.kick(queue, count))
    return b"KICKED %d\r\n" % moved


async def kick_job(c: JobConnection, request: Request) -> bytes:
    found = await _find(c, request, "kick-job", ADMIN)
    if found is None:
        return NOT_FOUND
    words = (found.queue, "ID", found.task_id)
    kicked = await c.noted("Q.KICK", words, c.door.jobs.kick_named(found))
    return b"KICKED\r\n" if kicked else NOT_FOUND


async def pause_tube(c: JobConnection, request: Request) -> bytes:
    queue, seconds = queue_named(request.name), request.numbers[0]
    c.check("pause-tube", ADMIN, queue)
    if await _seen(c, request.name, queue) is None:
        return NOT_FOUND
    admin, pause_ms = c.door.jobs.queues.admin, min(seconds * 1000, DELAY_MAX_MS)
    if seconds:
        await c.noted("Q.PAUSE", (queue, "MS", str(pause_ms)), admin.pause(queue, pause_ms))
    else:
        await c.noted("Q.RESUME", (queue,), admin.resume(queue))
    return b"PAUSED\r\n"


async def stats_job(c: JobConnection, request: Request) -> bytes:
    found = await _find(c, request, "stats-job", TAKE_OR_ADMIN)
    jobs = c.door.jobs
    row = None if found is None else await jobs.peek(found)
    if found is None or row is None:
        return NOT_FOUND
    tally, now_ms = await jobs.tally(found)
    run_ms = jobs.queues.catalog.settings[found.queue].lease_ms
    tube = tube_of(found.queue) or found.queue
    return data(statistics.of_job(request.numbers[0], tube, row, tally, now_ms, run_ms))


async def stats_tube(c: JobConnection, request: Request) -> bytes:
    queue = queue_named(request.name)
    if not c.peer.rights.see(queue):
        c.check("stats-tube", ("stats",), queue)
    seen = await _seen(c, request.name, queue)
    return NOT_FOUND if seen is None else data(statistics.of_tube(c.door, request.name, seen))


async def stats(c: JobConnection, request: Request) -> bytes:
    seen = await _tubes(c)
    tubes = [one for one in seen.values() if one is not None]
    return data(statistics.of_node(c.door, tubes, len(seen)))


async def list_tubes(c: JobConnection, request: Request) -> bytes:
    """List the tubes, the oldest first, as beanstalkd does, to which ``default`` is the oldest."""
    tubes = {queue_named(tube): tube for tube in await _tubes(c)}
    first = tubes.pop(DEFAULT_TUBE, None)
    oldest = await c.door.jobs.numbers.by_age(tubes)
    return listed([*filter(None, (first,)), *(tubes[queue] for queue in oldest)])


async def _seen(c: JobConnection, tube: str, queue: str) -> TubeState | None:
    """
    Read a tube; None: it has no jobs, and no connection of this node refers to it.

    A tube that has no queue yet gets it.
    """
    jobs, referred = c.door.jobs, c.door.refers_to(tube)
    if not referred and not await jobs.queues.catalog.exists(queue):
        return None
    await jobs.open(queue)
    seen = await read_tube(jobs.queues, queue)
    return seen if referred or seen.jobs else None


async def _tubes(c: JobConnection) -> dict[str, TubeState | None]:
    """Read every tube that there is for this user; None for one that has never had a job."""
    jobs = c.door.jobs
    queues = {
        tube: queue
        for queue in await jobs.queues.catalog.names()
        if (tube := tube_of(queue)) is not None and c.peer.rights.see(queue)
    }
    states = await read_tubes(jobs.queues, queues.values())
    found: dict[str, TubeState | None] = {
        tube: seen
        for tube, seen in zip(queues, states, strict=True)
        if seen.jobs or c.door.refers_to(tube)
    }
    for tube in c.door.referred():
        if tube not in found and (queue := queue_of(tube)) and c.peer.rights.see(queue):
            found[tube] = None
    return found


def list_tube_used(c: JobConnection, request: Request) -> Reply:
    return f"USING {c.used}\r\n".encode()


def list_tubes_watched(c: JobConnection, request: Request) -> Reply:
    return listed(c.watched)


async def auth(c: JobConnection, request: Request) -> bytes:
    """Authenticate the peer; the command is ours."""
    user, _, secret = request.name.partition(" ")
    c.enter(await c.door.users.authenticate(user, secret, c.peer.address))
    return b"OK\r\n"


async def _find(
    c: JobConnection, request: Request, command: str, words: tuple[str, ...]
) -> Job | None:
    """Find the job that a command names. Raises: Denied."""
    found = await c.door.jobs.numbers.find(request.numbers[0])
    if found is not None:
        c.check(command, words, found.queue)
    return found


COMMANDS: Mapping[str, Callable[[JobConnection, Request], Reply]] = {
    "put": put,
    "use": use,
    "reserve": reserve_for_ever,
    "reserve-with-timeout": reserve_with_timeout,
    "reserve-job": reserve_job,
    "delete": delete,
    "release": release,
    "bury": bury,
    "touch": touch,
    "watch": watch,
    "ignore": ignore,
    "peek": peek,
    "peek-ready": peek_ready,
    "peek-delayed": peek_delayed,
    "peek-buried": peek_buried,
    "kick": kick,
    "kick-job": kick_job,
    "stats-job": stats_job,
    "stats-tube": stats_tube,
    "stats": stats,
    "list-tubes": list_tubes,
    "pause-tube": pause_tube,
    "list-tube-used": list_tube_used,
    "list-tubes-watched": list_tubes_watched,
    "auth": auth,
}

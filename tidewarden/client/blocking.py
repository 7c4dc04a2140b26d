"""
Offers the client to threads: a thread beside yours runs the asyncio client.

Each method is that of its namesake in ``client.py``, ``queue.py``, ``schedules.py``, ``task.py`` or
``lock.py``, and waits for its answer.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from .client import ANSWER_S, GRACE_MS, RETRY_S, AsyncClient
from .lock import AsyncLock
from .loop_thread import Bridge, Inner, LoopThread, blocking, end_thread
from .options import Place, State
from .queue import FOREVER_MS, AsyncQueue
from .replies import TaskInfo
from .schedules import AsyncSchedules
from .task import AsyncTask


class Task:
    """
    A task under a lease, see :class:`AsyncTask`.

    ``with task:`` keeps the lease while the block runs, then acknowledges the task; an exception
    fails it, Ctrl-C and ``SystemExit`` release it.
    """

    __slots__ = ("client", "inner")

    def __init__(self, client: Client, inner: AsyncTask) -> None:
        self.client = client
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner).replace("AsyncTask", "Task")

    @property
    def bridge(self) -> Bridge:
        """Return the bridge to the loop that runs the asyncio task."""
        return self.client.bridge

    queue = Inner[str]("The name of the queue.")
    id = Inner[str]("The task's id.")
    lease = Inner[int]("The lease's number.")
    fence = Inner[int]("The lease's number; whatever the task changes can refuse a smaller one.")
    payload = Inner[bytes]("The payload, as it was put.")
    text = Inner[str]("The payload as UTF-8 text.")
    attempt = Inner[int]("The number of this attempt; the first is 1.")
    deadline_ms = Inner[int]("The time by which the task should be done, unix ms.")
    lease_ms = Inner[int]("The length of the lease, ms.")
    lease_end_ms = Inner[int]("The lease's end by the store's clock, unix ms.")
    traceparent = Inner[str](
        "The trace context of its put (W3C Trace Context); empty: that was not traced."
    )
    settled = Inner[bool]("Whether a verb of ours has ended the lease.")
    lost = Inner[bool]("Whether the lease is known to have ended without our doing: drop the work.")

    def json(self) -> Any:
        """Read the payload as JSON. Raises: ValueError: it is none."""
        return self.inner.json()

    wait_lost = blocking(AsyncTask.wait_lost)
    ack = blocking(AsyncTask.ack)
    release = blocking(AsyncTask.release)
    fail = blocking(AsyncTask.fail)
    bury = blocking(AsyncTask.bury)
    touch = blocking(AsyncTask.touch)

    def __enter__(self) -> Self:
        if not self.settled:
            self.bridge.loop.call_soon_threadsafe(self.inner.client.leases.keep, self.inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bridge.run(self.inner.__aexit__(kind, error, trace))


class Lock:
    """
    A lock, see :class:`AsyncLock`.

    ``with client.lock("report") as lock: …``
    """

    __slots__ = ("client", "inner")

    def __init__(self, client: Client, inner: AsyncLock) -> None:
        self.client = client
        self.inner = inner

    @property
    def bridge(self) -> Bridge:
        """Return the bridge to the loop that runs the asyncio lock."""
        return self.client.bridge

    name = Inner[str]("The lock's name.")
    fence = Inner[int]("The number under which it is held; 0: it is not.")
    held = Inner[bool]("Whether it is ours, as far as is known.")
    lost = Inner[bool](
        "Whether its lease is known to have ended without our doing: stop what it was for."
    )

    wait_lost = blocking(AsyncLock.wait_lost)
    acquire = blocking(AsyncLock.acquire)
    renew = blocking(AsyncLock.renew)
    release = blocking(AsyncLock.release)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bridge.run(self.inner.__aexit__(kind, error, trace))


class Queue:
    """A queue of a cluster, see :class:`AsyncQueue`."""

    __slots__ = ("client", "inner")

    def __init__(self, client: Client, inner: AsyncQueue) -> None:
        self.client = client
        self.inner = inner

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @property
    def bridge(self) -> Bridge:
        """Return the bridge to the loop that runs the asyncio queue."""
        return self.client.bridge

    name = Inner[str]("The queue's name.")

    put = blocking(AsyncQueue.put)
    put_json = blocking(AsyncQueue.put_json)
    put_many = blocking(AsyncQueue.put_many)

    def take(
        self, *, wait_ms: int = 0, lease_ms: int | None = None, id: str | None = None
    ) -> Task | None:
        """
        Take a task, waiting at most ``wait_ms`` for one; ``None`` when none came.

        ``id``: this one alone.

        ``lease_ms``: how long it is ours, else the put's or the queue's; a block (``with task:``)
        renews it.
        """
        found = self.bridge.run(self.inner.take(wait_ms=wait_ms, lease_ms=lease_ms, id=id))
        return None if found is None else Task(self.client, found)

    def take_many(self, count: int, *, wait_ms: int = 0, lease_ms: int | None = None) -> list[Task]:
        """Take at most ``count`` tasks (1,000), as many as are there once there is one."""
        found = self.bridge.run(self.inner.take_many(count, wait_ms=wait_ms, lease_ms=lease_ms))
        return [Task(self.client, task) for task in found]

    def tasks(self, *, lease_ms: int | None = None) -> Iterator[Task]:
        """
        Yield tasks one after another, without an end.

        Use it as ``for task in queue.tasks(): with task: …``.
        """
        while True:
            task = self.take(wait_ms=FOREVER_MS, lease_ms=lease_ms)
            if task is not None:
                yield task

    def ack_many(self, tasks: Iterable[Task | tuple[str, int]]) -> list[bool]:
        """
        Acknowledge many tasks (or ``(id, lease)`` pairs) of this queue in few pieces.

        Returns: for each whether it was ours; another client has one that was not.
        """
        given = [task.inner if isinstance(task, Task) else task for task in tasks]
        return self.bridge.run(self.inner.ack_many(given))

    ack = blocking(AsyncQueue.ack)
    release = blocking(AsyncQueue.release)
    fail = blocking(AsyncQueue.fail)
    bury = blocking(AsyncQueue.bury)
    touch = blocking(AsyncQueue.touch)
    peek = blocking(AsyncQueue.peek)
    page = blocking(AsyncQueue.page)

    def search(
        self,
        state: State,
        *,
        match: str | None = None,
        match_in: Place | None = None,
        where: str | None = None,
    ) -> Iterator[TaskInfo]:
        """Yield all tasks in this state that fit, as :meth:`page` finds them."""
        cursor: str | None = None
        while cursor != "":
            page = self.page(state, after=cursor or "", match=match, match_in=match_in, where=where)
            yield from page.tasks
            cursor = page.cursor

    reasons = blocking(AsyncQueue.reasons)
    wait = blocking(AsyncQueue.wait)
    kick = blocking(AsyncQueue.kick)
    put_again = blocking(AsyncQueue.put_again)
    update = blocking(AsyncQueue.update)
    delete = blocking(AsyncQueue.delete)
    stats = blocking(AsyncQueue.stats)
    pause = blocking(AsyncQueue.pause)
    resume = blocking(AsyncQueue.resume)
    settings = blocking(AsyncQueue.settings)
    configure = blocking(AsyncQueue.configure)
    purge = blocking(AsyncQueue.purge)
    drop = blocking(AsyncQueue.drop)
    release_all = blocking(AsyncQueue.release_all)
    holders = blocking(AsyncQueue.holders)
    move = blocking(AsyncQueue.move)
    check = blocking(AsyncQueue.check)


class Schedules:
    """The schedules of a cluster, see :class:`AsyncSchedules`."""

    def __init__(self, client: Client, inner: AsyncSchedules) -> None:
        self.client = client
        self.inner = inner

    @property
    def bridge(self) -> Bridge:
        """Return the bridge to the loop that runs the asyncio client."""
        return self.client.bridge

    put = blocking(AsyncSchedules.put)
    list = blocking(AsyncSchedules.list)
    get = blocking(AsyncSchedules.get)
    outlook = blocking(AsyncSchedules.outlook)
    delete = blocking(AsyncSchedules.delete)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    run = blocking(AsyncSchedules.run)


class Client:
    """
    Connects to a cluster, see :class:`AsyncClient`, for any number of threads.

    Make one in each process: it does not survive a fork. ``with Client() as client: …`` closes it.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        *,
        grace_ms: int = GRACE_MS,
        retry_s: float = RETRY_S,
        answer_s: float = ANSWER_S,
        name: str = "",
        spread: bool = True,
    ) -> None:
        inner = AsyncClient(
            urls,
            grace_ms=grace_ms,
            retry_s=retry_s,
            answer_s=answer_s,
            name=name,
            spread=spread,
        )
        thread = LoopThread("tidewarden client")
        self.bridge: Bridge = thread
        self.inner = inner
        self._end: Callable[[], object] = weakref.finalize(
            self, end_thread, thread, inner, os.getpid()
        )

    def __repr__(self) -> str:
        return repr(self.inner).replace("AsyncClient", "Client")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """
        Give back the tasks that blocks still hold, and close every connection.

        Calls under way raise Unreachable.
        """
        self._end()

    def queue(self, name: str) -> Queue:
        """Return the queue of this name; its first use makes it."""
        return Queue(self, self.inner.queue(name))

    @property
    def schedules(self) -> Schedules:
        """Return the cluster's schedules."""
        return Schedules(self, self.inner.schedules)

    def lock(self, name: str, *, lease_ms: int = 30_000) -> Lock:
        """
        Return the lock of this name; see :class:`AsyncLock`.

        Use it as ``with client.lock("report") as lock: …``.
        """
        return Lock(self, self.inner.lock(name, lease_ms=lease_ms))

    def take(
        self, *queues: str, count: int = 1, wait_ms: int = 0, lease_ms: int | None = None
    ) -> list[Task]:
        """Take tasks as :meth:`AsyncClient.take` does: from several queues, earlier ones first."""
        found = self.bridge.run(
            self.inner.take(*queues, count=count, wait_ms=wait_ms, lease_ms=lease_ms)
        )
        return [Task(self, task) for task in found]

    token = blocking(AsyncClient.token)
    tokens = blocking(AsyncClient.tokens)
    connect_url = blocking(AsyncClient.connect_url)
    connect_device = blocking(AsyncClient.connect_device)
    queues = blocking(AsyncClient.queues)
    topics = blocking(AsyncClient.topics)
    link = blocking(AsyncClient.link)
    unlink = blocking(AsyncClient.unlink)
    drop_topic = blocking(AsyncClient.drop_topic)
    status = blocking(AsyncClient.status)
    consumers = blocking(AsyncClient.consumers)
    kill = blocking(AsyncClient.kill)
    end_session = blocking(AsyncClient.end_session)
    execute = blocking(AsyncClient.execute)

"""What a thread holds: tasks and locks of the blocking client."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .lock import AsyncLock
from .loop_thread import Bridge, blocking
from .task import AsyncTask

if TYPE_CHECKING:
    from .blocking import Client


class Task:
    """
    A task under a lease, see :class:`AsyncTask`. ``with task:`` keeps the lease while the block
    runs, then acknowledges the task; an exception fails it, Ctrl-C and ``SystemExit`` release it.
    """

    __slots__ = ("client", "inner")

    def __init__(self, client: Client, inner: AsyncTask) -> None:
        self.client = client
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner).replace("AsyncTask", "Task")

    @property
    def bridge(self) -> Bridge:
        """What runs the asyncio task."""
        return self.client.bridge

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.inner.queue

    @property
    def id(self) -> str:
        """The task's id."""
        return self.inner.id

    @property
    def lease(self) -> int:
        """The lease's number."""
        return self.inner.lease

    fence = lease

    @property
    def payload(self) -> bytes:
        """As put."""
        return self.inner.payload

    @property
    def text(self) -> str:
        """The payload as UTF-8 text."""
        return self.inner.text

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.inner.attempt

    @property
    def deadline_ms(self) -> int:
        """Wanted done by, unix ms."""
        return self.inner.deadline_ms

    @property
    def lease_ms(self) -> int:
        """How long the lease is."""
        return self.inner.lease_ms

    @property
    def lease_end_ms(self) -> int:
        """The lease's end by the store's clock, unix ms."""
        return self.inner.lease_end_ms

    @property
    def settled(self) -> bool:
        """Whether the task is no longer ours by a verb of ours."""
        return self.inner.settled

    @property
    def lost(self) -> bool:
        """Whether the lease is known to have ended without our doing: drop the work."""
        return self.inner.lost

    def json(self) -> Any:
        """The payload read as JSON. Raises: ValueError: it is none."""
        return self.inner.json()

    wait_lost = blocking(AsyncTask.wait_lost)
    ack = blocking(AsyncTask.ack)
    release = blocking(AsyncTask.release)
    fail = blocking(AsyncTask.fail)
    bury = blocking(AsyncTask.bury)
    touch = blocking(AsyncTask.touch)

    def __enter__(self) -> Self:
        if not self.settled:
            self.bridge.loop.call_soon_threadsafe(self.inner.client.toucher.keep, self.inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bridge.run(self.inner.__aexit__(kind, error, trace))


class Lock:
    """A lock, see :class:`AsyncLock`. ``with client.lock("report") as lock: …``"""

    __slots__ = ("client", "inner")

    def __init__(self, client: Client, inner: AsyncLock) -> None:
        self.client = client
        self.inner = inner

    @property
    def bridge(self) -> Bridge:
        """What runs the asyncio lock."""
        return self.client.bridge

    @property
    def name(self) -> str:
        """The lock's name."""
        return self.inner.name

    @property
    def fence(self) -> int:
        """The number under which it is held; 0: it is not."""
        return self.inner.fence

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as is known."""
        return self.inner.held

    @property
    def lost(self) -> bool:
        """Whether its lease is known to have ended without our doing: stop what it was for."""
        return self.inner.lost

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

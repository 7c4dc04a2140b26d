"""A taken task: its fields, the verbs that settle it, and the block that keeps its lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidewarden.errors import Full, NotHeld, Unreachable

from .connection import Arg, Replies
from .failover import only
from .options import encoded, words

if TYPE_CHECKING:
    from .client import AsyncClient

Way = Callable[[tuple[Arg, ...]], Awaitable[tuple[Replies, bool]]]
"""
As ``Line.run`` of one command that may be repeated: its answer, and whether it was sent twice.
"""
REASON_BYTES = 240
RELEASING = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
"""Whoever works on the task is told to stop: that is no failure of the task."""


class Loss:
    """Notes that a lease is lost, and wakes the tasks that wait for that."""

    __slots__ = ("_event", "known")

    def __init__(self) -> None:
        self.known = False
        self._event: asyncio.Event | None = None

    def mark(self) -> None:
        """Note the loss."""
        self.known = True
        if self._event is not None:
            self._event.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait for the loss, at most that many seconds, and return whether it happened."""
        if self.known:
            return True
        if self._event is None:
            self._event = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class AsyncTask:
    """
    A task under a lease.

    ``async with task:`` keeps the lease while the block runs, then acknowledges the task; an
    exception fails it with its text as the reason, a cancellation releases it. What the block has
    settled itself stays so.

    ``queue``, ``id``, ``payload``: as put. ``lease``: the lease's number, also as :attr:`fence`: it
    only grows, hand it to what the task changes. ``attempt``: 1 for the first. ``deadline_ms``:
    wanted done by, unix ms. ``lease_ms``: how long the lease is, ``lease_end_ms``: its end by the
    store's clock. ``settled``: whether it is no longer ours by a verb of ours.
    """

    __slots__ = (
        "_loss",
        "attempt",
        "client",
        "deadline_ms",
        "id",
        "lease",
        "lease_end_ms",
        "lease_ms",
        "on_lost",
        "payload",
        "queue",
        "settled",
        "since",
        "traceparent",
        "way",
    )

    def __init__(
        self, client: AsyncClient, queue: str, row: list[Any], lease_ms: int, since: float
    ) -> None:
        self.client = client
        self.queue = queue
        self.id: str = row[1].decode()
        self.lease: int = row[2]
        self.payload: bytes = row[3]
        self.attempt: int = row[4]
        self.deadline_ms: int = row[5]
        self.lease_end_ms: int = row[6]
        # of its put (W3C Trace Context); empty: that was not traced
        self.traceparent: str = row[7].decode() if len(row) > 7 else ""
        self.lease_ms = lease_ms
        # our monotonic clock when the lease began or was renewed, in seconds; not later than it was
        self.since = since
        self.settled = False
        self._loss: Loss | None = None
        # called when a renewal finds the lease lost
        self.on_lost: Callable[[], object] | None = None
        self.way: Way | None = None  # how what settles it goes out; None: by the client's line

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.queue} {self.id} lease={self.lease}"
            f" attempt={self.attempt}>"
        )

    def __str__(self) -> str:
        return f"task {self.id} of {self.queue}"

    @property
    def fence(self) -> int:
        """
        Return the lease's number: what the task changes can refuse a smaller one than it has seen.
        """
        return self.lease

    @property
    def text(self) -> str:
        """Return the payload as UTF-8 text."""
        return self.payload.decode()

    def json(self) -> Any:
        """Read the payload as JSON. Raises: ValueError: it is none."""
        return json.loads(self.payload)

    @property
    def lost(self) -> bool:
        """
        Return whether the lease is known to have ended against our will.

        Then another client has the task, or will have it. Drop the work.
        """
        return self._loss is not None and self._loss.known

    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """
        Wait until the lease is lost, at most ``timeout_s`` seconds; return whether it is.

        Only inside the task's block is it noticed.
        """
        if self._loss is None:
            self._loss = Loss()
        return await self._loss.wait(timeout_s)

    async def ack(self, result: Any = None) -> None:
        """
        Acknowledge the task: it is done, and removed.

        ``result`` (bytes, text, or what JSON can say) is kept for callers that wait for its end.

        Raises: NotHeld: the lease has ended; Full: the store is, and the result longer than the
        task: it is held still, and can be acknowledged without, or later; Unreachable.
        """
        await self._settle(
            "Q.ACK", words(result=None if result is None else encoded(result)), moot=False
        )

    async def release(self, delay_ms: int | None = None, *, reason: str | None = None) -> None:
        """
        Release the task, at once or after ``delay_ms``; the attempt does not count.

        Raises: NotHeld, Unreachable.
        """
        await self._settle("Q.RELEASE", words(delay=delay_ms, reason=shortened(reason)))

    async def fail(self, delay_ms: int | None = None, *, reason: str | None = None) -> None:
        """
        Fail the attempt.

        The task comes again after ``delay_ms``, else after its backoff; the last failure buries it.

        Raises: NotHeld, Unreachable.
        """
        await self._settle("Q.FAIL", words(delay=delay_ms, reason=shortened(reason)))

    async def bury(self, reason: str | None = None) -> None:
        """Bury the task until it is kicked. Raises: NotHeld, Unreachable."""
        await self._settle("Q.BURY", words(reason=shortened(reason)))

    async def touch(self, lease_ms: int | None = None) -> int:
        """
        Extend the lease from now and return its new end, unix ms of the store.

        Raises: NotHeld, Unreachable.
        """
        asked_at = self.client.clock.monotonic()
        if lease_ms is not None:
            self.lease_ms = lease_ms
        answer, _ = only(await self.client.line.run([self.renewal()], again=True))
        self.touched(answer, asked_at)
        return self.lease_end_ms

    async def _settle(
        self, verb: str, options: tuple[str | bytes | int, ...], *, moot: bool = True
    ) -> None:
        """
        Settle the task by ``verb``.

        ``moot``: when it was sent twice, a lease that has ended is what was wanted.
        """
        kept = self.client.leases.drop(self)
        command = (verb, self.queue, self.id, self.lease, *options)
        found = await (
            self.client.line.run([command], again=True) if self.way is None else self.way(command)
        )
        try:
            only(found)
        except NotHeld:
            if not (moot and found[1]):
                self.mark_lost()
                raise
        except Full:  # nothing was done, and the lease runs on
            if kept:
                self.client.leases.keep(self)
            raise
        self.settled = True

    def renewal(self) -> tuple[Arg, ...]:
        """Return the request that renews the lease."""
        return ("Q.TOUCH", self.queue, self.id, self.lease, "LEASE", self.lease_ms)

    def returning(self) -> tuple[Arg, ...]:
        """Return the request that releases the task."""
        return ("Q.RELEASE", self.queue, self.id, self.lease)

    def touched(self, answer: Any, since: float) -> None:
        """Note that the lease was renewed, not earlier than ``since``."""
        self.lease_end_ms = answer
        self.since = since

    def mark_lost(self) -> None:
        """Note that the lease has ended without our doing."""
        if self._loss is None:
            self._loss = Loss()
        self._loss.mark()

    async def __aenter__(self) -> Self:
        if not self.settled:
            self.client.leases.keep(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.leases.drop(self)
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            if isinstance(error, RELEASING):
                await asyncio.shield(self.release())
            elif not self.lost:
                await self.fail(reason=reason_of(error))
        except (NotHeld, Unreachable) as second:
            error.add_note(f"and task {self.id} of {self.queue} could not be given back: {second}")


def reason_of(error: BaseException) -> str:
    """Turn an exception into the reason of a failure: its class and its text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(reason: str | None) -> str | None:
    """
    Shorten a reason to what the queue keeps: at most 240 bytes of UTF-8, without broken characters.
    """
    if reason is None or len(reason.encode("utf-8", "replace")) <= REASON_BYTES:
        return reason
    return reason.encode("utf-8", "replace")[:REASON_BYTES].decode("utf-8", "ignore")

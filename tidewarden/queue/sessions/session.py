"""
Keeps sessions, which own leases.

One is a connection's own by default, or one that several connections share.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

from tidewarden.errors import NotFound
from tidewarden.queue.task import Taken


class SessionWait(Protocol):
    """Declares a take or an acquire that waits under its session, and ends with it."""

    @property
    def queues(self) -> Iterable[str]:
        """Return the queues in which it waits."""

    def cancel(self) -> None:
        """End the wait, because the connection has gone."""

    def fail(self, error: BaseException) -> None:
        """End the wait with an error, because the shared session has ended."""


HELD_MAX = 10_000  # leases that one connection may hold by itself: see hold_limit.py
Held = tuple[int, int, float]
"""
A lease's number, its end in unix ms of the store as far as the connection knows, and when the task
was taken, in seconds of the loop; 0: that is not counted.
"""
_numbers = itertools.count(1)


class Shared:
    """
    Describes a shared session, as this node sees it.

    ``SESSION`` made it, and connections here and on other nodes share it.

    ``number`` is the attach number that this node was given last, under ``holder`` (its
    ``node.boot`` then); ``places`` are the shards (by prefix) in which it may hold tasks; ``lost``:
    it has ended although connections were there. ``held``: what its connections here took, as of
    :class:`Session`: an ack may come through another one than its take. ``forget_at``: of how many
    leases those that have ended are looked for.
    """

    __slots__ = (
        "connections",
        "forget_at",
        "held",
        "holder",
        "lost",
        "number",
        "places",
        "user",
        "uuid",
    )

    def __init__(self, uuid: str, user: str) -> None:
        self.uuid = uuid
        self.user = user
        self.connections: set[Session] = set()
        self.held: dict[tuple[str, str], Held] = {}
        self.forget_at = HELD_MAX
        self.holder = ""
        self.number = 0
        self.places: set[str] = set()
        self.lost = False


class Session:
    """
    Keeps what one connection holds as a consumer.

    ``held[(queue, id)]`` is of what it took.

    A lease may be ended through another session too; the entry left here does nothing when this one
    closes. ``shared``: the session that owns the leases instead, from the connection's ``SESSION``
    on; one at a time joins, under ``joining``. ``looking``, ``looked_at``, ``ran``: the look at
    which of the leases run, when the latest ended and how many did.

    ``own``: the uuid, of no shared session, under which the leases of no connection stand: see
    :mod:`.unbound`. ``settled``: how many tasks it has ended. ``how`` its leases end when it
    closes: as a loss, or as a release where an operator closed it.
    """

    __slots__ = (
        "closed",
        "held",
        "how",
        "id",
        "joining",
        "looked_at",
        "looking",
        "own",
        "ran",
        "settled",
        "shared",
        "takes",
        "user",
    )

    def __init__(self, user: str = "default", own: str = "") -> None:
        self.id = str(next(_numbers))
        self.user = user
        self.own = own
        self.held: dict[tuple[str, str], Held] = {}
        self.takes: set[SessionWait] = set()
        self.closed = False
        self.how = "loss"
        self.settled = 0
        self.shared: Shared | None = None
        self.joining: asyncio.Lock | None = None
        self.looking: asyncio.Task[None] | None = None
        self.looked_at = -math.inf
        self.ran = 0

    @property
    def uuid(self) -> str:
        """Return the uuid that the leases stand under; "" while they are the connection's own."""
        return self.own if self.shared is None else self.shared.uuid

    def hold(self, tasks: Sequence[Taken], now_ms: int, now: float = 0.0) -> None:
        """
        Note that the session holds these tasks. ``now_ms``: the store's clock; ``now``: the loop's.

        Where a shared session owns the leases, a connection that knows of many forgets what has
        ended: nothing hangs on it.
        """
        for task in tasks:
            self.held[task.queue, task.id] = (task.lease, task.lease_end_ms, now)
        self._forget(now_ms)

    @property
    def is_full(self) -> bool:
        """Return whether the session holds as many tasks by itself as one connection may."""
        return len(self.held) >= HELD_MAX and self.shared is None

    def _forget(self, now_ms: int) -> None:
        if self.shared is not None and len(self.held) > self.shared.forget_at:
            for name in [name for name, (_, end_ms, _) in self.held.items() if end_ms < now_ms]:
                del self.held[name]
            self.shared.forget_at = max(HELD_MAX, 2 * len(self.held))

    def drop(self, queue: str, task_id: str, lease: int) -> Held | None:
        """Forget a lease that is over, and return it; ``None``: it was not held here."""
        entry = self.held.get((queue, task_id))
        if entry is None or entry[0] != lease:
            return None
        del self.held[queue, task_id]
        self.settled += 1
        return entry


def gone(shared: Shared) -> NotFound:
    """Make the error for takes under a session that has ended."""
    return NotFound(
        f"the session {UUID(shared.uuid)} has ended; what it held is ready again. SESSION makes a"
        " new one"
    )

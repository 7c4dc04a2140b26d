"""Keeps the connections of a door, and the sessions that gone ones leave behind."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from tidewarden.clock import Clock, sleep_or
from tidewarden.errors import Error
from tidewarden.queue import Queues, Session
from tidewarden.server.access.admission import AdmissionControl

log = logging.getLogger("tidewarden.server")

GIVE_BACK_S = 3.0
"""How long a stop waits for the leases of its peers; a silent store must not keep the process."""

Connected = TypeVar("Connected")


class Directory(Protocol):
    """Finds the consumers of a process at all of its doors."""

    numbers: Iterator[int]
    """The numbers of connections; each is unique in its node."""
    doors: list[Peers[Any]]


class Peers(Generic[Connected]):
    """
    Lets peers in while there is room, and ends the sessions of those that have gone.

    Args:
        admission: bounds unauthenticated peers.
        connections_max: of peers at a time.
        queues: take back what a session held.
        late: what is logged when that could not be done at once.
        door: its name.
        directory: of the process's consumers, in which they are found, and which numbers them;
            None: they are numbered from 1.
    """

    def __init__(
        self,
        admission: AdmissionControl,
        connections_max: int,
        queues: Queues,
        late: str,
        door: str,
        directory: Directory | None = None,
    ) -> None:
        self._admission = admission
        self._queues = queues
        self._late = late
        self.door = door
        self._numbers = itertools.count(1) if directory is None else directory.numbers
        if directory is not None:
            directory.doors.append(self)
        self.connections_max = connections_max
        self.connections: set[Connected] = set()
        self.relayed: set[Connected] = set()
        """The connections that came in at another process."""
        self.connections_total = 0
        self.refused_total = 0
        self.draining = False
        self.closing: set[asyncio.Task[None]] = set()
        """The sessions whose connections have gone, which are being ended."""
        self.settled = asyncio.Event()
        """Set when a connection has nothing under way any more."""

    def count(self) -> int:
        """Return how many connections count for the limit."""
        return len(self.connections) - len(self.relayed)

    def admit(self, connection: Connected, door: object) -> int:
        """
        Return a new peer's number, or 0 when it is refused.

        It is refused while the door drains, or when there are too many peers and no stranger among
        them whose time is over.
        """
        full = self.count() >= self.connections_max
        if self.draining or (full and self._admission.evict(door) > 0):
            self.refused_total += 1
            return 0
        self.connections.add(connection)
        self.connections_total += 1
        return next(self._numbers)

    def forget(self, connection: Connected, session: Session | None) -> None:
        """Forget a peer that has gone; its leases end at once."""
        self.connections.discard(connection)
        self.relayed.discard(connection)
        if session is not None:
            task = asyncio.ensure_future(self._end(session))
            self.closing.add(task)
            task.add_done_callback(self._ended)
        self.settled.set()

    async def until(self, clock: Clock, settled: Callable[[], bool], limit_s: float) -> None:
        """Wait until ``settled`` returns true, for ``limit_s`` seconds at most."""
        until = clock.monotonic() + limit_s
        while clock.monotonic() < until and not settled():
            self.settled.clear()
            await sleep_or(self.settled, clock, until)

    async def give_back(self, clock: Clock) -> int:
        """Wait until all have gone and their sessions have ended; return how many have not."""
        await self.until(clock, lambda: not (self.closing or self.connections), GIVE_BACK_S)
        for task in self.closing:
            task.cancel()
        return len(self.closing)

    async def _end(self, session: Session) -> None:
        try:
            await self._queues.close_session(session)
        except Error as error:
            # Its leases end by their time; nothing is lost, only later.
            log.warning(self._late, extra={"session": session.id, "reason": str(error)})

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.closing.discard(task)
        self.settled.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("defect in close_session", exc_info=task.exception())

"""What the connections of a RESP door share: rooms, limits, users, counters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.errors import Error
from tidewarden.queue import Session
from tidewarden.server.access.admission import AdmissionControl
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.users import Users
from tidewarden.server.answered_requests import AnsweredRequests
from tidewarden.server.services import Services
from tidewarden.server.verbs.command import Command
from tidewarden.user_limits import UserLimits

from .relay_line import HandOver

log = logging.getLogger("tidewarden.server")

Connected = TypeVar("Connected")


class ServerContext(Generic[Connected]):
    """
    Shared by all connections of one RESP door.

    Args:
        config: its limits count here.
        services: the rooms that answer.
        clock: for ages in CLIENT LIST.
        users: who may log in.
        admission: bounds unauthenticated peers.
        commands: the verbs.
        info: what INFO answers for the sections that are asked for.
        connections_max: of peers at a time.
        hand_over: in a further process, gives the first one an end of a line.
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        clock: Clock,
        users: Users,
        admission: AdmissionControl,
        *,
        commands: Mapping[bytes, Command[Connected]],
        info: Callable[[Collection[str]], str],
        connections_max: int,
        hand_over: HandOver | None,
    ) -> None:
        self.queues = services.queues
        self.services = services
        self.clock = clock
        self.monotonic = clock.monotonic
        self.users = users
        self.admission = admission
        self.mismatches = ProtocolMismatch("RESP", clock)
        self.commands = commands
        self.names = tuple(command.name for command in commands.values())
        self.info = info
        self.hand_over = hand_over
        self.request_bytes = config.limits.request_bytes
        self.line_bytes = config.limits.line_bytes
        self.batch_max = config.limits.batch_max
        self.arguments_max = 2 * config.limits.batch_max + 16
        self.connections_max = connections_max
        self.limits = services.limits or UserLimits(config)
        self.limits.connections.whole = connections_max
        self.waiting = 0  # requests that wait now
        self.draining = False
        self.lingering = 0  # peers for whom there is no room, and who have yet to hang up
        self.connections: set[Connected] = set()
        self.relayed: set[Connected] = set()  # those that came in at another process
        self.connections_total = 0
        self.refused_total = 0
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.errors: Counter[str] = Counter()
        self.answered = AnsweredRequests("resp", services.traffic)
        self.settled = asyncio.Event()  # a connection has nothing under way any more
        self.closing: set[asyncio.Task[None]] = set()  # of sessions whose connection has gone

    def peers(self) -> int:
        """How many connections count for the limit."""
        return len(self.connections) - len(self.relayed)

    def admit(self, connection: Connected, door: object) -> int:
        """
        Return a new peer's number, or 0 when it is refused.

        It is refused while the door drains, or when there are too many peers and no stranger among
        them whose time is over.
        """
        full = self.peers() >= self.connections_max
        if self.draining or (full and self.admission.evict(door) > 0):
            self.refused_total += 1
            return 0
        self.connections.add(connection)
        self.connections_total += 1
        return self.connections_total

    def forget(self, connection: Connected, session: Session | None) -> None:
        """A peer has gone: what it held is free again at once."""
        self.connections.discard(connection)
        self.relayed.discard(connection)
        if session is not None:
            task = asyncio.ensure_future(self._end(session))
            self.closing.add(task)
            task.add_done_callback(self._ended)
        self.settled.set()

    def count_error(self, code: str) -> None:
        """An error was answered."""
        self.errors[code] += 1

    async def _end(self, session: Session) -> None:
        try:
            await self.queues.close_session(session)
        except Error as error:
            # Its leases end by their time; nothing is lost, only later.
            log.warning(
                "a session's leases were not ended at once",
                extra={"session": session.id, "reason": str(error)},
            )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.closing.discard(task)
        self.settled.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("defect in close_session", exc_info=task.exception())

"""Holds what the connections of a RESP door share: rooms, limits, users, counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.server.access.admission import AdmissionControl
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.users import Users
from tidewarden.server.answered_requests import AnsweredRequests
from tidewarden.server.door_peers import Peers
from tidewarden.server.services import Services
from tidewarden.server.verbs.command import Command
from tidewarden.user_limits import UserLimits

from .relay_line import HandOver

Connected = TypeVar("Connected")


class ServerContext(Generic[Connected]):
    """Holds what all connections of one RESP door share."""

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
        self.peers: Peers[Connected] = Peers(
            admission,
            connections_max,
            services.queues,
            "a session's leases were not ended at once",
            "resp",
            services.consumers,
        )
        self.mismatches = ProtocolMismatch("RESP", clock)
        self.commands = commands
        self.names = tuple(command.name for command in commands.values())
        self.info = info
        self.hand_over = hand_over
        self.request_bytes = config.limits.request_bytes
        self.line_bytes = config.limits.line_bytes
        self.batch_max = config.limits.batch_max
        self.arguments_max = 2 * config.limits.batch_max + 16
        self.limits = services.limits or UserLimits(config)
        self.limits.connections.whole = connections_max
        self.waiting = 0  # requests that wait now
        self.lingering = 0  # peers for whom there is no room, and who have yet to hang up
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.errors: Counter[str] = Counter()
        self.answered = AnsweredRequests("resp", services.traffic)

    def count_error(self, code: str) -> None:
        """Count an error that was answered."""
        self.errors[code] += 1

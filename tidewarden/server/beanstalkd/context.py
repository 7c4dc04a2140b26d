"""Holds what the connections of the beanstalkd door share: jobs, users, counters, watched tubes."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING

from tidewarden.clock import Clock
from tidewarden.config.addresses import Network, is_within
from tidewarden.server.access.admission import AdmissionControl
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.users import Users
from tidewarden.server.answered_requests import AnsweredRequests
from tidewarden.server.audit.audit_log import AuditLog
from tidewarden.server.door_peers import Directory, Peers
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.user_limits import UserLimits

from .jobs import Jobs

if TYPE_CHECKING:
    from .connection import JobConnection

DEFAULT_TUBE = "default"


class DoorContext:
    """Holds what all connections of one beanstalkd door share."""

    def __init__(
        self,
        jobs: Jobs,
        clock: Clock,
        users: Users,
        admission: AdmissionControl,
        limits: UserLimits,
        *,
        job_bytes: int,
        connections_max: int,
        wait_ms: int,
        traffic: Recorder | None = None,
        audit: AuditLog | None = None,
        user: str = "",
        networks: tuple[Network, ...] = (),
        consumers: Directory | None = None,
    ) -> None:
        self.jobs = jobs
        self.clock = clock
        self.users = users
        self.admission = admission
        self.peers: Peers[JobConnection] = Peers(
            admission,
            connections_max,
            jobs.queues,
            "jobs of a connection that has gone are ready only when their time is over",
            "beanstalkd",
            consumers,
        )
        self.limits = limits
        self.job_bytes = job_bytes
        self.wait_ms = wait_ms
        self.audit = audit
        self._user = user
        self._networks = networks
        self.answered = AnsweredRequests("beanstalkd", traffic)
        self.mismatches = ProtocolMismatch("beanstalkd", clock)
        self.id = secrets.token_hex(8)  # of this run of the door
        self.started = clock.monotonic()
        self.calls: Counter[str] = Counter()  # by command
        self.errors: Counter[str] = Counter()  # by word
        self.using: Counter[str] = Counter()  # connections by tube
        self.watching: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()

    def user_from(self, host: str) -> str:
        """Return the user of a peer at this address that has not logged in; empty: none."""
        return self._user if self._user and is_within(host, self._networks) else ""

    def refers_to(self, tube: str) -> bool:
        """Return whether a connection uses or watches the tube; ``default`` is always there."""
        return tube == DEFAULT_TUBE or self.using[tube] > 0 or self.watching[tube] > 0

    def referred(self) -> set[str]:
        """Return the tubes that some connection uses or watches, and ``default``."""
        return {DEFAULT_TUBE, *self.using, *self.watching}


def count_down(counter: Counter[str], name: str) -> None:
    """Count one less; a name without a reference left is forgotten."""
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]

"""The beanstalkd door: listens, and keeps the connections."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.config.addresses import listened
from tidewarden.config.load import Config
from tidewarden.config.tls import renew, server_context
from tidewarden.server.access.admission import AdmissionControl, UnauthenticatedPeer
from tidewarden.server.access.listening import Listener
from tidewarden.server.access.peer import DEFAULT_USER
from tidewarden.server.access.tls_handshakes import TlsHandshakes
from tidewarden.server.access.users import Users
from tidewarden.server.services import Services
from tidewarden.user_limits import UserLimits

from .connection import JobConnection
from .context import DoorContext
from .jobs import Jobs

log = logging.getLogger("tidewarden.server")

BACKLOG = 1024
GIVE_BACK_S = 3.0  # at a stop, for the jobs of those who were there


class BeanstalkdServer:
    """
    The beanstalkd door of one node.

    Args:
        config: listens where ``beanstalkd`` says; ``limits`` and ``users`` count here.
        services: the rooms that answer.
        clock: for the age of peers and the grace of :meth:`stop`.
        users: shared with the other doors.
        admission: bounds unauthenticated peers, likewise.
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        clock: Clock,
        users: Users,
        admission: AdmissionControl,
    ) -> None:
        self._config = config
        self._clock = clock
        settings = config.beanstalkd
        self.context = DoorContext(
            Jobs(services.queues),
            clock,
            users,
            admission,
            services.limits or UserLimits(config),
            job_bytes=min(settings.job_bytes, config.limits.payload_bytes),
            connections_max=settings.connections_max,
            wait_ms=config.limits.wait_ms,
            traffic=services.traffic,
            audit=services.audit,
            user=settings.user,
            networks=settings.networks,
        )
        self._tls: TlsHandshakes | None = None
        self._listener = Listener(admission, self._meet, BACKLOG, lambda: users.open)

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        node, shared = self._config.node, self.context
        if context := server_context(node.tls_cert, node.tls_key):
            if authorities := self._config.beanstalkd.client_ca:
                context.verify_mode = ssl.CERT_OPTIONAL
                context.load_verify_locations(authorities)
            self._tls = TlsHandshakes(
                context,
                lambda: shared.connections_max - len(shared.connections),
                shared.mismatches,
            )
        host = self._config.beanstalkd.host or node.host
        await self._listener.start(listened(host), self._config.beanstalkd_port)
        log.info("beanstalkd door open", extra={"host": host, "port": self.port})

    def _meet(self, unauthenticated: UnauthenticatedPeer | None) -> asyncio.BaseProtocol:
        def make() -> JobConnection:
            return JobConnection(self.context, self._listener, unauthenticated)

        return make() if self._tls is None else self._tls.meet(make)

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """
        Admit no new peer, hand out no job, and close the connections.

        Who has reserved a job may delete it for ``grace_s`` seconds; then it is another's.
        """
        shared = self.context
        shared.draining = True
        self._listener.close()
        for connection in list(shared.connections):
            connection.drain()
        await self._until_idle(grace_s)
        for connection in list(shared.connections):
            connection.abort()
        limit_s = self._clock.monotonic() + GIVE_BACK_S
        while (shared.closing or shared.connections) and self._clock.monotonic() < limit_s:
            await self._settled(limit_s - self._clock.monotonic())
        for task in list(shared.closing):
            task.cancel()

    async def _until_idle(self, grace_s: float) -> None:
        limit_s = self._clock.monotonic() + grace_s
        while any(not connection.idle() for connection in self.context.connections):
            left_s = limit_s - self._clock.monotonic()
            if left_s <= 0:
                return
            await self._settled(left_s)

    async def _settled(self, limit_s: float) -> None:
        """Wait until something has settled, so long at most."""
        self.context.settled.clear()
        change = asyncio.ensure_future(self.context.settled.wait())
        limit = asyncio.ensure_future(sleep(self._clock, limit_s))
        await asyncio.wait((limit, change), return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        change.cancel()

    def reload(self, changed: Collection[str]) -> None:
        """
        Hang up on users who are gone or have another secret or other rights.

        The door goes on with the certificate that is in its files now.
        """
        if self._tls is not None:
            renew(self._tls.context, self._config.node.tls_cert, self._config.node.tls_key)
        for connection in list(self.context.connections):
            name = connection.peer.user
            nobody = connection.peer.may is DEFAULT_USER and not self.context.users.open
            if name in changed or (name is None and nobody):
                connection.abort()

    def stats(self) -> dict[str, Any]:
        """Return the counters of the door."""
        shared = self.context
        return {
            "connections": len(shared.connections),
            "connections_total": shared.connections_total,
            "refused_total": shared.refused_total,
            "waiting": sum(connection.is_waiting for connection in shared.connections),
            "requests_total": dict(shared.calls),
            "errors_total": dict(shared.errors),
            **shared.answered.stats(),
        }

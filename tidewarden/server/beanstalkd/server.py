"""Runs the beanstalkd door: listens, and keeps the connections."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection
from typing import Any

from tidewarden.clock import Clock
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


class BeanstalkdServer:
    """
    Serves the beanstalkd door of one node.

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
            consumers=services.consumers,
        )
        self._tls: TlsHandshakes | None = None
        self._listener = Listener(admission, self._meet, BACKLOG, lambda: users.open)

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        node, peers = self._config.node, self.context.peers
        if context := server_context(node.tls_cert, node.tls_key):
            if authorities := self._config.beanstalkd.client_ca:
                context.verify_mode = ssl.CERT_OPTIONAL
                context.load_verify_locations(authorities)
            self._tls = TlsHandshakes(
                context,
                lambda: peers.connections_max - len(peers.connections),
                self.context.mismatches,
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
        """Return the TCP port it listens on."""
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """
        Admit no new peer, hand out no job, and close the connections.

        A peer that has reserved a job may delete it for ``grace_s`` seconds; then it is another's.
        """
        peers = self.context.peers
        peers.draining = True
        self._listener.close()
        for connection in list(peers.connections):
            connection.drain()
        await peers.until(
            self._clock, lambda: all(one.idle() for one in peers.connections), grace_s
        )
        for connection in list(peers.connections):
            connection.abort()
        await peers.give_back(self._clock)

    def reload(self, changed: Collection[str]) -> None:
        """
        Hang up on users who are gone or have another secret or other rights.

        The door goes on with the certificate that is in its files now.
        """
        if self._tls is not None:
            renew(self._tls.context, self._config.node.tls_cert, self._config.node.tls_key)
        for connection in list(self.context.peers.connections):
            name = connection.peer.user
            nobody = connection.peer.may is DEFAULT_USER and not self.context.users.open
            if name in changed or (name is None and nobody):
                connection.abort()

    def stats(self) -> dict[str, Any]:
        """Return the counters of the door."""
        shared = self.context
        return {
            "connections": len(shared.peers.connections),
            "connections_total": shared.peers.connections_total,
            "refused_total": shared.peers.refused_total,
            "waiting": sum(one.is_waiting for one in shared.peers.connections),
            "requests_total": dict(shared.calls),
            "errors_total": dict(shared.errors),
            **shared.answered.stats(),
        }

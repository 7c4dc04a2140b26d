"""
Runs the RESP door: listens, keeps the connections, and reaches the rooms behind for their verbs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tidewarden import __version__
from tidewarden.clock import Clock, sleep
from tidewarden.config.addresses import listened
from tidewarden.config.load import Config, User, is_loopback
from tidewarden.config.tls import renew, server_context
from tidewarden.server.access.admission import SHARE, AdmissionControl, UnauthenticatedPeer
from tidewarden.server.access.listening import Listener
from tidewarden.server.access.peer import DEFAULT_USER
from tidewarden.server.access.tls_handshakes import TlsHandshakes
from tidewarden.server.access.users import Users
from tidewarden.server.services import Services
from tidewarden.server.stats_merge import add_up
from tidewarden.server.verbs.command import Command
from tidewarden.server.verbs.table import COMMANDS

from .connection import LINGERING_MAX, Connection, RelayedPeer
from .context import ServerContext
from .relay_line import HandOver

log = logging.getLogger("tidewarden.server")

BACKLOG = (
    # the kernel has a bound of its own (net.core.somaxconn), past which a burst waits a second for
    # its second try
    4096
)
EVERY_SECTION = frozenset({"all", "default", "everything"})
STATUS = ("node", "role", "leader", "epoch", "view", "primary", "quorum")


def _plain(value: object) -> object:
    """Return a value as INFO writes it: readers of it know 0 and 1."""
    return int(value) if isinstance(value, bool) else value


class RespServer:
    """
    Serves the RESP door of one node.

    Args:
        config: listens on ``node.host`` at ``node.resp_port``; ``limits`` and ``users`` count here.
        services: the rooms that answer.
        clock: for ages in CLIENT LIST, the delay after a wrong secret, the grace of :meth:`stop`.
        users: shared with the HTTP door; made from the configuration when absent.
        commands: its verbs.
        port: where it listens instead, together with the node's other processes (SO_REUSEPORT).
        hand_over: in a further process, gives the first one an end of a line (:mod:`.relay`).
        admission: bounds unauthenticated peers, shared with the HTTP door; made when absent.
        connections_max: less than the limits say, where the process has fewer files.
        others: the stats of the node's other processes, which are added to this one's.
    """

    def __init__(
        self,
        config: Config,
        services: Services,
        clock: Clock,
        users: Users | None = None,
        *,
        commands: Mapping[bytes, Command[Connection]] = COMMANDS,
        port: int = 0,
        hand_over: HandOver | None = None,
        admission: AdmissionControl | None = None,
        connections_max: int | None = None,
        others: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
    ) -> None:
        limits = config.limits
        loopback = is_loopback(config.node.host)
        self._config = config
        self._cluster = services.cluster
        self._clock = clock
        self.users = users or Users(config.users, clock, loopback=loopback)
        self.admission = (
            AdmissionControl(clock, share=SHARE / config.node.processes)
            if admission is None
            else admission
        )
        self.context: ServerContext[Connection] = ServerContext(
            config,
            services,
            clock,
            self.users,
            self.admission,
            commands=commands,
            info=self.info,
            connections_max=limits.connections_max if connections_max is None else connections_max,
            hand_over=hand_over,
        )
        self._others = others
        self._shares_port = port > 0 or config.node.processes > 1
        self._port = port or config.node.resp_port
        self._started = 0.0
        self._tls: TlsHandshakes | None = None
        self._listener = Listener(self.admission, self._meet, BACKLOG, lambda: self.users.open)

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        self._started = self._clock.monotonic()
        node, peers = self._config.node, self.context.peers
        if context := server_context(node.tls_cert, node.tls_key):
            self._tls = TlsHandshakes(
                context,
                lambda: peers.connections_max + LINGERING_MAX - len(peers.connections),
                self.context.mismatches,
            )
        await self._listener.start(listened(node.host), self._port, shared=self._shares_port)
        log.info("RESP door open", extra={"host": node.host, "port": self.port})

    def _meet(self, unauthenticated: UnauthenticatedPeer | None) -> asyncio.BaseProtocol:
        if self._tls is None:
            return Connection(self.context, self._listener, unauthenticated)
        return self._tls.meet(lambda: Connection(self.context, self._listener, unauthenticated))

    async def attach(self, end: socket.socket, user: str | None, resp: int, address: str) -> None:
        """Take an end of a line, to a peer that another process of the node has let in."""
        end.setblocking(False)
        peer = RelayedPeer(user, resp, address)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(self.context, relayed=peer), end
        )

    @property
    def port(self) -> int:
        """Return the TCP port it listens on."""
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """
        Admit no new peer, hand out no new task, and close the connections.

        They close when everything under way is answered and nothing is held.

        Args:
            grace_s: seconds after which the connections are closed in any case; their leases end
                then.
        """
        peers = self.context.peers
        peers.draining = True
        self._listener.close()
        for connection in list(peers.connections):
            connection.end_waits()
        await peers.until(
            self._clock, lambda: all(one.idle() for one in peers.connections), grace_s
        )
        for connection in list(peers.connections):
            connection.close()
        await sleep(self._clock, 0.0)  # one turn of the loop, for the transports to hang up
        for connection in list(peers.connections):
            connection.abort()
        if left := await peers.give_back(self._clock):
            log.warning(
                "the store is silent: the leases of %d sessions end when this node is found dead",
                left,
            )

    def stats(self) -> dict[str, Any]:
        """
        Return the counters of the RESP doors of all the node's processes.

        They are connections, waiting requests, requests by verb, errors by word, and refused
        logins.
        """
        return add_up(self.own_stats(), *self._others())

    def own_stats(self) -> dict[str, Any]:
        """Return the stats of this process alone."""
        shared = self.context
        return {
            "connections": shared.peers.count(),
            "connections_total": shared.peers.connections_total,
            "refused_total": shared.peers.refused_total,
            "strangers_refused_total": shared.mismatches.total,
            "strangers": len(self.admission),
            "strangers_held_back_total": self.admission.held_total,
            "strangers_sent_away_total": self.admission.evicted_total,
            "waiting": shared.waiting,
            "logins_refused_total": self.users.failures_total,
            "denied_total": dict(self.users.denied_total),
            "requests_total": dict(shared.calls),
            "errors_total": dict(shared.errors),
            **shared.answered.stats(),
        }

    def reload(self, users: Sequence[User]) -> frozenset[str]:
        """
        Use these users, and the certificate that is in its files now.

        Connections of users who are gone, or have another secret, are cut off, and so is every
        connection that was let in without a name when that is over. Other rights count from the
        next request, and cut off a peer that waits under the old ones.

        Returns: the names of the users who are gone, or have another secret or other rights.
        """
        if self._tls is not None:
            renew(self._tls.context, self._config.node.tls_cert, self._config.node.tls_key)
        gone, changed = self.users.reload(users)
        self.context.limits.follow([user.name for user in users])
        for connection in list(self.context.peers.connections):
            name = connection.peer.user
            if name is None:
                if connection.peer.may is DEFAULT_USER and not self.users.open:
                    connection.dismiss()
            elif name in gone or (name in changed and connection.waits()):
                connection.dismiss()
            elif name in changed:
                connection.enter(name)
        known = {"users": len(users), "gone": sorted(gone), "changed": sorted(changed)}
        log.info("users read anew", extra=known)
        return gone | changed

    def info(self, wanted: Collection[str] = ()) -> str:
        """
        Return the answer to INFO: the ``wanted`` sections, by their names in lower case, or all.
        """
        status, stats = self._cluster.status(), self.stats()
        sections: dict[str, dict[str, object]] = {
            "Server": {
                "tidewarden_version": __version__,
                "process_id": os.getpid(),
                "tcp_port": self.port,
                "uptime_in_seconds": int(self._clock.monotonic() - self._started),
                "redis_mode": "standalone",
            },
            "Clients": {
                "connected_clients": stats["connections"],
                "blocked_clients": stats["waiting"],
                "maxclients": self.context.peers.connections_max,
            },
            "Stats": {
                "total_connections_received": stats["connections_total"],
                "total_commands_processed": sum(stats["requests_total"].values()),
                "rejected_connections": stats["refused_total"],
                "total_error_replies": sum(stats["errors_total"].values()),
            },
            # Every node takes every verb, so clients that look for a primary have found one.
            "Replication": {"role": "master", "connected_slaves": 0},
            "Cluster": {
                "cluster_role" if name == "role" else name: _plain(status.get(name))
                for name in STATUS
            },
        }
        every = not wanted or not EVERY_SECTION.isdisjoint(wanted)
        shown = {
            title: fields for title, fields in sections.items() if every or title.lower() in wanted
        }
        parts = (
            "\r\n".join([f"# {title}", *(f"{name}:{value}" for name, value in fields.items()), ""])
            for title, fields in shown.items()
        )
        return "\r\n".join(parts)

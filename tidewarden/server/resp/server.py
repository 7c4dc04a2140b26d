"""The RESP door: listens, keeps the connections, and reaches the rooms behind for their verbs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidewarden import __version__
from tidewarden.clock import Clock, sleep
from tidewarden.cluster import Backups
from tidewarden.config.addresses import listened
from tidewarden.config.load import Config, User, is_loopback
from tidewarden.config.tls import renew, server_context
from tidewarden.errors import Error
from tidewarden.queue import Queues, Session
from tidewarden.queue.locks import Locks
from tidewarden.scheduler.schedules import Schedules
from tidewarden.server.access.listening import Listener
from tidewarden.server.access.lobby import SHARE, Lobby, Stranger
from tidewarden.server.access.peer import GUEST
from tidewarden.server.access.protocol_mismatch import ProtocolMismatch
from tidewarden.server.access.tls_handshakes import TlsHandshakes
from tidewarden.server.access.users import DEFAULT_USER, Users
from tidewarden.server.stats_merge import add_up
from tidewarden.server.verbs.cluster import ClusterOperations, ClusterView
from tidewarden.server.verbs.table import COMMANDS
from tidewarden.tokens import Tokens

from .backpressure import TURNED_AWAY_MAX
from .connection import Connection

if TYPE_CHECKING:
    from tidewarden.server.relay import HandOver
    from tidewarden.server.verbs.command import Command

log = logging.getLogger("tidewarden.server")

BACKLOG = (
    # the kernel has a bound of its own (net.core.somaxconn), past which a burst waits a second for
    # its second try
    4096
)
# at a stop, for the leases of those who were there; a store that is silent must not keep the
# process
GIVE_BACK_S = 3.0
STATUS = ("node", "role", "leader", "epoch", "view", "primary", "quorum")


def _plain(value: object) -> object:
    """As INFO writes it: readers of it know 0 and 1."""
    return int(value) if isinstance(value, bool) else value


class RespServer:
    """
    The RESP door of one node.

    Args:
        config: listens on ``node.host`` at ``node.resp_port``; ``limits`` and ``users`` count here.
        queues, tokens, schedules, cluster, locks, steering: the rooms that answer; those that are
        absent have their verbs refused.
        clock: for ages in CLIENT LIST, the delay after a wrong secret, the grace of :meth:`stop`.
        users: shared with the HTTP door; made from the configuration when absent.
        commands: its verbs.
        port: where it listens instead, together with the node's other processes (SO_REUSEPORT).
        hand_over: in a further process, gives the first one an end of a line (:mod:`.relay`).
        lobby: where strangers are, shared with the HTTP door; made when absent.

    ``others`` gives the stats of the node's other processes, which are added to this one's.
    ``connections_max``: as many as the limits say, unless the process has fewer files.
    """

    def __init__(
        self,
        config: Config,
        queues: Queues,
        tokens: Tokens | None,
        schedules: Schedules | None,
        cluster: ClusterView,
        clock: Clock,
        users: Users | None = None,
        locks: Locks | None = None,
        steering: ClusterOperations | None = None,
        *,
        commands: dict[bytes, Command] = COMMANDS,
        port: int = 0,
        hand_over: HandOver | None = None,
        lobby: Lobby | None = None,
    ) -> None:
        self.config = config
        self.queues = queues
        self.tokens = tokens
        self.schedules = schedules
        self.locks = locks
        self.steering = steering
        self.backups: Backups | None = None
        self.cluster = cluster
        self.clock = clock
        self.users = users or Users(config.users, clock, loopback=is_loopback(config.node.host))
        self.commands = commands
        self.names = tuple(command.name for command in commands.values())
        self.hand_over = hand_over
        self._shares_port = port > 0 or config.node.processes > 1
        self._port = port or config.node.resp_port
        self.relayed: set[Connection] = set()  # those that came in at another process
        self.others: Callable[[], Iterable[Mapping[str, Any]]] = tuple
        self.request_bytes = config.limits.request_bytes
        self.line_bytes = config.limits.line_bytes
        self.batch_max = config.limits.batch_max
        self.arguments_max = 2 * config.limits.batch_max + 16
        self.connections_max = config.limits.connections_max
        self.waiting_max = config.limits.waiting_max
        self.waiting = 0  # requests that wait now
        self.draining = False
        self.turned_away = 0  # peers for whom there is no room, and who have yet to hang up
        self.connections: set[Connection] = set()
        self.connections_total = 0
        self.refused_total = 0
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.errors: Counter[str] = Counter()
        self._settled = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()
        self._started = 0.0
        self._tls: TlsHandshakes | None = None
        self.strangers = ProtocolMismatch("RESP", clock)
        self.lobby = Lobby(clock, share=SHARE / config.node.processes) if lobby is None else lobby
        self._listener = Listener(self.lobby, self._meet, BACKLOG, self.let_in)

    async def start(self) -> None:
        """Listen. Raises: OSError: the port is taken or may not be bound."""
        self.loop = asyncio.get_running_loop()
        self._started = self.clock.monotonic()
        node = self.config.node
        if context := server_context(node.tls_cert, node.tls_key):
            self._tls = TlsHandshakes(
                context,
                lambda: self.connections_max + TURNED_AWAY_MAX - len(self.connections),
                self.strangers,
            )
        await self._listener.start(listened(node.host), self._port, shared=self._shares_port)
        log.info("RESP door open", extra={"host": node.host, "port": self.port})

    def _meet(self, stranger: Stranger | None) -> asyncio.BaseProtocol:
        if self._tls is None:
            return Connection(self, stranger)
        return self._tls.meet(lambda: Connection(self, stranger))

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return self._listener.port

    async def stop(self, grace_s: float = 5.0) -> None:
        """
        Take nobody in and hand out nothing new; close when everything under way is answered and
        nothing is held.

        Args:
            grace_s: seconds after which the connections are closed in any case; their leases end
                then.
        """
        self.draining = True
        self._listener.close()
        for connection in list(self.connections):
            connection.end_waits()
        await self._until(
            lambda: all(connection.idle() for connection in self.connections), grace_s
        )
        for connection in list(self.connections):
            connection.close()
        await sleep(self.clock, 0.0)  # one turn of the loop, for the transports to hang up
        for connection in list(self.connections):
            connection.abort()
        await self._until(lambda: not (self._closing or self.connections), GIVE_BACK_S)
        if self._closing:
            log.warning(
                "the store is silent: the leases of %d sessions end when this node is found dead",
                len(self._closing),
            )
            for task in self._closing:
                task.cancel()

    async def _until(self, settled: Callable[[], bool], limit_s: float) -> None:
        """Wait until that is so, ``limit_s`` seconds at most."""
        limit = asyncio.ensure_future(sleep(self.clock, limit_s))
        while not limit.done() and not settled():
            self._settled.clear()
            change = asyncio.ensure_future(self._settled.wait())
            await asyncio.wait((limit, change), return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
        limit.cancel()

    def stats(self) -> dict[str, Any]:
        """
        Connections, waiting requests, requests by verb, errors by word, refused logins; of all the
        node's processes.
        """
        return add_up(self.own_stats(), *self.others())

    def own_stats(self) -> dict[str, Any]:
        """Likewise, of this process."""
        return {
            "connections": len(self.connections) - len(self.relayed),
            "connections_total": self.connections_total,
            "refused_total": self.refused_total,
            "strangers_refused_total": self.strangers.total,
            "strangers": len(self.lobby),
            "strangers_held_back_total": self.lobby.held_total,
            "strangers_sent_away_total": self.lobby.sent_away_total,
            "waiting": self.waiting,
            "logins_refused_total": self.users.failures_total,
            "denied_total": dict(self.users.denied_total),
            "requests_total": dict(self.calls),
            "errors_total": dict(self.errors),
        }

    # What connections and verbs call.

    def admit(self, connection: Connection) -> int:
        """
        A new peer's number, or 0: there are too many, and no stranger among them whose time is
        over.
        """
        full = len(self.connections) - len(self.relayed) >= self.connections_max
        if self.draining or (full and self.lobby.send_away(self._listener) > 0):
            self.refused_total += 1
            return 0
        self.connections.add(connection)
        self.connections_total += 1
        return self.connections_total

    def forget(self, connection: Connection) -> None:
        """A peer has gone: what it held is free again at once."""
        self.connections.discard(connection)
        session, connection.session = connection.session, None
        if session is not None:
            task = asyncio.ensure_future(self._end(session), loop=self.loop)
            self._closing.add(task)
            task.add_done_callback(self._ended)
        self._settled.set()

    def reload(self, users: Sequence[User]) -> frozenset[str]:
        """
        Go on with these users, and with the certificate that is in its files now.

        Whoever is gone, or has another secret, is cut off, and everybody who was let in without a
        name when that is over; other rights count from the next request, and cut off who waits
        under the old ones.

        Returns: the names of those who are gone, or have another secret or other rights.
        """
        if self._tls is not None:
            renew(self._tls.context, self.config.node.tls_cert, self.config.node.tls_key)
        gone, changed = self.users.reload(users)
        for connection in list(self.connections):
            name = connection.peer.user
            if name is None:
                if connection.peer.may is GUEST and not self.users.open:
                    connection.dismiss()
            elif name in gone or (name in changed and connection.waits()):
                connection.dismiss()
            elif name in changed:
                connection.enter(name)
        known = {"users": len(users), "gone": sorted(gone), "changed": sorted(changed)}
        log.info("users read anew", extra=known)
        return gone | changed

    def settled(self) -> None:
        """A connection has nothing under way any more."""
        self._settled.set()

    def let_in(self) -> bool:
        """Whether a peer that named no user may use what needs none."""
        return self.users.open

    def session_of(self, connection: Connection) -> Session:
        """The session of a connection, opened at the first need."""
        session = connection.session
        if session is None:
            session = connection.session = self.queues.open_session(
                connection.peer.user or DEFAULT_USER
            )
        return session

    def count_error(self, code: str) -> None:
        """An error was answered."""
        self.errors[code] += 1

    def info(self) -> str:
        """What INFO answers."""
        status, stats = self.cluster.status(), self.stats()
        lines = [
            "# Server",
            f"tidewarden_version:{__version__}",
            f"process_id:{os.getpid()}",
            f"tcp_port:{self.port}",
            f"uptime_in_seconds:{int(self.clock.monotonic() - self._started)}",
            "redis_mode:standalone",
            "# Clients",
            f"connected_clients:{stats['connections']}",
            f"blocked_clients:{stats['waiting']}",
            f"maxclients:{self.connections_max}",
            "# Stats",
            f"total_connections_received:{stats['connections_total']}",
            f"total_commands_processed:{sum(stats['requests_total'].values())}",
            f"rejected_connections:{stats['refused_total']}",
            f"total_error_replies:{sum(stats['errors_total'].values())}",
            "# Cluster",
            *(f"{name}:{_plain(status.get(name))}" for name in STATUS),
        ]
        return "\r\n".join(lines) + "\r\n"

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
        self._closing.discard(task)
        self._settled.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("defect in close_session", exc_info=task.exception())

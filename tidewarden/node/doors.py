"""Opens the doors of one node: its RESP and HTTP servers, and its further processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence

from tidewarden.clock import Clock
from tidewarden.cluster import Backups
from tidewarden.config.load import Config, User, is_loopback
from tidewarden.raft import RaftMember
from tidewarden.scheduler.schedules import Schedules
from tidewarden.server.access.users import Users
from tidewarden.server.audit.audit_log import RELOAD, AuditLog
from tidewarden.server.beanstalkd.server import BeanstalkdServer
from tidewarden.server.console.ended_logins import EndedLogins
from tidewarden.server.console.recorder import FigureRecorder
from tidewarden.server.consumers.cluster_consumers import PATH as CONSUMERS_PATH
from tidewarden.server.consumers.cluster_consumers import ClusterConsumers
from tidewarden.server.http.server import HttpServer, Inner
from tidewarden.server.resp.server import RespServer
from tidewarden.server.services import Services, StoreOperations
from tidewarden.server.traffic.cluster_traffic import PATH as TRAFFIC_PATH
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic
from tidewarden.store.embedded.detour import PATH as DETOUR_PATH
from tidewarden.store.embedded.detour import Carrier
from tidewarden.tokens import PEERS_PATH, Tokens

from .os_process import ConnectionBudget
from .secondaries import Secondaries
from .status import Status

log = logging.getLogger("tidewarden.daemon")

DRAIN_S = 5.0
HTTP_GRACE_S = 1.0


class Doors:
    """
    Holds the servers that others reach this node by, with the users that they share.

    ``operations`` changes the cluster's members; None on a worker, which is none. ``budget`` bounds
    the connections by the files that this process may open. ``login_key`` is that of the console's
    logins, ``ended_logins`` tells which of them were ended. ``carrier`` carries other nodes'
    connections to stores.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        budget: ConnectionBudget,
        status: Status,
        secondaries: Secondaries,
        tokens: Tokens,
        schedules: Schedules,
        operations: RaftMember | None,
        backups: Backups,
        stores: StoreOperations | None = None,
        audit: AuditLog | None = None,
        *,
        traffic: ClusterTraffic,
        consumers: ClusterConsumers,
        login_key: bytes,
        ended_logins: EndedLogins,
        carrier: Carrier | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self.status = status
        self.traffic = traffic
        self._consumers = consumers
        self._audit = audit
        self._carrier = carrier
        self._secondaries = secondaries
        queues = status.queues
        users = Users(config.users, clock, loopback=is_loopback(config.node.host))
        if audit is not None:
            users.on_denied = audit.denied
        services = Services(
            queues,
            status,
            tokens,
            schedules,
            queues.locks,
            operations,
            backups,
            stores,
            traffic=traffic.own.recorder,
            traffic_of_cluster=traffic,
            consumers=consumers.own.own,
            consumers_of_cluster=consumers,
            audit=audit,
            limits=queues.user_limits,
        )
        self._resp = RespServer(
            config,
            services,
            clock,
            users,
            connections_max=budget.resp,
            others=lambda: secondaries.stats("resp"),
        )
        self.figures = FigureRecorder(
            config.node.name, clock, status, self._resp.stats, queues, tokens
        )
        self._beanstalkd = (
            BeanstalkdServer(config, services, clock, users, self._resp.admission)
            if config.beanstalkd.enabled
            else None
        )
        self._http = HttpServer(
            config,
            dataclasses.replace(services, figures=self.figures),
            clock,
            users,
            alive=status.dead,
            ready=status.complaint,
            warning=status.warning,
            stats={
                "node": status.stats,
                "resp": self._resp.stats,
                **({"audit": audit.stats} if audit is not None else {}),
                **({"beanstalkd": self._beanstalkd.stats} if self._beanstalkd is not None else {}),
            },
            internal=self._internal(tokens),
            lines={} if carrier is None else {DETOUR_PATH: carrier.serve},
            admission=self._resp.admission,
            connections_max=budget.http,
            login_key=login_key,
            ended_logins=ended_logins,
        )
        status.look_at_certificate()

    def _internal(self, tokens: Tokens) -> Mapping[str, Inner]:
        """Return who answers what other nodes ask, by path."""
        return {
            PEERS_PATH: tokens.answer_peer,
            TRAFFIC_PATH: self.traffic.answer_peer,
            CONSUMERS_PATH: self._consumers.answer_peer,
        }

    async def open(
        self, stack: contextlib.AsyncExitStack, url: str, refreshing: set[asyncio.Task[None]]
    ) -> None:
        """
        Listen until ``stack`` is left.

        ``refreshing`` end before the HTTP port closes, at which other nodes may ask for their
        outcome.

        Raises: OSError: a port is taken. ConfigError: not all processes serve.
        """
        if self._config.otel.endpoint:
            await self._start_telemetry(stack)
        stack.push_async_callback(self.traffic.close)
        stack.push_async_callback(self._consumers.close)
        await self._http.start()
        stack.push_async_callback(self._http.stop, HTTP_GRACE_S)
        if self._carrier is not None:
            stack.push_async_callback(self._carrier.close)
        await self._resp.start()
        stack.push_async_callback(self.close, refreshing)
        if self._beanstalkd is not None:
            await self._beanstalkd.start()
        await self._secondaries.start(url, self.status.store.server, self._resp)
        self.status.ready = True

    async def _start_telemetry(self, stack: contextlib.AsyncExitStack) -> None:
        from tidewarden.telemetry.telemetry import telemetry  # an extra: not everybody has it

        text = self._http.metrics_text
        await stack.enter_async_context(telemetry(self._config, self._clock, text))

    async def close(self, refreshing: set[asyncio.Task[None]]) -> None:
        """Answer waiting requests at once, and wait for the refreshes that are under way."""
        closing = asyncio.gather(
            self._secondaries.stop(DRAIN_S + 1),
            *(door.stop(DRAIN_S) for door in (self._resp, self._beanstalkd) if door is not None),
        )
        if refreshing:
            await asyncio.wait(refreshing)
        await closing

    def fault_of(self, users: Sequence[User]) -> str:
        """Say why these users cannot take over; empty: they can."""
        if users or self._resp.users.open:
            return ""
        return "there are no users any more, which only a restart lets everybody in for"

    def note(self, *words: str) -> None:
        """Note in the audit log that the node's files were changed."""
        if self._audit is not None:
            self._audit.change("", "", RELOAD, words)

    def reload(self, users: Sequence[User]) -> None:
        """Use these users, in every process, and what the certificate's files hold."""
        before = self._resp.users.names()
        changed = self._resp.reload(users)
        self._http.reload(changed)
        if self._beanstalkd is not None:
            self._beanstalkd.reload(changed)
        self._note_users(before, users)
        self.status.look_at_certificate()
        self._secondaries.reload(users)

    def _note_users(self, before: Mapping[str, tuple[str, ...]], users: Sequence[User]) -> None:
        """Note in the audit log who came, went, or has other rights."""
        now = {user.name: user.rights for user in users}
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                rights = now.get(name)
                self.note("users", name, *(["gone"] if rights is None else rights))

    def shown(self) -> str:
        """Return the ports, for people."""
        shown = f"RESP {self._resp.port}, HTTP {self._http.port}"
        if self._beanstalkd is not None:
            shown += f", beanstalkd {self._beanstalkd.port}"
        return shown

"""
Builds the rooms of one node, runs what runs for ever, and takes all down in order.

The only file that knows all rooms.

A duty that fails is begun anew (:mod:`tidewarden.duties`). One that fails again and again ends the
process with its error: a supervisor (``up``, systemd) starts it again, and nothing that was
acknowledged is in this process's memory alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.cluster import Backups, Heartbeat, Registration
from tidewarden.config.cluster_secret import cluster_secret, exposed
from tidewarden.config.load import Config, is_loopback
from tidewarden.duties import Duties
from tidewarden.errors import BadArg, ConfigError, Error, StoreDown
from tidewarden.queue import Queues
from tidewarden.raft.folder import mark
from tidewarden.raft.state import base_addresses
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.sweep import Sweep
from tidewarden.server.audit.audit_log import AuditLog, audit_log
from tidewarden.server.console.ended_logins import EndedLogins
from tidewarden.server.console.login_cookie import login_key
from tidewarden.server.console.timeline import Timeline
from tidewarden.server.consumers.cluster_consumers import ClusterConsumers
from tidewarden.server.consumers.cluster_consumers import mac_of as consumers_mac
from tidewarden.server.consumers.node_consumers import NodeConsumers
from tidewarden.server.consumers.process_consumers import ProcessConsumers
from tidewarden.server.traffic.cluster_traffic import ClusterTraffic
from tidewarden.server.traffic.cluster_traffic import mac_of as traffic_mac
from tidewarden.server.traffic.node_traffic import NodeTraffic
from tidewarden.server.traffic.recorder import Recorder
from tidewarden.store.client import StoreClient
from tidewarden.store.full_store_writes import small_writes
from tidewarden.store.preflight import warn_of_settings
from tidewarden.store.snapshot import snapshot
from tidewarden.tokens import Tokens, open_tokens

from .advertised_address import told_address
from .connected_store import ConnectedStore, open_connected_store
from .doors import DRAIN_S, Doors
from .leader_parts import LeaderParts, build_leader
from .os_process import ConnectionBudget, calm_collector, tell_supervisor, tell_watchdog
from .process_parts import ProcessParts, links_to, open_queues
from .product_scripts import product_scripts
from .secondaries import Secondaries
from .status import Status
from .store_access import StoreAccess, store_access
from .store_events import StoreEvents
from .store_links import check_store_url
from .subscriber import heard_error

log = logging.getLogger("tidewarden.daemon")

HAND_OVER_S = 1.0
AGAIN_S = 0.2
"""Before a node begins anew whose store went away while it started."""
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


OF_TOKENS = ("providers", "webhooks", "companions")
TAKEN_OVER = ("users", *OF_TOKENS)
"""Sections of the configuration that SIGHUP has read anew."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Holds the rooms of a node that is built, and has not opened its doors yet."""

    access: StoreAccess
    store: ConnectedStore
    parts: ProcessParts
    leader: LeaderParts
    schedules: Schedules
    accounts: StoreClient
    """Writes what is of accounts."""


class Daemon:
    """Builds one node of a cluster, serves until ``stopping`` is set, and takes it down."""

    def __init__(self, config: Config, clock: Clock, budget: ConnectionBudget) -> None:
        self.config = config
        self.clock = clock
        self.stopping = asyncio.Event()
        self._duties = Duties(clock)
        self._budget = budget
        self._name = config.cluster.name
        self._secret = cluster_secret(config)
        self._scripts = product_scripts()
        self._doors: Doors | None = None
        """None while the node starts, which may be told to reload already."""
        self._tokens: Tokens | None = None
        self._served = config
        """What the tokens, and the doors, go by."""
        self._turn = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()

    @property
    def _is_worker(self) -> bool:
        return self.config.node.role == "worker"

    async def run(self) -> None:
        """
        Serve until :attr:`stopping` is set.

        Raises: ConfigError: something about the configuration, the ports, the folder or the store
        stops the start.
        """
        check_store_url(self.config.store.url)
        async with contextlib.AsyncExitStack() as stack:
            access = await stack.enter_async_context(
                store_access(
                    self.config,
                    self._secret,
                    self.clock,
                    self.stopping,
                    self._duties,
                    self._scripts.library,
                )
            )
            if self.stopping.is_set():  # told to while it waited for a primary
                return
            try:
                await self._serve_by(access)
            except OSError as error:
                of_disk = error.filename is not None or error.errno in DISK_FAULTS
                raise ConfigError(
                    [f"node.{'data_dir' if of_disk else 'base_port'}: {error}"]
                ) from None

    async def _serve_by(self, access: StoreAccess) -> None:
        """
        Build the rooms and serve.

        With replicated stores it tries again if the primary is lost during the start.
        """
        while True:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    rooms = await self._build(stack, access)
                    beating = await self._join(stack, rooms)
                    tokens = await self._open_tokens(rooms)
                except StoreDown as error:
                    if not self.config.replicated:
                        raise
                    log.warning("the store went away while this node started: %s", error)
                else:
                    await self._serve(stack, rooms, beating, tokens)
                    return
            if self.stopping.is_set():
                return
            await sleep(self.clock, AGAIN_S)

    def reload(self, read: Callable[[], Config]) -> None:
        """
        Take over what :data:`TAKEN_OVER` names as the file has it now, as a whole or not at all.

        A faulty file changes nothing; every other change needs a restart, which the log says.
        """
        try:
            fresh = read()
        except ConfigError as error:
            log.error("the configuration was not read anew: %s", "; ".join(error.problems))
            return
        if self._doors is not None and (fault := self._doors.fault_of(fresh.users)):
            log.error("the configuration was not read anew: %s", fault)
            return
        other = [
            item.name
            for item in dataclasses.fields(Config)
            if item.name not in TAKEN_OVER
            and getattr(fresh, item.name) != getattr(self.config, item.name)
        ]
        if other:
            log.warning(
                "only %s are read anew; what changed of %s needs a restart",
                ", ".join(TAKEN_OVER),
                ", ".join(other),
            )
        parts = {name: getattr(fresh, name) for name in TAKEN_OVER}
        if self._doors is None:
            self.config = dataclasses.replace(self.config, **parts)
        elif self._reloads or any(getattr(self._served, name) != parts[name] for name in OF_TOKENS):
            self._prepare(parts)
        else:
            self._take_over(parts)

    def _prepare(self, parts: Mapping[str, Any]) -> None:
        """Take over ``parts`` once the store has what their providers need."""
        task = asyncio.create_task(self._take_over_when_ready(parts), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)
        task.add_done_callback(heard_error)

    async def _take_over_when_ready(self, parts: Mapping[str, Any]) -> None:
        async with self._turn:
            assert self._tokens is not None
            try:
                await self._tokens.prepare(parts["providers"])
            except Error as error:
                log.error(
                    "the configuration was not taken over, nothing has changed: its providers'"
                    " queues cannot be made: %s %s",
                    error.code,
                    error,
                )
            else:
                self._take_over(parts)

    def _take_over(self, parts: Mapping[str, Any]) -> None:
        """Take over ``parts`` in one turn of the loop."""
        assert self._doors is not None
        assert self._tokens is not None
        before, self.config = self._served, dataclasses.replace(self.config, **parts)
        self._served = self.config
        changed = {name: _differences(before, self.config, name) for name in OF_TOKENS}
        if any(changed.values()):
            self._tokens.change(self.config)
            for kind, words in changed.items():
                for name, what in words.items():
                    log.info("%s %s: %s by SIGHUP", kind, name, what)
                    self._doors.note(kind, name, what)
        self._doors.reload(self.config.users)

    # --- building

    async def _build(self, stack: contextlib.AsyncExitStack, access: StoreAccess) -> Rooms:
        config, clock = self.config, self.clock
        links = links_to(access.url, config, config.node.name, clock, self._scripts, access.finder)
        data, control, sweeping, accounts = [
            await stack.enter_async_context(links.open(purpose))
            for purpose in ("data", "control", "sweep", "accounts")
        ]
        store = await open_connected_store(control, self._name, clock, replicated=links.replicated)
        if not store.server.views:
            await warn_of_settings(control)
        near = links.near(access.near_url)
        queues = await open_queues(stack, config, clock, links, data, control, store.server, near)
        schedules = Schedules(queues, config.limits.payload_bytes, config.limits.schedules_max)
        sweep_shard = functools.partial(queues.scripts.run_on, sweeping, "queue.sweep")
        sweep = Sweep(queues, clock, schedules.fire_due, sweep_shard)
        queues.catalog.on_next = sweep.expect
        parts = ProcessParts(
            config,
            clock,
            links,
            data,
            control,
            queues,
            look_again=functools.partial(_look_again, queues, sweep),
            compare=lambda: store.check(queues.catalog.durability),
        )
        await stack.enter_async_context(parts.subscriber.listening())
        parts.nodes.address = await told_address(config, control.at)
        leader = build_leader(config, clock, parts, sweep, access.member, access.signal)
        return Rooms(access, store, parts, leader, schedules, accounts)

    async def _join(self, stack: contextlib.AsyncExitStack, rooms: Rooms) -> asyncio.Task[None]:
        """Take part in Raft, register, and begin to say that this node lives."""
        raft, nodes = rooms.leader.raft, rooms.parts.nodes
        if rooms.access.replication is None:  # else Raft said where the store is
            await raft.start()
            stack.push_async_callback(raft.stop)
        # Not before this process has the folder and the port: to register is to end what a
        # namesake holds.
        nodes.folder = mark(Path(self.config.node.data_dir))
        await nodes.register_first()
        # It lives until its doors are closed: one that falls silent while it drains is taken for
        # dead.
        beating = self._duties.begin("nodes", nodes.run)
        stack.push_async_callback(_end, beating)
        if self._is_worker:  # a member has Raft's thread
            heartbeat = Heartbeat(nodes, rooms.parts.links.heartbeat, self.clock)
            stack.push_async_callback(_end, self._duties.begin("heartbeat", heartbeat.run))
        return beating

    async def _open_tokens(self, rooms: Rooms) -> Tokens:
        parts, accounts, raft = rooms.parts, rooms.accounts, rooms.leader.raft
        nodes = parts.nodes
        self._served = self.config
        told = dataclasses.replace(
            self.config, node=dataclasses.replace(self.config.node, advertise=nodes.address)
        )
        return await open_tokens(
            told,
            parts.queues,
            self.clock,
            small_writes(parts.control.call),
            script=functools.partial(parts.queues.scripts.items_on, accounts),
            connected=lambda: accounts.up and parts.queues.catalog.durability.confirms,
            shown=functools.partial(parts.queues.scripts.shown_on, accounts),
            cluster_secret=self._secret,
            nodes=lambda: nodes.living(),
            members=lambda: {**nodes.addresses, **base_addresses(raft.seats())},
        )

    # --- serving and stopping

    async def _serve(
        self,
        stack: contextlib.AsyncExitStack,
        rooms: Rooms,
        beating: asyncio.Task[None],
        tokens: Tokens,
    ) -> None:
        stack.push_async_callback(tokens.stop)
        audit = audit_log(self.config, rooms.parts.control.call, self.clock)
        if audit is not None:
            await stack.enter_async_context(audit.running())
        # from here to the first door nothing waits: no reload is missed
        self._doors = doors = self._build_doors(rooms, tokens, audit)
        self._tokens = tokens
        if any(getattr(self._served, name) != getattr(self.config, name) for name in OF_TOKENS):
            self._prepare({name: getattr(self.config, name) for name in TAKEN_OVER})
        self._warn_of_doors()
        refreshing: set[asyncio.Task[None]] = set()
        await doors.open(stack, rooms.access.url, refreshing)
        calm_collector()
        tell_supervisor("READY=1")
        log.info("READY %s: %s", self.config.node.name, doors.shown())
        await self._until_stopped(rooms, tokens, doors, beating, refreshing)
        log.info("going down")
        for reload in self._reloads:
            reload.cancel()

    def _build_doors(self, rooms: Rooms, tokens: Tokens, audit: AuditLog | None) -> Doors:
        config, clock, replication = self.config, self.clock, rooms.access.replication
        register = functools.partial(self._register, rooms)
        own = NodeTraffic(Recorder(clock), clock)
        secondaries = Secondaries(config, clock, register, rooms.access.near_url, traffic=own)
        if replication is not None:
            finder = replication.finder
            secondaries.tell_fault(finder.fault, finder.alone)
            finder.on_fault = secondaries.tell_fault
        status = Status(
            config,
            clock,
            leader=rooms.leader,
            parts=rooms.parts,
            store=rooms.store,
            processes=secondaries,
            stores=None if replication is None else replication.seen,
            duties=self._duties,
            tokens=tokens,
        )
        traffic = ClusterTraffic(
            config.node.name,
            own,
            traffic_mac(self._secret),
            status.addresses,
            tls=bool(config.node.tls_cert),
        )
        consumers = ClusterConsumers(
            config.node.name,
            NodeConsumers(
                ProcessConsumers(
                    config.node.name, rooms.parts.queues, clock, processes=config.node.processes
                ),
                secondaries.ask,
            ),
            rooms.parts.queues,
            consumers_mac(self._secret),
            status.addresses,
            tls=bool(config.node.tls_cert),
        )
        copy = _copy_of(config, rooms)
        backups = Backups(Path(config.node.data_dir) / "backups", clock, copy, status.backed_up)
        backups.clear()  # what a former run left
        return Doors(
            config,
            clock,
            self._budget,
            status,
            secondaries,
            tokens,
            rooms.schedules,
            rooms.leader.member,
            backups,
            replication,
            audit,
            login_key=login_key(self._secret),
            ended_logins=EndedLogins(clock, rooms.parts.control.call, config.cluster.name),
            traffic=traffic,
            consumers=consumers,
            carrier=None if replication is None else replication.carrier,
        )

    def _warn_of_doors(self) -> None:
        node = self.config.node
        if not (is_loopback(node.host) or node.tls_cert):
            log.warning(
                "RESP and HTTP are not encrypted: secrets and payloads can be read on their way"
                " to %s",
                node.host,
            )
        for fault in exposed(self.config):
            log.warning("%s", fault)

    async def _register(self, rooms: Rooms, name: str) -> None:
        """Register a further process's name anew, so that what it held is free."""
        await Registration(
            self._name,
            name,
            rooms.parts.control,
            rooms.parts.links.scripts,
            self.clock,
            lambda _: None,
        ).register()

    async def _until_stopped(
        self,
        rooms: Rooms,
        tokens: Tokens,
        doors: Doors,
        beating: asyncio.Task[None],
        refreshing: set[asyncio.Task[None]],
    ) -> None:
        """Run what runs for ever; return when told to stop, raise what any of it raises."""
        duties, status = self._duties, doors.status
        refresh = asyncio.create_task(tokens.run(duties), name="tokens")
        refreshing.add(refresh)
        jobs: list[asyncio.Task[None]] = [
            refresh,
            *rooms.parts.start_watches(duties),
            duties.begin("leadership", rooms.leader.leadership.run),
            duties.begin("membership", rooms.leader.raft.watch),
            duties.begin("traffic", doors.traffic.own.run),
            duties.begin("watchdog", lambda: tell_watchdog(self.clock, status.dead)),
            duties.begin("figures of the console", doors.figures.run),
            *self._start_store_events(rooms.access, tokens, doors.figures.timeline),
        ]
        everything: set[asyncio.Future[Any]] = {*jobs, asyncio.ensure_future(self.stopping.wait())}
        try:
            await asyncio.wait({*everything, beating}, return_when=asyncio.FIRST_COMPLETED)
            for job in (*jobs, beating):
                if job.done():
                    job.result()
            tell_supervisor("STOPPING=1")
            await self._hand_over(rooms)
        finally:
            rooms.parts.queues.drain.started = doors.status.stopping = True
            for future in everything:
                future.cancel()
            await asyncio.gather(*everything - refreshing, return_exceptions=True)

    def _start_store_events(
        self, access: StoreAccess, tokens: Tokens, timeline: Timeline
    ) -> list[asyncio.Task[None]]:
        """Begin to tell readers of events what changes among replicated stores."""
        replication, name = access.replication, self.config.node.name
        if replication is None:
            return []
        facts = replication.facts
        events = StoreEvents(
            tokens.events.tell_of_cluster, lambda: facts().primary == name, self.clock
        )

        async def note() -> None:
            while True:
                change = await access.changes.get()
                events.note(change)
                timeline.note(change.kind, change.text)

        return [
            self._duties.begin("changes of the stores", note),
            self._duties.begin("events of the stores", events.run),
        ]

    async def _hand_over(self, rooms: Rooms) -> None:
        """
        Let another store be primary, and another member lead, before anything is drained.

        No node would sweep, or take writes, for as long as that takes.
        """
        if rooms.access.replication is not None:
            await rooms.access.replication.hand_over()
        raft = rooms.leader.raft
        if not raft.is_leader():
            return
        try:
            async with asyncio.timeout(min(DRAIN_S, HAND_OVER_S * max(1.0, self.config.raft.pace))):
                await raft.transfer(None)
        except (Error, TimeoutError) as error:
            log.debug("nobody was there to hand leadership to: %s", error)


def _differences(before: Config, now: Config, kind: str) -> dict[str, str]:
    """Say of each provider, webhook or companion that is another now what became of it."""
    old, new = getattr(before, kind), getattr(now, kind)
    found: dict[str, str] = {}
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            found[name] = "changed" if name in old and name in new else ""
            found[name] = found[name] or ("removed" if name in old else "added")
    return found


def _look_again(queues: Queues, sweep: Sweep) -> None:
    """Look at all queues, for wake-ups may have been missed, or the store's clock has stepped."""
    queues.wakeups.wake_all()
    if sweep.running:
        asyncio.ensure_future(sweep.expect_all()).add_done_callback(heard_error)


def _copy_of(config: Config, rooms: Rooms) -> Callable[[], AsyncIterator[bytes]] | None:
    """Return what copies the store's data for a backup; None: the store is your own."""
    access = rooms.access
    if not rooms.store.server.views:
        return None
    if access.replication is not None:
        stores = access.replication
        return lambda: snapshot(stores.copy_url())
    if not config.replicated:
        return functools.partial(snapshot, access.url)

    def refuse() -> AsyncIterator[bytes]:
        raise BadArg("This node is a worker, which has no store: ask a member for a backup.")

    return refuse


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel the task, and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

"""
One node: builds every room, supervises what runs for ever, and takes it all down in order. The only
file that knows all rooms.

Whatever task fails here ends the process with its error: a supervisor (``up``, systemd) starts it
again, and nothing that was acknowledged is in this process's memory alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tidewarden.clock import Clock
from tidewarden.cluster import (
    Backups,
    Heartbeat,
    Leadership,
    LeaderTasks,
    Observer,
    Reaper,
    Registration,
)
from tidewarden.config.cluster_secret import cluster_secret, exposed
from tidewarden.config.load import Config, is_loopback
from tidewarden.errors import ConfigError, Error
from tidewarden.os_process import ConnectionBudget, calm_collector, tell_supervisor, tell_watchdog
from tidewarden.queue.locks import Locks
from tidewarden.raft import RaftMember
from tidewarden.raft.folder import mark
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.sweep import Sweep
from tidewarden.server.access.users import Users
from tidewarden.server.http.server import HttpServer
from tidewarden.server.resp.server import RespServer
from tidewarden.store.embedded.server import EmbeddedStore, store_password
from tidewarden.store.preflight import StoreServer, check_store, warn_of_settings
from tidewarden.store.removal_first import small_writes
from tidewarden.store.snapshot import snapshot
from tidewarden.tokens import PEERS_PATH, Tokens

from .advertised_address import told_address
from .process_parts import ProcessParts, check_store_url, heard_error
from .secondaries import Secondaries
from .status import Status

log = logging.getLogger("tidewarden.node.daemon")

DRAIN_S = 5.0
HAND_OVER_S = 1.0
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class Daemon(ProcessParts):
    """
    One node of a cluster. :meth:`run` builds it, serves until ``stopping`` is set, and takes it
    down.
    """

    def __init__(self, config: Config, clock: Clock, room: ConnectionBudget) -> None:
        super().__init__(config, clock, config.node.name)
        self._room = room
        self._secret = cluster_secret(config)
        self._server = StoreServer("?", "?", False, 0)
        self.resp: RespServer | None = None
        self._refreshing: asyncio.Task[None] | None = None

    # --- building

    async def run(self) -> None:
        """
        Serve until :attr:`stopping` is set.

        Raises: ConfigError: something about the configuration, the ports, the folder or the store
        stops the start.
        """
        check_store_url(self.config.store.url)
        async with contextlib.AsyncExitStack() as stack:
            self._url = url = await stack.enter_async_context(self._store())
            self.data, self.control, self.sweeping, self.accounts = [
                await stack.enter_async_context(self._link(url, name))
                for name in ("data", "control", "sweep", "accounts")
            ]
            self._server = await check_store(self.control, self._name)
            if not self._server.views:
                await warn_of_settings(self.control)
            await self._join(
                stack, url, self.data, self.control, views=self._server.views, server=self._server
            )
            self.nodes.address = await told_address(self.config, self.control.at)
            self._build_leader()
            try:
                await self.raft.start()
                stack.push_async_callback(self.raft.stop)
                # Not before this process has the folder and the port: to register is to end what a
                # namesake holds.
                self.nodes.folder = mark(Path(self.config.node.data_dir))
                await self.nodes.come()
                # It lives until its doors are closed: one that falls silent while it drains is
                # taken for dead.
                self._beating = asyncio.create_task(self.nodes.run(), name="nodes")
                stack.push_async_callback(_end, self._beating)
                if self._works_only:  # a member has Raft's thread
                    heartbeat = Heartbeat(
                        self.nodes, functools.partial(self._heart_link, url), self.clock
                    )
                    stack.push_async_callback(
                        _end, asyncio.create_task(heartbeat.run(), name="heartbeat")
                    )
                await self._serve(stack)
            except OSError as error:
                of_disk = error.filename is not None or error.errno in DISK_FAULTS
                raise ConfigError(
                    [f"node.{'data_dir' if of_disk else 'base_port'}: {error}"]
                ) from None

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[str]:
        """The store's URL; an embedded one is started, watched, and stopped last."""
        store = self.config.store
        if store.url != "embedded":
            yield store.url
            return
        folder = Path(self.config.node.data_dir) / "store"
        embedded = EmbeddedStore(
            folder, store, self._name, store_password(self._secret), self.clock
        )
        url = await embedded.start()
        watch = asyncio.create_task(embedded.run(), name="embedded store")
        watch.add_done_callback(self._ended)
        try:
            yield url
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await embedded.stop()

    def _build_leader(self) -> None:
        config, clock = self.config, self.clock
        self.schedules = Schedules(self.queues, config.limits.payload_bytes)
        sweep_shard = functools.partial(self.queues.script_on, self.sweeping, "queue.sweep")
        self.sweep = Sweep(self.queues, clock, self.schedules.fire_due, sweep_shard)
        self.queues.on_next = self.sweep.expect
        self.raft = self._voter_or_onlooker()
        self.reaper = Reaper(
            config.node.name, self.nodes, self.queues, clock, self.raft.peer_heard_s
        )
        self.duties = LeaderTasks(
            clock,
            (self.sweep.duty, self.sweep.run),
            (self.reaper.duty, lambda epoch, _: self.reaper.run(epoch)),
        )
        self.term = Leadership(
            self._name,
            self.raft,
            self.control,
            self._scripts,
            clock,
            lambda: self.nodes.holder,
            self.duties.run,
            lambda: self.nodes.beat_at,
        )
        told = dataclasses.replace(
            config, node=dataclasses.replace(config.node, advertise=self.nodes.address)
        )
        self.tokens = Tokens(
            told,
            self.queues,
            clock,
            small_writes(self.control.call),
            script=functools.partial(self.queues.items_on, self.accounts),
            connected=lambda: self.accounts.up,
            cluster_secret=self._secret,
            nodes=lambda: self.nodes.living(),
            members=lambda: {**self.nodes.addresses, **self.raft.base_addresses()},
        )

    def _voter_or_onlooker(self) -> RaftMember:
        args = (self.config, self._secret, self.clock, lambda: self.term.raft_changed())
        return Observer(*args, self.nodes, self.control) if self._works_only else RaftMember(*args)

    @property
    def _works_only(self) -> bool:
        return self.config.node.role == "worker"

    # --- what the rooms call

    def _missed(self) -> None:
        super()._missed()
        self._sweep_all()
        if hasattr(self, "health") and self._server.views:
            self.control.call("GET", f"{{{self._name}}}:view").add_done_callback(self._heard_view)

    def _sweep_all(self) -> None:
        if hasattr(self, "sweep") and self.sweep.running:
            asyncio.ensure_future(self.sweep.expect_all()).add_done_callback(heard_error)

    def _stepped(self) -> None:
        super()._stepped()
        self._sweep_all()

    async def _taken_over(self) -> bool:
        await super()._taken_over()
        if not hasattr(self, "health"):  # this one was asked at the start
            return True
        try:
            self.health.server = self._server = await check_store(self.control, self._name)
            self.health.fault = ""
            self.health.found_empty(self._server.empty)
        except ConfigError as error:
            if self.health.fault != str(error):
                self.health.fault = str(error)
                log.critical("the store that is connected now should not be one: %s", error)
        return self.commits.told(self._server) and not self.health.fault

    def _heard_view(self, done: asyncio.Future[Any]) -> None:
        """The store may have been started anew: then it has a new view."""
        if not done.cancelled() and done.exception() is None:
            self.health.view = int(done.result() or 0)

    def reload(self, read: Callable[[], Config]) -> None:
        """
        Read the users anew; what else has changed waits for a restart, and a faulty file changes
        nothing.
        """
        try:
            fresh = read()
        except ConfigError as error:
            log.error("the configuration was not read anew: %s", "; ".join(error.problems))
            return
        other = [
            item.name
            for item in dataclasses.fields(Config)
            if item.name != "users" and getattr(fresh, item.name) != getattr(self.config, item.name)
        ]
        if other:
            log.warning(
                "only users are read anew; what changed of %s needs a restart", ", ".join(other)
            )
        if self.resp is None:  # still starting
            self.config = dataclasses.replace(self.config, users=fresh.users)
            return
        if not fresh.users and not self.resp.let_in():
            log.error(
                "the users were not read anew: there are none any more, which only a restart lets"
                " everybody in for"
            )
            return
        self.http.reload(self.resp.reload(fresh.users))
        self.health.look_at_certificate()
        self.fronts.reload(fresh.users)

    # --- serving and stopping

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        await self.tokens.start()
        stack.push_async_callback(self.tokens.stop)
        view = (
            int(await self.control.call("GET", f"{{{self._name}}}:view") or 0)
            if self._server.views
            else 0
        )
        # from here to the first door nothing waits: no reload is missed
        config, clock = self.config, self.clock
        users = Users(config.users, clock, loopback=is_loopback(config.node.host))
        self.health = health = Status(
            config,
            clock,
            self.raft,
            self.nodes,
            self.term,
            self.sweep,
            self.reaper,
            self.duties,
            self.queues,
            self.data,
            self._server,
            view,
            self.store_clock,
        )
        locks = Locks(
            self.queues, wait_max_ms=config.limits.wait_ms, waiting_max=config.limits.waiting_max
        )
        steering = None if self._works_only else self.raft
        self.resp = resp = RespServer(
            config, self.queues, self.tokens, self.schedules, health, clock, users, locks, steering
        )
        resp.connections_max = self._room.resp
        resp.backups = self._backups()
        self.fronts = fronts = Secondaries(config, clock, resp, self._register)
        resp.others = lambda: fronts.stats("resp")
        health.processes = fronts
        self.http = http = HttpServer(
            config,
            self.queues,
            self.tokens,
            self.schedules,
            health,
            clock,
            users,
            alive=health.dead,
            ready=health.complaint,
            warning=health.warning,
            stats={"node": health.stats, "resp": resp.stats},
            internal={PEERS_PATH: self.tokens.answer_peer},
            lobby=resp.lobby,
        )
        http.connections_max = self._room.http
        if not (is_loopback(config.node.host) or config.node.tls_cert):
            log.warning(
                "RESP and HTTP are not encrypted: secrets and payloads can be read on their way"
                " to %s",
                config.node.host,
            )
        self.health.look_at_certificate()
        for fault in exposed(config):
            log.warning("%s", fault)
        await http.start()
        stack.push_async_callback(http.stop, 1.0)
        await resp.start()
        stack.push_async_callback(self._close_doors, resp)
        await fronts.start(self._url, self._server)
        health.ready = True
        calm_collector()
        tell_supervisor("READY=1")
        log.info("READY %s: RESP %d, HTTP %d", config.node.name, resp.port, http.port)
        await self._until_stopped()
        log.info("going down")

    def _backups(self) -> Backups:
        copy = functools.partial(snapshot, self._url) if self._server.views else None
        backups = Backups(
            Path(self.config.node.data_dir) / "backups", self.clock, copy, self.health.backed_up
        )
        backups.clear()  # what a former run left
        return backups

    async def _close_doors(self, resp: RespServer) -> None:
        """
        Those who wait are sent away at once; refreshes end meanwhile, of which other nodes may ask
        at the HTTP door.
        """
        closing = asyncio.gather(self.fronts.stop(DRAIN_S + 1), resp.stop(DRAIN_S))
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])
        await closing

    async def _register(self, name: str) -> None:
        """Register a further process's name anew, so that what it held is free."""
        await Registration(
            self._name, name, self.control, self._scripts, self.clock, lambda _: None
        ).register()

    async def _until_stopped(self) -> None:
        """Run what runs for ever; return when told to stop, raise what any of it raises."""
        self._refreshing = asyncio.create_task(self.tokens.run(), name="tokens")
        jobs: list[asyncio.Task[None]] = [
            self._refreshing,
            asyncio.create_task(self.store_clock.run(), name="store clock"),
            asyncio.create_task(
                self.queues.store_memory.run(self.control, self.clock), name="store memory"
            ),
            asyncio.create_task(self.term.run(), name="term"),
            asyncio.create_task(self.raft.watch(), name="membership"),
            asyncio.create_task(tell_watchdog(self.clock, self.health.dead), name="watchdog"),
        ]
        everything: set[asyncio.Future[Any]] = {*jobs, asyncio.ensure_future(self.stopping.wait())}
        try:
            await asyncio.wait({*everything, self._beating}, return_when=asyncio.FIRST_COMPLETED)
            for job in (*jobs, self._beating):
                if job.done():
                    job.result()
            tell_supervisor("STOPPING=1")
            await self._hand_over()
        finally:
            self.queues.draining = self.health.stopping = True
            for future in everything:
                future.cancel()
            await asyncio.gather(*everything - {self._refreshing}, return_exceptions=True)

    async def _hand_over(self) -> None:
        """
        Let another lead before anything here is drained: nobody would sweep for as long as that
        takes.
        """
        if not self.raft.is_leader():
            return
        try:
            async with asyncio.timeout(min(DRAIN_S, HAND_OVER_S * max(1.0, self.config.raft.pace))):
                await self.raft.transfer(None)
        except (Error, TimeoutError) as error:
            log.debug("nobody was there to hand leadership to: %s", error)


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel it, and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

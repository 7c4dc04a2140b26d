"""
What every process of a node has: its connections to the store, its registration, its queues, its
ears.

The node's first process (:mod:`tidewarden.node.daemon`) adds everything else; its further ones
(:mod:`tidewarden.node.secondary`) add a RESP door.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.cluster import Registration, ShardClocks, StoreClock
from tidewarden.config.load import Config
from tidewarden.errors import BadArg, ConfigError, Error, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.catalog import SCRIPT_ROOMS, SHARED
from tidewarden.store import Scripts, StoreConnection
from tidewarden.store.client import StoreClient
from tidewarden.store.connect import check_url
from tidewarden.store.durability.durability import UNKNOWN, Durability
from tidewarden.store.endpoint import PrimaryFinder
from tidewarden.store.preflight import StoreServer
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.sharded_pubsub import ShardedPubSub
from tidewarden.store.redis_cluster.topology import ClusterUrl, Owner, Topology, by_cluster
from tidewarden.store.sentinel import Sentinels, Service, by_sentinel

log = logging.getLogger("tidewarden.node.daemon")

COMPARE_S = 1.0
STORE_WAIT_S = 30.0  # a store that is just starting, or loading its log, gets so long


def check_store_url(url: str) -> None:
    """Raises: ConfigError: no store can be connected to by it, whatever answers there."""
    try:
        if by_sentinel(url):
            Service(url)
        elif by_cluster(url):
            ClusterUrl(url)
        elif url != "embedded":
            check_url(url)
    except BadArg as error:
        raise ConfigError([f"store.url: {error}"]) from None


class ProcessParts:
    """
    One process that takes part in the queues, registered at the store as ``registered``.

    Its takes go by that name, so that they end when it dies, whatever becomes of the node's other
    processes.
    """

    data: StoreClient
    queues: Queues
    nodes: Registration
    store_clock: StoreClock | ShardClocks
    ears: StoreConnection
    shard_ears: ShardedPubSub

    def __init__(self, config: Config, clock: Clock, registered: str) -> None:
        self.config = config
        self.clock = clock
        self.stopping = asyncio.Event()
        self._name = config.cluster.name
        self._registered = registered
        self._finder: PrimaryFinder | None = None
        self._topology: Topology | None = None
        # of a cluster, when what is known was compared with them last
        self._primaries: set[str] = set()
        self._comparing: asyncio.Task[None] | None = None
        self._to_compare = False
        self._not_compared = ""  # why not, as it was logged last
        self._scripts = Scripts(SHARED, SCRIPT_ROOMS, plain=("tidewarden.cluster",))

    @contextlib.asynccontextmanager
    async def _link(self, url: str, purpose: str) -> AsyncIterator[StoreClient]:
        """What calls to the store go by."""
        name = f"tidewarden-{self._registered}-{purpose}"
        self._find(url)
        route: StoreConnection | ClusterClient
        if self._topology is None:
            route = StoreConnection(
                url, name, self.clock, finder=self._finder, on_up=self._scripts.load_commands
            )
        else:
            route = ClusterClient(
                self._topology, name, self.clock, on_up=self._scripts.load_commands
            )
        try:
            await route.start(wait_s=STORE_WAIT_S)
            yield route
        finally:
            await route.stop()

    def _find(self, url: str) -> None:
        """How this process finds the store's servers, where the URL does not name one."""
        if self._finder is None:
            self._finder, self._topology = self._finding(url)

    def _finding(self, url: str) -> tuple[PrimaryFinder | None, Topology | None]:
        """For the event loop it is called in."""
        client = f"tidewarden-{self._registered}"
        if by_sentinel(url):
            return Sentinels(url, client, self.clock), None
        if by_cluster(url):
            topology = Topology(url, client, self.clock)
            return Owner(topology, f"{{{self._name}}}"), topology
        return None, None

    @contextlib.asynccontextmanager
    async def _heart_link(self, url: str) -> AsyncIterator[StoreClient]:
        """
        A connection, in the loop of another thread, to where the nodes are registered; it says
        nothing in the log.
        """
        finder, _ = self._finding(url)
        link = StoreConnection(
            url,
            f"tidewarden-{self._registered}-heartbeat",
            self.clock,
            finder=finder,
            patient=False,
        )
        link.launch()
        try:
            yield link
        finally:
            await link.stop()

    def _beside(self, link: StoreConnection) -> StoreConnection:
        """A further connection to where ``link`` leads, not launched yet."""
        name = f"tidewarden-{self._registered}-commit"
        return StoreConnection(
            link.url, name, self.clock, finder=self._finder if self._topology is None else None
        )

    async def _join(
        self,
        stack: contextlib.AsyncExitStack,
        url: str,
        data: StoreClient,
        control: StoreClient,
        *,
        views: bool,
        server: StoreServer = UNKNOWN,
    ) -> None:
        """
        Build the queues, the registration (not made yet) and the ears. ``views``: whether the store
        counts views; ``server``: what it said of itself.
        """
        await self._scripts.use_library(control, views)
        self.commits = Durability(
            self.config.store, self._name, self.clock, self._beside, embedded=views, server=server
        )
        stack.push_async_callback(self.commits.stop)
        for warning in self.commits.warnings(server, bool(self.config.providers)):
            log.warning(warning)
        self.queues = Queues(
            self.config, data, self._scripts, self.clock, views=views, commits=self.commits
        )
        self.nodes = Registration(
            self._name, self._registered, control, self._scripts, self.clock, self._held_by
        )
        self.queues.on_refused = self.nodes.refused
        if control.clustered:
            self.store_clock = ShardClocks(
                control, self.queues, self.clock, lambda: self._stepped()
            )
        else:
            self.store_clock = StoreClock(
                self._name,
                control,
                self._scripts,
                self.clock,
                self.queues.lease_clock,
                lambda: self._stepped(),
            )
        self.ears = await stack.enter_async_context(self._ears(url))
        if self._topology is not None:
            await self._follow_shards(stack, self._topology)

    @contextlib.asynccontextmanager
    async def _ears(self, url: str) -> AsyncIterator[StoreConnection]:
        """
        The connection that hears wake-ups. After every connect, what may have been missed is looked
        at.
        """
        ears = StoreConnection(
            url,
            f"tidewarden-{self._registered}-ears",
            self.clock,
            finder=self._finder,
            on_up=lambda _: [("SUBSCRIBE", *self._channels())],
            on_ready=self._missed,
            on_message=self._heard,
        )
        try:
            await ears.start(wait_s=STORE_WAIT_S)
            yield ears
        finally:
            await ears.stop()

    async def _follow_shards(self, stack: contextlib.AsyncExitStack, topology: Topology) -> None:
        """
        On a cluster: hear each shard where it lies, and compare what is known when another server
        has taken over.
        """
        self.shard_ears = ShardedPubSub(
            topology,
            f"tidewarden-{self._registered}-shards",
            self.clock,
            channel_of=lambda prefix: f"{prefix}:wake:{self.queues.holder}",
            heard=self.queues.heard,
            listens=self.queues.look_again,
        )
        stack.push_async_callback(self.shard_ears.stop)
        await self.shard_ears.start(wait_s=STORE_WAIT_S)
        self.queues.on_shard = self.shard_ears.listen
        self._primaries = set(topology.map.primaries())
        topology.follow(self._other_primaries)
        stack.push_async_callback(topology.forget, self._other_primaries)

    def _other_primaries(self) -> None:
        """One that has taken over may lack what was written last, and be what it should not."""
        assert self._topology is not None
        now = set(self._topology.map.primaries())
        new, self._primaries = now - self._primaries, now
        if new:
            log.info("the store's cluster has other primaries: %s", " ".join(sorted(new)))
            self._missed()

    def _channels(self) -> list[str]:
        return [f"{{{self._name}}}:queues", f"{{{self._name}}}:wake:{self.queues.holder}"]

    def _held_by(self, holder: str) -> None:
        """This process registered: its takes go by a new holder, whose wake-ups it has to hear."""
        self.queues.holder = holder
        self.queues.rejoin()
        if hasattr(self, "ears") and self.ears.up:
            self.ears.call("SUBSCRIBE", *self._channels()).add_done_callback(self._hears)
        if hasattr(self, "shard_ears"):
            self.shard_ears.rename()
        log.info("registered as %s", holder)

    def _hears(self, done: asyncio.Future[Any]) -> None:
        """
        The new holder's wake-ups are heard from now on; what was sent before may have been missed.
        """
        heard_error(done)
        if done.cancelled() or done.exception() is None:
            self.queues.wake_all()
        else:
            self._missed()

    def _heard(self, message: list[bytes]) -> None:
        if message[0] == b"message":
            self.queues.heard(message[1], message[2])

    def _stepped(self) -> None:
        """The store's clock has stepped: what waits for a moment of it has to look again."""
        self.queues.wake_all()

    def _missed(self) -> None:
        self.queues.wake_all()
        self._to_compare = True
        if hasattr(self, "ears") and self._comparing is None:
            self._comparing = asyncio.ensure_future(self._compare())
            self._comparing.add_done_callback(heard_error)

    async def _compare(self) -> None:
        """
        Until all is well with the server that is connected now; after the next connect it begins
        anew.
        """
        try:
            while self._to_compare and self.ears.up:
                self._to_compare = False
                try:
                    # A server that refused that (BUSY, NOPERM) when the connection was new would
                    # never be heard again.
                    await self.ears.call("SUBSCRIBE", *self._channels())
                    if self._not_compared:
                        self.queues.wake_all()
                    if not await self._taken_over():
                        self._to_compare = True  # which it may be by now in any case
                    self._not_compared = ""
                except Error as error:
                    self._say_not_compared(error)
                    self._to_compare = True
                if self._to_compare:
                    await sleep(self.clock, COMPARE_S)
        finally:
            self._comparing = None

    def _say_not_compared(self, error: Error) -> None:
        away = isinstance(error, StoreDown)  # the link says it
        level = logging.DEBUG if away or self._not_compared == str(error) else logging.WARNING
        log.log(level, "what is known was not compared with the store: %s", error)
        self._not_compared = str(error)

    async def _taken_over(self) -> bool:
        """
        The ears are connected again: to another server, or to one that may have been started anew.

        Returns: whether nothing is wrong with it that would have to be looked at again. Raises:
        what the store raises.
        """
        await self.commits.ask_embedded(self.data)
        await self.queues.recall()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that should run for ever has ended."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s failed", task.get_name(), exc_info=task.exception())
            self.stopping.set()


def heard_error(future: asyncio.Future[Any]) -> None:
    """A call whose failure the connection's own watch reports; or ours, which nobody else would."""
    error = None if future.cancelled() else future.exception()
    if isinstance(error, Error):
        log.debug("not done: %s", error)
    elif error is not None:
        log.error("not done, for a reason of ours", exc_info=error)

"""
Builds the parts that every process of a node has.

They are its queues, its registration, its watch of the store's clock, and its subscriber.

The node's first process (:mod:`tidewarden.node.daemon`) adds everything else; its further ones
(:mod:`tidewarden.node.secondary`) add a RESP door.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from tidewarden.clock import Clock
from tidewarden.cluster import Registration, ShardClocks, StoreClock
from tidewarden.config.load import Config
from tidewarden.duties import Duties
from tidewarden.histograms import Family
from tidewarden.queue import Queues
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient
from tidewarden.store.durability.durability import Durability
from tidewarden.store.endpoint import PrimaryFinder
from tidewarden.store.near_copy import NearCopy
from tidewarden.store.preflight import StoreServer
from tidewarden.tokens.system_queues import system_queues

from .store_links import StoreLinks
from .subscriber import Subscriber

log = logging.getLogger("tidewarden.daemon")


def links_to(
    url: str,
    config: Config,
    registered: str,
    clock: Clock,
    scripts: Scripts,
    finder: PrimaryFinder | None = None,
) -> StoreLinks:
    """Return the maker of connections of the process that is called ``registered``."""
    limit_s = config.store.commit_ms / 1000
    return StoreLinks(url, config.cluster.name, registered, clock, scripts, finder, limit_s)


async def open_queues(
    stack: contextlib.AsyncExitStack,
    config: Config,
    clock: Clock,
    links: StoreLinks,
    data: StoreClient,
    control: StoreClient,
    server: StoreServer,
    near: NearCopy | None = None,
) -> Queues:
    """
    Make the queues on the connection ``data``, with the durability that ``server`` can give.

    ``near``: the node's own copy of the data, to which it is connected here; None: it has none.

    Raises: what the store raises.
    """
    await links.scripts.use_library(control, server.views)
    if server.replicated:
        links.scripts.limit_s = config.store.commit_ms / 1000
    commits = Durability(
        config.store,
        config.cluster.name,
        clock,
        links.beside,
        embedded=server.views,
        server=server,
        replicated=server.replicated,
    )
    stack.push_async_callback(commits.stop)
    for warning in commits.warnings(server, bool(config.providers)):
        log.warning(warning)
    if near is not None:
        await stack.enter_async_context(near.connected())
    queues = Queues(
        config,
        data,
        links.scripts,
        clock,
        views=server.views,
        system_queues=system_queues(clustered=data.clustered),
        durability=commits,
        near=near,
    )
    if queues.near is not None:
        queues.near.age.start()
        stack.push_async_callback(queues.near.age.stop)
    return queues


class ProcessParts:
    """
    Holds one process that takes part in the queues, and is registered at the store.

    Its takes go by the name it is registered under, so that they end when it dies, whatever becomes
    of the node's other processes.

    Args:
        data: the connection of ``queues``; ``control``: that of everything else here.
        look_again: called when a wake-up may have been missed, or the store's clock has stepped.
        compare: called after each reconnect, when the queues were compared with the store; returns
            whether nothing is wrong with it that has to be looked at again.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        links: StoreLinks,
        data: StoreClient,
        control: StoreClient,
        queues: Queues,
        *,
        look_again: Callable[[], None],
        compare: Callable[[], Awaitable[bool]],
    ) -> None:
        cluster = config.cluster.name
        self.links = links
        self._clock = clock
        self.data = data
        self.control = control
        self.queues = queues
        self._compare_store = compare
        self.on_compared: Callable[[], None] = lambda: None
        """Called after each reconnect, too."""
        self.nodes = Registration(
            cluster, links.registered, control, links.scripts, clock, self._registered
        )
        queues.catalog.on_refused = self.nodes.refused
        self.store_clock: StoreClock | ShardClocks
        if control.clustered:
            self.store_clock = ShardClocks(control, queues, clock, look_again)
        else:
            self.store_clock = StoreClock(
                cluster, control, links.scripts, clock, queues.catalog.lease_clock, look_again
            )
        self.subscriber = Subscriber(
            links, queues, cluster, clock, missed=look_again, compare=self._compare
        )

    def times(self) -> tuple[Family, ...]:
        """Return the histograms of what every process of a node does."""
        of_tasks, commits = self.queues.consumer.times, self.queues.catalog.durability
        return of_tasks.lateness, of_tasks.held, self.links.scripts.times, commits.times

    def stats(self) -> dict[str, int]:
        """Return the figures of what every process of a node does; those of all are added up."""
        queues, data = self.queues, self.data
        return {
            "waiting_takes": queues.consumer.waiting(),
            "lost_takes_released_total": queues.lost_takes.released,
            **{f"sessions_{name}": n for name, n in queues.sessions.counts().items()},
            "store_calls_total": data.calls,
            "store_connects_total": data.reconnects,
            **queues.catalog.durability.stats(),
        }

    def start_watches(self, duties: Duties) -> list[asyncio.Task[None]]:
        """Begin to watch the store's clock and memory; each goes on until it is cancelled."""
        memory = self.queues.catalog.store_memory
        return [
            duties.begin("store clock", self.store_clock.run),
            duties.begin("store memory", lambda: memory.run(self.control, self._clock)),
        ]

    def _registered(self, holder: str) -> None:
        self.queues.catalog.holder = holder
        self.queues.sessions.rejoin()
        self.subscriber.holder_changed()
        log.info("registered as %s", holder)

    async def _compare(self) -> bool:
        """
        Compare the queues with the store after a reconnect, which may have led to another server.

        How it syncs is asked first, for what the queues have to wait for follows from it.
        """
        await self.queues.catalog.durability.ask_embedded(self.data)
        await self.queues.catalog.recall()
        self.on_compared()
        return await self._compare_store()

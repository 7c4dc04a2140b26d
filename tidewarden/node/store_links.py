"""Makes the connections of one process to the store, and finds the store's servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tidewarden.clock import Clock
from tidewarden.errors import BadArg, ConfigError
from tidewarden.store import Scripts, StoreConnection
from tidewarden.store.client import StoreClient
from tidewarden.store.connect import check_url
from tidewarden.store.connection import PATIENCE_S
from tidewarden.store.endpoint import PrimaryFinder
from tidewarden.store.link_log import LinkLog
from tidewarden.store.near_copy import NearCopy
from tidewarden.store.probing_finder import ProbingFinder, StoresUrl, by_probing
from tidewarden.store.redis_cluster.cluster_client import ClusterClient
from tidewarden.store.redis_cluster.topology import ClusterUrl, Owner, Topology, by_cluster
from tidewarden.store.sentinel import Sentinels, Service, by_sentinel

STORE_WAIT_S = 30.0  # a store that is just starting, or loading its log, gets so long


def check_store_url(url: str) -> None:
    """
    Check that a store can be connected to by this URL, whatever answers there. Raises: ConfigError.
    """
    try:
        if by_sentinel(url):
            Service(url)
        elif by_cluster(url):
            ClusterUrl(url)
        elif by_probing(url):
            StoresUrl(url)
        elif url != "embedded":
            check_url(url)
    except BadArg as error:
        raise ConfigError([f"store.url: {error}"]) from None


class StoreLinks:
    """
    Makes connections to the store at ``url`` for the process that is called ``registered``.

    ``topology`` is there on a Redis Cluster alone. Built in the event loop that uses it. ``finder``
    finds the primary where this process knows it otherwise than by the URL. ``limit_s``: how long
    a call waits where no majority of the nodes is in reach.
    """

    def __init__(
        self,
        url: str,
        cluster: str,
        registered: str,
        clock: Clock,
        scripts: Scripts,
        finder: PrimaryFinder | None = None,
        limit_s: float = PATIENCE_S,
    ) -> None:
        self.registered = registered
        self.scripts = scripts
        self.wait_s = STORE_WAIT_S
        self._url = url
        self._cluster = cluster
        self._clock = clock
        self._limit_s = limit_s
        self._told = LinkLog()
        self._finder, self.topology = (finder, None) if finder is not None else self._finding()

    @property
    def replicated(self) -> bool:
        """
        Return whether the links lead to one of several embedded stores, of this or another node.
        """
        return by_probing(self._url)

    def note_fault(self, fault: str, *, alone: bool) -> None:
        """
        Note why no server can take the writes before an operator acts; empty: one may.

        ``alone``: because no majority of the nodes is in reach.
        """
        if self._finder is not None:
            self._finder.fault, self._finder.alone = fault, alone

    def _alone(self) -> bool:
        """Tell whether no majority of the nodes is in reach, as far as is known."""
        return self._finder is not None and self._finder.alone

    @contextlib.asynccontextmanager
    async def open(self, purpose: str) -> AsyncIterator[StoreClient]:
        """Connect for calls, and stay connected. Raises: StoreDown: not in time."""
        name = self.name(purpose)
        # Else calls that are sent together would run in the order in which the server gets their
        # scripts. One of several stores has the library before it lets clients in.
        on_up = None if self.replicated else self.scripts.load_commands
        client: StoreConnection | ClusterClient
        if self.topology is None:
            client = StoreConnection(
                self._url,
                name,
                self._clock,
                finder=self._finder,
                on_up=on_up,
                told=self._told,
                limit_s=self._limit_s,
            )
        else:
            client = ClusterClient(self.topology, name, self._clock, on_up=on_up)
        try:
            await client.start(wait_s=self.wait_s)
            yield client
        finally:
            await client.stop()

    @contextlib.asynccontextmanager
    async def heartbeat(self) -> AsyncIterator[StoreClient]:
        """
        Connect, in the loop of another thread, to where the nodes are registered.

        It logs nothing.
        """
        finder, _ = self._finding()
        name = self.name("heartbeat")
        link = StoreConnection(self._url, name, self._clock, finder=finder, patient=False)
        link.launch()
        try:
            yield link
        finally:
            await link.stop()

    def beside(self, link: StoreConnection) -> StoreConnection:
        """Return a further connection to where ``link`` leads, not launched yet."""
        finder = self._finder if self.topology is None else None
        told = self._told if self.topology is None else None  # else each server has its own
        return StoreConnection(
            link.url,
            self.name("commit"),
            self._clock,
            finder=finder,
            told=told,
            limit_s=self._limit_s,
        )

    def subscriber(
        self,
        on_up: Callable[[StoreConnection], Sequence[Sequence[Any]]],
        on_ready: Callable[[], None],
        on_message: Callable[[Any], None],
    ) -> StoreConnection:
        """Return the connection for messages, not launched yet."""
        return StoreConnection(
            self._url,
            self.name("ears"),
            self._clock,
            finder=self._finder,
            on_up=on_up,
            on_ready=on_ready,
            on_message=on_message,
            told=self._told,
        )

    def near(self, url: str) -> NearCopy | None:
        """
        Return the node's own copy behind ``url``, not connected yet; None if ``url`` is empty.
        """
        name = self.name("near")
        return NearCopy(url, name, self.scripts, self._clock, self._alone) if url else None

    def name(self, purpose: str) -> str:
        """Return the name of a connection at the store."""
        return f"tidewarden-{self.registered}-{purpose}"

    def _finding(self) -> tuple[PrimaryFinder | None, Topology | None]:
        """Return how this event loop finds the store's servers, where the URL names none."""
        client = f"tidewarden-{self.registered}"
        if by_sentinel(self._url):
            return Sentinels(self._url, client, self._clock), None
        if by_probing(self._url):
            return ProbingFinder(self._url, self._cluster, client, self._clock), None
        if by_cluster(self._url):
            topology = Topology(self._url, client, self._clock)
            return Owner(topology, f"{{{self._cluster}}}"), topology
        return None, None

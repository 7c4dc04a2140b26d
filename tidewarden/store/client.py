"""Defines how other rooms call the store, whether it is one server or a Redis Cluster."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from .connection import Arg, StoreConnection
from .reply_sink import ReplySink


class CallSender(Protocol):
    """
    Sends packed commands to the store.

    ``clustered``: it names a second key (docs/decisions/0016-redis-cluster.md).
    """

    clustered: bool

    def send(self, packed: bytes, receiver: ReplySink, key: Arg = "", /) -> None:
        """
        Send one packed command, of which ``key`` is the first key.

        The receiver hears nothing before this has returned.
        """


class StoreClient(CallSender, Protocol):
    """
    Calls the store, whatever kind of store it is.

    It is a :class:`tidewarden.store.connection.StoreConnection`, or, before the primaries of a
    cluster, a :class:`tidewarden.store.redis_cluster.cluster_client.ClusterClient`.

    ``why``: why it is not ``up``. ``calls`` were made, and ``reconnects`` connections, so far.
    """

    url: str
    calls: int

    @property
    def up(self) -> bool:
        """Return whether calls can be made now."""

    @property
    def at(self) -> str:
        """Return the address, without passwords."""

    @property
    def why(self) -> str:
        """Say why no calls can be made; "": they can."""

    @property
    def reconnects(self) -> int:
        """Return how often a connection was made."""

    def call(self, *args: Arg) -> asyncio.Future[Any]:
        """Send one command."""

    def refused(self, message: str) -> None:
        """Note an error reply that stands among several in one reply."""

    def link_of(self, key: str) -> StoreConnection | None:
        """Return the link to the server that has the key; None: there is none now."""

    def each(self) -> list[StoreConnection]:
        """Return the connections to all servers that take writes."""

    def warning(self) -> str:
        """Return the trouble that an operator should look at although the store is up, or ""."""

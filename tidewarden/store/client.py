"""What calls to the store go by: one link, or one to each primary of a cluster."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from .connection import Arg, StoreConnection
from .reply_sink import ReplySink


class CallSender(Protocol):
    """
    What a script is sent by. ``clustered``: it names a second key
    (docs/decisions/0016-redis-cluster.md).
    """

    clustered: bool

    def send(self, packed: bytes, receiver: ReplySink, key: Arg = "", /) -> None:
        """
        Send one packed command, of which ``key`` is the first key. The receiver hears nothing
        before this has returned.
        """


class StoreClient(CallSender, Protocol):
    """
    See :class:`tidewarden.store.connection.StoreConnection` and
    :class:`tidewarden.store.redis_cluster.cluster_client.ClusterClient`.

    ``why``: why it is not ``up``. ``calls`` were made, and ``reconnects`` connections, so far.
    """

    url: str
    calls: int

    @property
    def up(self) -> bool:
        """Whether calls can be made now."""

    @property
    def at(self) -> str:
        """Where it leads to, without passwords."""

    @property
    def why(self) -> str:
        """What keeps it from being up, or ""."""

    @property
    def reconnects(self) -> int:
        """How often it has connected."""

    def call(self, *args: Arg) -> asyncio.Future[Any]:
        """Send one command."""

    def refused(self, message: str) -> None:
        """An error reply among the many in a reply."""

    def link_of(self, key: str) -> StoreConnection | None:
        """The link to the server that has the key; None: there is none now."""

    def each(self) -> list[StoreConnection]:
        """The links to all servers that take writes."""

    def warning(self) -> str:
        """What somebody should look at although it is up, or ""."""

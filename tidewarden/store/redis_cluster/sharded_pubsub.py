"""
Hears messages that scripts on a Redis Cluster publish to one shard's servers.

It subscribes at the primary of each shard's slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from tidewarden.clock import Clock
from tidewarden.store.connection import StoreConnection
from tidewarden.store.reply_errors import NotRun, NotSent, unanswered

from .cluster_client import ClusterClient
from .topology import Topology

log = logging.getLogger("tidewarden.store")

AGAIN_S = 0.1


class ShardedPubSub:
    """
    Subscribes to ``channel_of(prefix)`` for every prefix given to :meth:`listen`.

    It follows the slots when they move.

    ``heard(channel, message)`` gets each message. ``listens(prefix)`` is called whenever a
    subscription is confirmed: what was published before may have been missed. A server before 7.0
    has no such channels; its scripts publish as on a single server.
    """

    def __init__(
        self,
        topology: Topology,
        name: str,
        clock: Clock,
        *,
        channel_of: Callable[[str], str],
        heard: Callable[[bytes, bytes], None],
        listens: Callable[[str], None],
    ) -> None:
        self._topology = topology
        self._channel_of = channel_of
        self._heard = heard
        self._listens = listens
        self._primaries = ClusterClient(
            topology, name, clock, on_message=self._message, on_ready=self._ready
        )
        self._loop = asyncio.get_running_loop()
        # where each prefix is subscribed to, or is about to be
        self._at: dict[str, StoreConnection | None] = {}
        self._prefixes: dict[bytes, str] = {}  # by channel
        self._stopped = False

    async def start(self, *, wait_s: float) -> None:
        """Connect. Raises: StoreDown: not within ``wait_s`` seconds."""
        self._topology.follow(self._moved)
        await self._primaries.start(wait_s=wait_s)

    async def stop(self) -> None:
        """Close the connections."""
        self._stopped = True
        await self._topology.forget(self._moved)
        await self._primaries.stop()

    def listen(self, prefix: str) -> None:
        """Subscribe to this shard's channel from now on."""
        if prefix not in self._at:
            self._at[prefix] = None
            self._subscribe(prefix)

    def rename(self) -> None:
        """Subscribe to channels of other names. The old ones go with their connections."""
        self._prefixes.clear()
        for prefix in self._at:
            self._at[prefix] = None
            self._subscribe(prefix)

    def _ready(self, link: StoreConnection) -> None:
        """Subscribe again on a new connection."""
        for prefix in self._at:
            if self._primaries.link_of(prefix) is link:
                self._at[prefix] = None
                self._subscribe(prefix)

    def _moved(self) -> None:
        for prefix in self._at:
            self._subscribe(prefix)

    def _subscribe(self, prefix: str) -> None:
        """Subscribe where the slot is now, unless that is done or under way."""
        link = self._primaries.link_of(prefix)
        if self._stopped or link is None or not link.up or self._at[prefix] is link:
            return
        self._at[prefix] = link
        channel = self._channel_of(prefix)
        self._prefixes[channel.encode()] = prefix
        reply = link.call("SSUBSCRIBE", channel)
        reply.add_done_callback(lambda done: self._subscribed(prefix, link, channel, done))

    def _subscribed(
        self, prefix: str, link: StoreConnection, channel: str, done: asyncio.Future[Any]
    ) -> None:
        if done.cancelled() or self._stopped:
            return
        error = done.exception()
        if error is None:
            if self._channel_of(prefix) == channel:
                self._listens(prefix)
            return
        if isinstance(error, NotRun):
            if error.word == "MOVED":
                self._topology.moved(error.slot, error.place)
            self._lost(prefix, link)
        elif unanswered(error) or isinstance(error, NotSent):
            return  # the connection was lost; there is another try at the next one
        elif "unknown command" not in str(error):
            log.warning(
                "the store's server at %s refuses a subscription, so wake-ups come late: %s",
                link.at,
                error,
            )

    def _lost(self, prefix: str, link: StoreConnection | None) -> None:
        """Look in a moment where the slot is: it is not subscribed there, or no longer."""
        if self._at.get(prefix) is link:
            self._at[prefix] = None
        self._topology.hurry()
        self._loop.call_later(AGAIN_S, self._subscribe, prefix)

    def _message(self, message: list[bytes]) -> None:
        if message[0] == b"smessage":
            self._heard(message[1], message[2])
        elif message[0] == b"sunsubscribe":  # the slot has moved
            prefix = self._prefixes.get(message[1])
            if prefix is not None and self._at[prefix] is not None:
                self._lost(prefix, self._at[prefix])

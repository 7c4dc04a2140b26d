"""Hears the wake-ups of one process, and looks at what it may have missed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, StoreDown
from tidewarden.queue import Queues
from tidewarden.store.redis_cluster.sharded_pubsub import ShardedPubSub
from tidewarden.store.redis_cluster.topology import Topology

from .store_links import StoreLinks

log = logging.getLogger("tidewarden.daemon")

COMPARE_S = 1.0


class Subscriber:
    """
    Receives the wake-ups of a process's takes, and compares what is known after each reconnect.

    Args:
        missed: called whenever messages may have been missed.
        compare: compares what is known with the store that is connected now, which may be another;
            returns whether nothing is wrong with it that has to be looked at again.
    """

    def __init__(
        self,
        links: StoreLinks,
        queues: Queues,
        cluster: str,
        clock: Clock,
        *,
        missed: Callable[[], None],
        compare: Callable[[], Awaitable[bool]],
    ) -> None:
        self._queues = queues
        self._cluster = cluster
        self._clock = clock
        self._on_missed = missed
        self._compare_once = compare
        self._wait_s = links.wait_s
        self.connection = links.subscriber(
            lambda _: [("SUBSCRIBE", *self._channels())], self._connected, self._heard
        )
        topology = links.topology
        self.shards = (
            None
            if topology is None
            else ShardSubscriber(links, topology, queues, clock, self.missed)
        )
        self._comparing: asyncio.Task[None] | None = None
        self._to_compare = False
        self._not_compared = ""  # why not, as it was logged last

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Hear everything until the block is left. Raises: StoreDown: not connected in time."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.connection.stop)
            await self.connection.start(wait_s=self._wait_s)
            if self.shards is not None:
                await self.shards.start(stack)
            yield

    def holder_changed(self) -> None:
        """Hear the wake-ups of the new holder that the process's takes go by."""
        if self.connection.up:
            subscribed = self.connection.call("SUBSCRIBE", *self._channels())
            subscribed.add_done_callback(self._resubscribed)
        if self.shards is not None:
            self.shards.pubsub.rename()

    def missed(self) -> None:
        """Look at everything again, and compare, for messages may have been missed."""
        self._on_missed()
        self._to_compare = True
        if self._comparing is None:
            self._comparing = asyncio.ensure_future(self._compare())
            self._comparing.add_done_callback(heard_error)

    def _channels(self) -> list[str]:
        return [
            f"{{{self._cluster}}}:queues",
            f"{{{self._cluster}}}:wake:{self._queues.catalog.holder}",
        ]

    def _connected(self) -> None:
        if self.connection.reconnects > 1:  # before the first time there was nothing to miss
            self.missed()

    def _resubscribed(self, done: asyncio.Future[Any]) -> None:
        """Look for what was sent before the new holder's wake-ups were heard."""
        heard_error(done)
        if done.cancelled() or done.exception() is None:
            self._queues.wakeups.wake_all()
        else:
            self.missed()

    def _heard(self, message: list[bytes]) -> None:
        if message[0] == b"message":
            self._queues.wakeups.heard(message[1], message[2])

    async def _compare(self) -> None:
        """Compare until all is well with the server that is connected now."""
        try:
            while self._to_compare and self.connection.up:
                self._to_compare = False
                try:
                    # A server that refused that (BUSY, NOPERM) when the connection was new would
                    # never be heard again.
                    await self.connection.call("SUBSCRIBE", *self._channels())
                    if self._not_compared:
                        self._queues.wakeups.wake_all()
                    if not await self._compare_once():
                        self._to_compare = True  # which it may be by now in any case
                    self._not_compared = ""
                except Error as error:
                    self._say_not_compared(error)
                    self._to_compare = True
                if self._to_compare:
                    await sleep(self._clock, COMPARE_S)
        finally:
            self._comparing = None

    def _say_not_compared(self, error: Error) -> None:
        away = isinstance(error, StoreDown)  # the link says it
        level = logging.DEBUG if away or self._not_compared == str(error) else logging.WARNING
        log.log(level, "what is known was not compared with the store: %s", error)
        self._not_compared = str(error)


class ShardSubscriber:
    """
    Hears each shard of a Redis Cluster where it lies.

    ``missed`` is called when a server has taken over: it may lack what was written last, and be
    what it should not.
    """

    def __init__(
        self,
        links: StoreLinks,
        topology: Topology,
        queues: Queues,
        clock: Clock,
        missed: Callable[[], None],
    ) -> None:
        self._topology = topology
        self._missed = missed
        self._wait_s = links.wait_s
        self._primaries: set[str] = set()
        self.pubsub = ShardedPubSub(
            topology,
            links.name("shards"),
            clock,
            channel_of=lambda prefix: f"{prefix}:wake:{queues.catalog.holder}",
            heard=queues.wakeups.heard,
            listens=queues.wakeups.look_again,
        )
        queues.catalog.on_shard = self.pubsub.listen

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Connect, and stop with ``stack``. Raises: StoreDown: not in time."""
        stack.push_async_callback(self.pubsub.stop)
        await self.pubsub.start(wait_s=self._wait_s)
        self._primaries = set(self._topology.map.primaries())
        self._topology.follow(self._moved)
        stack.push_async_callback(self._topology.forget, self._moved)

    def _moved(self) -> None:
        now = set(self._topology.map.primaries())
        new, self._primaries = now - self._primaries, now
        if new:
            log.info("the store's cluster has other primaries: %s", " ".join(sorted(new)))
            self._missed()


def heard_error(future: asyncio.Future[Any]) -> None:
    """Log why a call failed that the connection's own watch reports, or a defect of ours."""
    error = None if future.cancelled() else future.exception()
    if isinstance(error, Error):
        log.debug("not done: %s", error)
    elif error is not None:
        log.error("not done, for a reason of ours", exc_info=error)

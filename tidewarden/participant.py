"""
What every process of a node has: its connections to the store, its registration, its queues, its ears.

The node's first process (:mod:`tidewarden.daemon`) adds everything else; its further ones (:mod:`tidewarden.front`) add a
RESP door.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from tidewarden.clock import Clock, sleep
from tidewarden.cluster import Nodes, StoreClock
from tidewarden.config import Config
from tidewarden.errors import StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.registry import SCRIPT_ROOMS, SHARED
from tidewarden.store import Link, Scripts
from tidewarden.store.check import Server
from tidewarden.store.commits import UNKNOWN, Commits
from tidewarden.store.sentinel import Sentinels, by_sentinel

log = logging.getLogger("tidewarden.daemon")

COMPARE_S = 1.0
STORE_WAIT_S = 30.0  # a store that is just starting, or loading its log, gets so long


class Participant:
    """
    One process that takes part in the queues, registered at the store as ``registered``.

    Its takes go by that name, so that they end when it dies, whatever becomes of the node's other processes.
    """

    queues: Queues
    nodes: Nodes
    store_clock: StoreClock
    ears: Link

    def __init__(self, config: Config, clock: Clock, registered: str) -> None:
        self.config = config
        self.clock = clock
        self.stopping = asyncio.Event()
        self._name = config.cluster.name
        self._registered = registered
        self._finder: Sentinels | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._to_compare = False
        self._scripts = Scripts(SHARED, SCRIPT_ROOMS, plain=("tidewarden.cluster",))

    @contextlib.asynccontextmanager
    async def _link(self, url: str, purpose: str, **hooks: Any) -> AsyncIterator[Link]:
        hooks = hooks or {"on_up": self._scripts.load_commands}
        client = f"tidewarden-{self._registered}"
        if self._finder is None and by_sentinel(url):
            self._finder = Sentinels(url, client, self.clock)
        link = Link(url, f"{client}-{purpose}", self.clock, finder=self._finder, **hooks)
        try:
            await link.start(wait_s=STORE_WAIT_S)
            yield link
        finally:
            await link.stop()

    def _beside(self, link: Link) -> Link:
        """A further connection to where ``link`` leads, not launched yet."""
        name = f"tidewarden-{self._registered}-commit"
        return Link(link.url, name, self.clock, finder=self._finder)

    async def _join(
        self,
        stack: contextlib.AsyncExitStack,
        url: str,
        data: Link,
        control: Link,
        *,
        views: bool,
        server: Server = UNKNOWN,
    ) -> None:
        """
        Build the queues, the registration (not made yet) and the ears. ``views``: whether the store counts views; ``server``:
        what it said of itself.
        """
        await self._scripts.use_library(control, views)
        self.commits = Commits(
            self.config.store, f"{{{self._name}}}:commits", self.clock, self._beside, embedded=views, server=server
        )
        stack.push_async_callback(self.commits.stop)
        for warning in self.commits.warnings(server, bool(self.config.providers)):
            log.warning(warning)
        self.queues = Queues(self.config, data, self._scripts, self.clock, views=views, commits=self.commits)
        self.nodes = Nodes(self._name, self._registered, control, self._scripts, self.clock, self._held_by)
        self.store_clock = StoreClock(
            self._name, control, self._scripts, self.clock, self.queues.lease_clock, lambda: self._stepped()
        )
        self.ears = await stack.enter_async_context(self._ears(url))

    def _ears(self, url: str) -> contextlib.AbstractAsyncContextManager[Link]:
        """The connection that hears wake-ups. After every connect, what may have been missed is looked at."""
        subscribe = lambda _: [("SUBSCRIBE", *self._channels())]  # noqa: E731
        return self._link(url, "ears", on_up=subscribe, on_ready=self._missed, on_message=self._heard)

    def _channels(self) -> list[str]:
        return [f"{{{self._name}}}:queues", f"{{{self._name}}}:wake:{self.queues.holder}"]

    def _held_by(self, holder: str) -> None:
        """This process registered: its takes go by a new holder, whose wake-ups it has to hear."""
        self.queues.holder = holder
        self.queues.rejoin()
        if hasattr(self, "ears") and self.ears.up:
            self.ears.call("SUBSCRIBE", *self._channels()).add_done_callback(self._hears)
        log.info("registered as %s", holder)

    def _hears(self, done: asyncio.Future[Any]) -> None:
        """The new holder's wake-ups are heard from now on; what was sent before may have been missed."""
        heard_error(done)
        self.queues.wake_all()

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
        """Until all is well with the server that is connected now; after the next connect it begins anew."""
        try:
            while self._to_compare and self.ears.up:
                self._to_compare = False
                try:
                    self._to_compare |= not await self._taken_over()
                except StoreDown as error:
                    log.debug("what is known was not compared with the store: %s", error)
                    self._to_compare = True
                if self._to_compare:
                    await sleep(self.clock, COMPARE_S)
        finally:
            self._comparing = None

    async def _taken_over(self) -> bool:
        """
        The ears are connected again: to another server, or to one that may have been started anew.

        Returns: whether nothing is wrong with it that would have to be looked at again. Raises: StoreDown.
        """
        await self.queues.recall()
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that should run for ever has ended."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s failed", task.get_name(), exc_info=task.exception())
            self.stopping.set()


def heard_error(future: asyncio.Future[Any]) -> None:
    """A call whose failure the connection's own watch reports."""
    if not future.cancelled() and future.exception() is not None:
        log.debug("not done: %s", future.exception())

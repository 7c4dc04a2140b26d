"""
The refreshers of one provider's client on this node: how many are under way, when they pause, and how they stop.
"""

from __future__ import annotations

import asyncio
import logging

from tidewarden import errors
from tidewarden.clock import sleep
from tidewarden.config import Provider
from tidewarden.queue import Taken

from .policy import Breaker
from .records import Answer
from .refresher import Refresher
from .settler import Settler
from .tools import Tools

log = logging.getLogger("tidewarden.tokens")

TAKE_WAIT_MS = 30_000
PAUSE_S = 1.0  # After the store refused.
STOP_S = 5.0


class Pool:
    """At most ``provider.refreshers`` refreshes under way on this node, for one provider's client."""

    def __init__(self, provider: Provider, queue: str, tools: Tools) -> None:
        self.queue = queue
        self._provider = provider
        self._tools = tools
        self._breaker = Breaker()
        self._settler = Settler(provider, queue, tools)
        self._refresher = Refresher(provider, queue, tools, self._settler, self._breaker)
        self._session = tools.queues.open_session("_tokens")
        self._work: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Refreshes under way."""
        return len(self._work)

    async def store(self, answer: Answer) -> None:
        """Write a journalled answer of this client's into the store; see :meth:`Settler.store`."""
        await self._settler.store(answer)

    async def run(self) -> None:
        """Refresh what falls due until cancelled; what is under way then is finished, five seconds at most."""
        paying = asyncio.create_task(self._pay_forever(), name=f"what is owed to the store for {self._provider.name}")
        try:
            while True:
                try:
                    await self._turn()
                except errors.ConfigError:
                    raise  # The vault's key is another one: nothing here will mend that.
                except errors.Error as error:
                    log.warning("refreshers of %s pause: %s %s", self._provider.name, error.code, error)
                    await sleep(self._tools.clock, PAUSE_S)
        finally:
            paying.cancel()
            await self._drain()

    async def _pay_forever(self) -> None:
        """Beside the takes, which may be parked: what is told late keeps an account waiting."""
        while True:
            await self._refresher.owing.wait()
            await sleep(self._tools.clock, PAUSE_S)
            try:
                await self._refresher.pay()
            except errors.Error as error:
                log.debug("still owed to the store for %s: %s", self._provider.name, error)

    async def _turn(self) -> None:
        """Take what is due, as much as may be begun, and begin it."""
        clock = self._tools.clock
        self._freed.clear()
        free = self._breaker.allowed(clock.monotonic(), self._provider.refreshers, len(self._work))
        if free == 0:
            await self._wait_for_room()
            return
        await self._tools.vault.ready()
        if not self._refresher.writable:
            await self._tools.journal.heal()
            if not self._refresher.writable:
                await sleep(clock, PAUSE_S)
                return
        taken = await self._tools.queues.take(
            self._session, [self.queue], count=free, wait_ms=TAKE_WAIT_MS, lease_ms=self._refresher.lease_ms
        )
        for task in taken:
            work = asyncio.create_task(self._refresh(task), name=f"refresh {self._provider.name}/{task.id}")
            self._work.add(work)
            work.add_done_callback(self._ended)

    async def _refresh(self, task: Taken) -> None:
        await self._refresher.refresh(task)
        self._session.drop(self.queue, task.id, task.lease)

    async def _wait_for_room(self) -> None:
        pause_s = self._breaker.opens_in_s(self._tools.clock.monotonic())
        if pause_s > 0:
            await sleep(self._tools.clock, pause_s)
        else:
            await self._freed.wait()

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work.discard(work)
        self._freed.set()

    async def _drain(self) -> None:
        """Begin nothing, finish what is under way, give back what is held."""
        name = self._provider.name
        self._refresher.stopping = True
        if self._work:
            _, late = await asyncio.wait(self._work, timeout=STOP_S)
            for work in late:
                work.cancel()
            if late:
                log.warning("%d refreshes of %s were cut off; their intents stay open", len(late), name)
                await asyncio.wait(late)
        try:
            async with asyncio.timeout(1):
                await self._refresher.pay()
                await self._tools.queues.close_session(self._session)
        except TimeoutError:
            log.warning("leases of %s were not given back: no answer in time", name)
        except errors.Error as error:
            log.warning("leases of %s were not given back: %s", name, error)

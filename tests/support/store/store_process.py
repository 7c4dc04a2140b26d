"""
A process of a node with what concerns the store alone: links, scripts, registration, clocks,
queues, ears.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.node.process_parts import ProcessParts
from tidewarden.store.client import StoreClient
from tidewarden.store.preflight import check_store


class Process(ProcessParts):
    """See :func:`process`."""

    data: StoreClient
    control: StoreClient

    async def build(self, stack: AsyncExitStack, url: str) -> None:
        self.data = await stack.enter_async_context(self._link(url, "data"))
        self.control = await stack.enter_async_context(self._link(url, "control"))
        server = await check_store(self.control, self.config.cluster.name)
        await self._join(stack, url, self.data, self.control, views=False, server=server)
        await self.nodes.register()
        memory = self.queues.store_memory.run(self.control, self.clock)
        runs: list[Coroutine[Any, Any, None]] = [self.nodes.run(), self.store_clock.run(), memory]
        for run in runs:
            task = asyncio.create_task(run)
            stack.callback(task.cancel)


@asynccontextmanager
async def process(url: str, name: str = "n0", **store: str) -> AsyncIterator[Process]:
    """
    One process on the store at ``url``, registered as ``name``; ``store``: settings of that
    section.
    """
    flags = {f"store.{key}": value for key, value in store.items()}
    made = Process(load(None, {}, {"store.url": url} | flags), SystemClock(), name)
    async with AsyncExitStack() as stack:
        await made.build(stack, url)
        yield made

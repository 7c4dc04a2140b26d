"""
A process of a node with what concerns the store alone: links, scripts, registration, clocks,
queues, subscriber.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.duties import Duties
from tidewarden.node.process_parts import ProcessParts, links_to, open_queues
from tidewarden.node.product_scripts import product_scripts
from tidewarden.store.preflight import check_store

Process = ProcessParts


@asynccontextmanager
async def process(url: str, name: str = "n0", **store: str) -> AsyncIterator[Process]:
    """
    One process on the store at ``url``, registered as ``name``; ``store``: settings of that
    section.
    """
    flags = {f"store.{key}": value for key, value in store.items()}
    config, clock = load(None, {}, {"store.url": url} | flags), SystemClock()
    async with AsyncExitStack() as stack:
        links = links_to(url, config, name, clock, product_scripts())
        data = await stack.enter_async_context(links.open("data"))
        control = await stack.enter_async_context(links.open("control"))
        server = await check_store(control, config.cluster.name)
        queues = await open_queues(stack, config, clock, links, data, control, server)
        made = ProcessParts(
            config,
            clock,
            links,
            data,
            control,
            queues,
            look_again=queues.wakeups.wake_all,
            compare=_whole,
        )
        await stack.enter_async_context(made.subscriber.listening())
        await made.nodes.register()
        for task in (asyncio.create_task(made.nodes.run()), *made.start_watches(Duties(clock))):
            stack.callback(task.cancel)
        yield made


async def _whole() -> bool:
    return True

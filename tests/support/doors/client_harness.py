"""
Nodes for the SDK's tests: real queues on a real store behind real RESP doors, in this process, and
proxies before them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from support.doors import doubles as server_doubles
from support.queues.waiting_locks import locks_of
from support.store.proxy import Proxy


class Site:
    """
    A few nodes on one store. ``urls``: their doors; ``proxied(i)``: the same door behind a proxy
    that tests can cut.
    """

    def __init__(self) -> None:
        self.doors: list[Any] = []
        self.nodes: list[Any] = []
        self.proxies: list[Proxy] = []
        self.stack = contextlib.AsyncExitStack()

    @property
    def urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{door.port}" for door in self.doors]

    @property
    def queues(self) -> Any:
        """The queue room of the first node."""
        return self.nodes[0].queues

    async def add(self, make_node: Any, **options: Any) -> None:
        """One more node; ``options`` are the door's."""
        node = await make_node(f"n{len(self.nodes)}")
        door = await self.stack.enter_async_context(
            server_doubles.Door(queues=node.queues, **options)
        )
        door.provide(locks=locks_of(node, waiting_max=1_000))
        self.nodes.append(node)
        self.doors.append(door)

    def proxied(self, place: int = 0) -> Proxy:
        """A proxy before that door."""
        self.proxies.append(Proxy(self.doors[place].port))
        return self.proxies[-1]

    async def close(self) -> None:
        for proxy in self.proxies:
            await asyncio.to_thread(proxy.close)
        await self.stack.aclose()


@contextlib.asynccontextmanager
async def site(make_node: Any, nodes: int = 1, **options: Any) -> AsyncIterator[Site]:
    """A site of so many nodes."""
    made = Site()
    try:
        for _ in range(nodes):
            await made.add(make_node, **options)
        yield made
    finally:
        await made.close()


def url(port: int) -> str:
    """The address of a port of ours."""
    return f"redis://127.0.0.1:{port}"

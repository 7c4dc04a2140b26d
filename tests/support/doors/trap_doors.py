"""Two doors on one store, for the traps of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors import doubles

HOUR_MS = 3_600_000


Pair = tuple[Any, Any]


@pytest.fixture
async def doors(node: Any) -> AsyncIterator[Pair]:
    """The doors of two nodes that share a store."""
    n0, n1 = await node("n0"), await node("n1")
    async with doubles.Door(queues=n0.queues) as first, doubles.Door(queues=n1.queues) as second:
        first.ears, second.ears = n0.ears, n1.ears
        yield first, second


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)

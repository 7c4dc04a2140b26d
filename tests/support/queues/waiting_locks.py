"""The locks of a node of a test, and when it is noted that somebody waits for one."""

from __future__ import annotations

import asyncio
from typing import Any

from tidewarden.queue.locks import QUEUE, Locks

LONG_MS = 60_000


def locks_of(n: Any, *, wait_max_ms: int = 3_600_000, waiting_max: int = 100) -> Locks:
    """Locks of the node of the test under limits of the test."""
    queues = n.queues
    return Locks(
        queues.catalog,
        queues.sessions,
        queues.hold_limit,
        queues.results,
        queues.admin,
        queues.drain,
        wait_max_ms=wait_max_ms,
        waiting_max=waiting_max,
    )


async def waits_noted(n: Any, names: int) -> None:
    """Until the store knows that so many locks are waited for."""
    for _ in range(5000):
        shards = await n.queues.catalog.shard_count(QUEUE)
        found = await asyncio.gather(
            *(n.link.call("HLEN", f"{{tw:{QUEUE}:{i}}}:waits") for i in range(shards))
        )
        if sum(found) == names:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{names} waits were not noted")

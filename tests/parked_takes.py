"""Takes that wait, parked."""

from __future__ import annotations

from typing import Any

LONG_MS = 60_000


async def parked(eventually: Any, queues: Any, count: int = 1, queue: str = "q") -> None:
    """Until so many takes wait in every shard of the queue."""
    await eventually(lambda: queue in queues._shards and all(len(s.parked) == count for s in queues._shards[queue]))


async def wait_in(eventually: Any, n: Any, queue: str = "q", **options: Any) -> Any:
    """A take that waits, parked."""
    session = n.queues.open_session()
    await n.queues.shards(queue)
    before = len(n.queues._shards[queue][0].parked)
    take = n.queues.take(session, [queue], wait_ms=LONG_MS, **options)
    await parked(eventually, n.queues, before + 1, queue)
    return session, take

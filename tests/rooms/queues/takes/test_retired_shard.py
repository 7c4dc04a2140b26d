"""A take that ends while it parks, because a shard was retired, is parked nowhere."""

from __future__ import annotations

from typing import Any

from support.inspect import shards_of

LONG_MS = 60_000


async def test_a_take_that_a_retired_shard_ended_is_parked_at_no_other(
    node: Any, eventually: Any, monkeypatch: Any
) -> None:
    n = await node("n0")
    for queue in ("a", "b"):
        await n.queues.catalog.shard_count(queue)
    (shard,) = shards_of(n.queues, "b")
    asked: list[Any] = []
    with monkeypatch.context() as held:  # the second queue answers once the first is resharded
        held.setattr(shard, "take", lambda *args, **options: asked.append((args, options)))
        session = n.queues.open_session()
        take = n.queues.take(session, ["a", "b"], wait_ms=LONG_MS)
        await eventually(lambda: asked)
        await n.queues.admin.configure("a", {"shards": 2})
        await eventually(lambda: len(shards_of(n.queues, "a")) == 2)
    for args, options in asked:
        shard.take(*args, **options)
    assert await take == []
    assert not shard.parked
    await n.queues.close_session(session)

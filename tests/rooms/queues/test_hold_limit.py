"""
What one connection may hold by itself: no lease that runs is forgotten, and none that is over
counts for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.growth import entries
from support.inspect import shards_of

from tidewarden.errors import Full
from tidewarden.queue import TaskSpec
from tidewarden.queue.sessions import session as module

MOST = 20


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", MOST)


async def take_all(queues: Any, session: Any, count: int, lease_ms: int = 60_000) -> list[Any]:
    for _ in range(count):
        await queues.put("q", TaskSpec())
    return [
        task for _ in range(count) for task in await queues.take(session, ["q"], lease_ms=lease_ms)
    ]


async def is_over(queues: Any, end_ms: int) -> None:
    """Wait until that moment has passed by the store's clock."""
    while (await queues.admin.stats("q"), shards_of(queues, "q")[0].now_ms)[1] <= end_ms:
        pass


@pytest.mark.thorough
async def test_a_lease_that_another_connection_renewed_is_known_to_the_one_that_took_it(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1000)
    queues = (await node("n0")).queues
    mine, theirs = queues.open_session(), queues.open_session()
    (task,) = await take_all(queues, mine, 1, lease_ms=30)
    await queues.touch(theirs, "q", task.id, task.lease, lease_ms=60_000)
    await asyncio.gather(*(queues.put("q", TaskSpec()) for _ in range(1001)))
    await is_over(queues, task.lease_end_ms)
    taken = await queues.take(mine, ["q"], count=1000, lease_ms=1)
    await is_over(queues, taken[-1].lease_end_ms)
    while (await queues.scripts.run("queue.sweep", "q", 0, (1, 1000)))[0]:
        pass  # so many at a time
    await queues.take(mine, ["q"])
    (shard,) = queues.catalog.shards_known()
    assert (task.id, task.lease) in queues.lost_takes.known(shard), (
        "or it is released as a stray while it runs"
    )
    assert len(mine.held) == 2, "what is over is forgotten"
    assert mine.held["q", task.id][1] > task.lease_end_ms
    await queues.close_session(mine)
    assert (await queues.admin.peek("q", task.id))["state"] == "ready", "its connection has gone"


async def test_who_holds_as_much_as_one_may_is_refused_more_until_some_is_over(node: Any) -> None:
    queues = (await node("n0")).queues
    mine, theirs = queues.open_session(), queues.open_session()
    tasks = await take_all(queues, mine, MOST)
    for _ in range(3):
        with pytest.raises(Full, match="holds 20 tasks by itself"):
            await take_all(queues, mine, 1)
    assert await take_all(queues, theirs, 1), "others take on"
    assert await queues.ack(mine, "q", [(tasks[0].id, tasks[0].lease)]) == [1]
    assert len(await queues.take(mine, ["q"])) == 1
    assert len(mine.held) == MOST


async def test_what_ended_through_another_connection_makes_room(node: Any) -> None:
    queues = (await node("n0")).queues
    mine, theirs = queues.open_session(), queues.open_session()
    for _ in range(10):
        tasks = await take_all(queues, mine, MOST)
        assert (
            await queues.ack(theirs, "q", [(task.id, task.lease) for task in tasks]) == [1] * MOST
        )
    assert entries(mine) <= MOST


async def test_locks_count_and_a_lock_in_hand_is_acquired_again(node: Any) -> None:
    queues = (await node("n0")).queues
    locks = queues.locks
    session = queues.open_session()
    fence = await locks.acquire(session, "mine", 60_000, key=b"k")
    await take_all(queues, session, MOST - 1)
    with pytest.raises(Full, match="by itself"):
        await locks.acquire(session, "another", 60_000)
    with pytest.raises(Full, match="by itself"):
        await locks.acquire(session, "another", 60_000, wait_ms=500)
    assert await locks.acquire(session, "mine", 60_000, key=b"k") == fence
    await locks.release(session, "mine", fence)
    assert await locks.acquire(session, "another", 60_000)


async def test_a_consumer_that_lets_its_leases_run_out_takes_on(node: Any) -> None:
    queues = (await node("n0")).queues
    session = queues.open_session()
    for _ in range(5):
        tasks = await take_all(queues, session, MOST, lease_ms=1)
        await is_over(queues, tasks[-1].lease_end_ms)
    assert len(session.held) <= MOST

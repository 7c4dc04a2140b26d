"""
What the queue's room keeps for long stays bounded through its worst case: see docs/testing.md,
"What stays".
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from support.growth import by_container, entries, stored_bytes
from support.inspect import background_tasks_of, link_of, looks_of, shards_of, topics_of
from support.store.proxy import Proxy

from tidewarden.errors import Full, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.shard import Shard
from tidewarden.queue.topics import Topics

HOUR_MS = 3_600_000
ROUNDS = 100_000


@pytest.mark.thorough
async def test_a_session_that_is_left_and_joined_again(node: Any) -> None:
    """Each end of a connection begins a grace of an hour; only the latest is waited for."""
    queues = (await node("n0")).queues
    uuid, first = "", 0
    for n in range(500):
        first = first or (n // 10 and entries(queues))
        session = queues.open_session("bob")
        uuid = await queues.join_session(session, "bob", uuid, HOUR_MS)
        await queues.close_session(session)
    assert queues.sessions.counts()["detached"] == 1
    assert entries(queues) <= first, by_container(queues)


@pytest.mark.thorough
async def test_sessions_that_are_asked_for_while_the_store_is_away(
    node: Any, store_proxy: Proxy, eventually: Any
) -> None:
    """
    A client asks again and again, all through an outage: what was not even sent leaves nothing to
    be undone.
    """
    n0 = await node("n0", url=f"redis://127.0.0.1:{store_proxy.port}/0")
    queues = n0.queues
    store_proxy.ways["down"].lost = store_proxy.ways["up"].lost = True
    store_proxy.cut()
    await eventually(lambda: not n0.link.up)
    sessions = [queues.open_session("bob") for _ in range(300)]
    found = await asyncio.gather(
        *(queues.join_session(one, "bob") for one in sessions), return_exceptions=True
    )
    assert all(isinstance(one, StoreDown) for one in found)
    await asyncio.gather(*(queues.close_session(one) for one in sessions))
    assert len(background_tasks_of(queues)) < 10
    store_proxy.calm()


async def test_topics_count_as_queues_do(node: Any) -> None:
    queues = (await node("n0")).queues
    queues.topics = Topics(queues.catalog, 20, queues.admin.configure)
    for n in range(10):
        await queues.topics.link(f"topic{n}", "q")
    await queues.topics.link("topic9", "another")
    for n in range(10):
        await queues.topics.link(f"further{n}", "q")
    for n in range(100):
        with pytest.raises(Full, match="queues_max"):
            await queues.topics.link(f"over{n}", "q")
    assert len(await queues.topics.all()) == len(topics_of(queues)) == 20
    assert await queues.topics.unlink("topic9", "q")


@pytest.mark.thorough
async def test_consumers_that_come_wait_and_go(node: Any) -> None:
    """
    Each parks a take, waits for a lock, for an end and for room, has a task and a lock in hand, and
    hangs up.
    """
    queues = (await node("n0")).queues
    locks = queues.locks
    await queues.admin.configure("full", {"capacity": 1})
    await queues.put("full", TaskSpec(id="first"))
    owner = queues.open_session()
    await locks.acquire(owner, "taken", HOUR_MS)
    kept: list[int] = []
    stored: list[dict[str, int]] = []
    for n in range(400):
        session = queues.open_session()
        await queues.put("q", TaskSpec(id=f"t{n}"))
        (task,) = await queues.take(session, ["q"])
        await locks.acquire(session, f"l{n}", HOUR_MS)
        waits = [
            queues.take(session, ["q", "empty"], wait_ms=60_000),
            locks.acquire(session, "taken", HOUR_MS, wait_ms=60_000),
            asyncio.ensure_future(queues.wait("q", f"t{n}", 60_000)),
            asyncio.ensure_future(queues.put_waiting("full", TaskSpec(id=f"t{n}"), 60_000)),
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        for wait in waits[2:]:
            wait.cancel()
        await asyncio.gather(*waits[2:], return_exceptions=True)
        await queues.close_session(session)
        await asyncio.gather(*waits, return_exceptions=True)
        assert await queues.admin.delete("q", task.id) == 1
        if n in (99, 399):
            kept.append(entries(queues))
            stored.append(await stored_bytes(link_of(queues)))
    assert kept[1] <= kept[0] + 5, by_container(queues)
    assert sum(stored[1].values()) <= sum(stored[0].values()) + 1_000, stored


@pytest.mark.thorough
async def test_a_queue_that_is_cut_anew_again_and_again(node: Any) -> None:
    """Former shards are forgotten: whoever waited there has asked again."""
    queues = (await node("n0")).queues
    session = queues.open_session()
    for n in range(60):
        await queues.admin.configure("recut", {"shards": 1 + n % 4})
        waiting = queues.take(session, ["recut"], wait_ms=60_000)
        await asyncio.sleep(0)
        waiting.cancel()
    await queues.admin.configure("recut", {"shards": 2})
    while background_tasks_of(queues):
        await asyncio.sleep(0.05)
    gc.collect()
    assert sum(isinstance(one, Shard) and one.queue == "recut" for one in gc.get_objects()) <= 4


async def test_takes_of_one_shard_whose_answers_are_lost(node: Any) -> None:
    """One look at a time, and one more for all that were lost meanwhile."""
    queues = (await node("n0")).queues
    await queues.put("q", TaskSpec())
    (shard,) = shards_of(queues, "q")
    before = entries(queues.lost_takes)
    for _ in range(ROUNDS):
        queues.lost_takes.lost(shard)
    assert entries(queues.lost_takes) <= before + 2, by_container(queues.lost_takes)
    looks = list(looks_of(queues.lost_takes).values())
    assert len(looks) == 1
    looks[0].cancel()
    await asyncio.gather(*looks, return_exceptions=True)


@pytest.mark.thorough
async def test_queues_that_come_and_end(node: Any, eventually: Any) -> None:
    """One for each instance of a program, on the node that ends them and on another."""
    nodes = [(await node(name)).queues for name in ("n0", "n1")]
    kept: list[int] = []
    for n in range(60):
        queue = f"news.{n}"
        await nodes[0].topics.link("news", queue, {"expire_ms": 60_000, "capacity": 9})
        await nodes[0].admin.configure(queue, {"shards": 2})
        for one in nodes:
            session = one.open_session()
            await one.put("news", TaskSpec())
            assert len(await one.take(session, [queue], wait_ms=60_000)) == 1
            await one.close_session(session)
        await nodes[0].dropped.drop(queue, force=True)
        await eventually(lambda queue=queue: queue not in nodes[1].catalog.shards)
        if n in (19, 59):
            kept.append(sum(map(entries, nodes)))
    assert kept[1] <= kept[0] + 5, [by_container(one) for one in nodes]

"""
A queue with a capacity: FULL when it is reached, or a wait for room that what is removed ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import capacity_waits_of

from tidewarden.errors import BadArg, Draining, Exists, Full, TooBig
from tidewarden.queue import TaskSpec

LONG_MS = 60_000


def test_a_shard_at_its_capacity(desk: Any) -> None:
    desk.configure(capacity=3)
    assert desk.put_all(*((f"t{n}", b"", {"delay_ms": n}) for n in range(5))) == [
        1,
        1,
        1,
        b"FULL",
        b"FULL",
    ]
    assert desk.put("t0") == 0, "what is there is kept"
    assert desk.put("t0", if_exists="replace") == 1
    assert desk.put("t0", if_exists="fail") == b"EXISTS"
    row = desk.take_one()
    assert desk.put("t3") == b"FULL", "a leased task counts"
    assert desk.end(row, "bury") == 1
    assert desk.put("made", own=True) == b"FULL", "so does a buried one"
    assert desk.run("queue.delete", row.id, 0, 0) == 1
    assert desk.put("t3") == 1
    desk.configure(capacity=0)
    assert desk.put("t4") == 1
    assert desk.record("roomless") == ""


def test_a_smaller_capacity_than_what_is_there(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(5)))
    desk.configure(capacity=2)
    assert desk.put("x") == b"FULL"
    assert desk.ack(*desk.take(4)) == [1] * 4
    assert desk.put("x") == 1


async def waiting(eventually: Any, n: Any, count: int = 1) -> None:
    """Until so many puts wait on the node, and the shard knows of it."""
    await eventually(lambda: sum(map(len, capacity_waits_of(n.queues).values())) == count)
    for _ in range(5000):
        if (
            n.queues.catalog.holder.encode()
            in (await n.link.call("HGET", "{tw:q:0}:shard", "roomless") or b"").split()
        ):
            return
        await asyncio.sleep(0.002)
    raise AssertionError("nobody waits")


async def full(n: Any, capacity: int = 1) -> tuple[Any, list[Any]]:
    """A queue that holds all it may; its tasks, taken."""
    await n.queues.admin.configure("q", {"capacity": capacity})
    for number in range(capacity):
        await n.queues.put("q", TaskSpec(id=f"first{number}"))
    session = n.queues.open_session()
    return session, await n.queues.take(session, ["q"], count=capacity)


@pytest.mark.parametrize("how", ["ack", "delete", "purge", "configure"])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_put_waits_for_room(node: Any, eventually: Any, how: str, elsewhere: bool) -> None:
    n0 = await node("n0")
    n1 = await node("n1") if elsewhere else n0
    session, (task,) = await full(n1)
    with pytest.raises(Full, match="the queue q is at its capacity"):
        await n0.queues.put("q", TaskSpec(id="a"))
    put = asyncio.ensure_future(n0.queues.put_waiting("q", TaskSpec(id="a"), LONG_MS))
    await waiting(eventually, n0)
    if how == "ack":
        await n1.queues.ack(session, "q", [(task.id, task.lease)])
    elif how == "delete":
        await n1.queues.admin.delete("q", task.id, force=True)
    elif how == "purge":
        await n1.queues.bulk.purge("q", "leased")
    else:
        await n1.queues.admin.configure("q", {"capacity": 2})
    assert await put == "a"
    assert (await n0.queues.admin.peek("q", "a"))["state"] == "ready"
    assert not capacity_waits_of(n0.queues)


async def test_puts_wait_in_the_order_they_came(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    session, tasks = await full(n0, 2)
    puts = []
    for n in range(5):
        puts.append(
            asyncio.ensure_future(n0.queues.put_waiting("q", TaskSpec(id=f"t{n}"), LONG_MS))
        )
        await waiting(eventually, n0, n + 1)
    puts[1].cancel()
    await waiting(eventually, n0, 4)
    order: list[str] = []
    for put in (puts[0], *puts[2:]):
        put.add_done_callback(lambda done: order.append(done.result()))
    while len(order) < 4:
        for task in tasks:
            await n0.queues.ack(session, "q", [(task.id, task.lease)])
        tasks = await n0.queues.take(session, ["q"], count=2, wait_ms=1000)
    assert order == ["t0", "t2", "t3", "t4"]


async def test_a_wait_that_is_over(node: Any) -> None:
    n0 = await node("n0")
    await full(n0)
    with pytest.raises(Full, match="at its capacity"):
        await n0.queues.put_waiting("q", TaskSpec(), 20)
    with pytest.raises(Full):
        await n0.queues.put_waiting("q", TaskSpec(), 0)
    assert not capacity_waits_of(n0.queues)


async def test_a_lost_wake_up_is_covered(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session, (task,) = await full(n1)
    put = asyncio.ensure_future(n0.queues.put_waiting("q", TaskSpec(id="a"), LONG_MS))
    await waiting(eventually, n0)
    await n0.ears.call("UNSUBSCRIBE", "{tw}:wake:n0.1")
    await n1.queues.ack(session, "q", [(task.id, task.lease)])
    n0.queues.wakeups.wake_all()
    assert await put == "a"


async def test_many_puts_through_a_narrow_queue(node: Any) -> None:
    """
    Two nodes put more than there is room for, a consumer takes: everything comes through, once.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"capacity": 3})
    session, seen = n0.queues.open_session(), []
    puts = [
        n.queues.put_waiting("q", TaskSpec(id=f"{n.queues.catalog.holder}-{i}"), LONG_MS)
        for n in (n0, n1)
        for i in range(40)
    ]
    done = asyncio.gather(*puts)
    while len(seen) < 80:
        tasks = await n0.queues.take(session, ["q"], count=2, wait_ms=10_000)
        seen += [task.id for task in tasks]
        await n0.queues.ack(session, "q", [(task.id, task.lease) for task in tasks])
    assert sorted(await done) == sorted(seen)
    assert len(set(seen)) == 80


async def test_what_is_refused(node: Any, eventually: Any) -> None:
    n0 = await node("n0", flags={"limits.waiting_max": "1", "limits.payload_bytes": "10"})
    for task, wait_ms in ((TaskSpec(priority=100), 1), (TaskSpec(), -1), (TaskSpec(), 10**12)):
        with pytest.raises(BadArg):
            await n0.queues.put_waiting("q", task, wait_ms)
    with pytest.raises(TooBig):
        await n0.queues.put_waiting("q", TaskSpec(b"x" * 11), 1)
    await full(n0)
    with pytest.raises(Exists):
        await n0.queues.put_waiting("q", TaskSpec(id="first0", if_exists="fail"), LONG_MS)
    put = asyncio.ensure_future(n0.queues.put_waiting("q", TaskSpec(id="a"), LONG_MS))
    await waiting(eventually, n0)
    with pytest.raises(Full, match="too many puts wait"):
        await n0.queues.put_waiting("q", TaskSpec(id="b"), LONG_MS)
    n0.queues.end_waits()
    with pytest.raises(Draining):
        await put


async def test_a_move_stops_at_the_capacity(node: Any) -> None:
    queues = (await node("n0")).queues
    session = queues.open_session()
    for n in range(5):
        await queues.put("dead", TaskSpec(id=f"t{n}"))
    for task in await queues.take(session, ["dead"], count=5):
        await queues.bury(session, "dead", task.id, task.lease)
    await queues.admin.configure("q", {"capacity": 2})
    with pytest.raises(Full):
        await queues.buried.move("dead", "q", count=5)
    assert (
        (await queues.admin.stats("dead"))["buried"],
        (await queues.admin.stats("q"))["ready"],
    ) == (3, 2)

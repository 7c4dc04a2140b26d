"""
The traps into which other queues fell: here those of several nodes that share a store. See
``traps/test_scripts.py``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from support.inspect import shards_of

from tidewarden.clock import SystemClock
from tidewarden.errors import NotHeld
from tidewarden.queue import TaskSpec

HOUR_MS = 3_600_000


class WrongClock(SystemClock):
    """The clock of a host that is five hours ahead."""

    def unix_ms(self) -> int:
        return super().unix_ms() + 5 * HOUR_MS


async def test_trap_nodes_whose_clocks_differ(node: Any) -> None:
    """dyno-queues compares the times of its clients' clocks; here every time is the store's."""
    right, wrong = await node("n0"), await node("n1", clock=WrongClock())
    await wrong.queues.put("q", TaskSpec(id="a", delay_ms=80, ttl_ms=60_000))
    await right.queues.put("q", TaskSpec(id="b", delay_ms=80, ttl_ms=60_000))
    await wrong.queues.put("later", TaskSpec(id="c", delay_ms=HOUR_MS))
    assert await wrong.queues.take(wrong.queues.open_session(), ["later"]) == []
    for n, expected in ((right, "a"), (wrong, "b")):
        (task,) = await n.queues.take(
            n.queues.open_session(), ["q"], wait_ms=60_000, lease_ms=HOUR_MS
        )
        assert task.id == expected
    assert await right.queues.take(right.queues.open_session(), ["q"]) == [], (
        "the lease of the other goes on"
    )


async def test_trap_ensure_not_atomic(node: Any, eventually: Any) -> None:
    """
    dyno-queues' ensure() looks whether the message is there and then pushes it: of two that do so
    at once, both push.

    Many puts of one id through two nodes, while a consumer takes and acknowledges: it is there
    once, and is done once.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 4})
    await n1.queues.catalog.shard_count("q")
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 4)
    done: list[str] = []
    stop = asyncio.Event()

    async def consume(n: Any) -> None:
        session = n.queues.open_session()
        while not stop.is_set():
            for task in await n.queues.take(session, ["q"], count=3, wait_ms=50):
                done.append(task.id)
                assert await n.queues.ack(session, "q", [(task.id, task.lease)]) == [1]

    consumers = [asyncio.ensure_future(consume(n)) for n in (n0, n1)]
    async with asyncio.timeout(150):
        for name in (f"t{number}" for number in range(10)):
            for after in range(6):
                puts = [n.queues.put("q", TaskSpec(id=name)) for _ in range(5) for n in (n0, n1)]
                assert set(await asyncio.gather(*puts)) == {name}
                while after == 3 and name not in done:  # and twice more when it is done
                    await asyncio.sleep(0.001)
    stop.set()
    await asyncio.gather(*consumers)
    assert sorted(done) == [f"t{n}" for n in range(10)]
    assert (await n0.queues.admin.stats("q"))["count_put"] == 10


async def test_trap_the_same_id_in_several_shards(node: Any, eventually: Any) -> None:
    """
    dyno-queues' default strategy, by its own test: an id pushed three times is popped once by
    shard.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 8})
    await n1.queues.catalog.shard_count("q")
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 8)
    for n in (n0, n1, n0):
        await n.queues.put("q", TaskSpec(id="a"))
    taken = await n1.queues.take(n1.queues.open_session(), ["q"], count=10)
    assert [task.id for task in taken] == ["a"]
    assert await n0.queues.take(n0.queues.open_session(), ["q"], count=10) == []


@pytest.mark.thorough
async def test_trap_duplicate_delivery_after_batch_pop(node: Any) -> None:
    """
    Netflix/conductor#756: a pop of a hundred races the timer that gives back what was not
    acknowledged in time.

    Takes in batches under leases about as long as the work, two sweeps at once: a lease that has
    ended counts for nothing, each task counts once, each number is given once.
    """
    n0, n1 = await node("n0"), await node("n1")
    total, counted, numbers = 300, Counter[str](), list[int]()
    newest: dict[str, int] = {}
    by: dict[str, int] = {}
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=f"t{n:03}")) for n in range(total)))

    async def consume(n: Any, work_s: float) -> None:
        session = n.queues.open_session()
        while sum(counted.values()) < total:
            tasks = await n.queues.take(session, ["q"], count=100, wait_ms=100, lease_ms=30)
            numbers.extend(task.lease for task in tasks)
            newest.update((task.id, max(task.lease, newest.get(task.id, 0))) for task in tasks)
            await asyncio.sleep(work_s)
            if tasks:
                answers = await n.queues.ack(
                    session, "q", [(task.id, task.lease) for task in tasks]
                )
                counted.update(
                    task.id for task, answer in zip(tasks, answers, strict=True) if answer
                )
                by.update(
                    (task.id, task.lease)
                    for task, answer in zip(tasks, answers, strict=True)
                    if answer
                )

    async def sweep(n: Any) -> None:
        while sum(counted.values()) < total:
            await n.queues.scripts.run("queue.sweep", "q", 0, [1, 100])

    n1.queues.catalog.holder = n0.queues.catalog.holder  # two that believe in one epoch
    async with asyncio.timeout(150):
        await asyncio.gather(
            *(consume(n, work_s) for n in (n0, n1) for work_s in (0.0, 0.028, 0.03, 0.032)),
            sweep(n0),
            sweep(n1),
        )
    assert set(counted.values()) == {1}
    assert len(counted) == total
    assert len(numbers) == len(set(numbers))
    assert by == newest, "only the last lease of a task counts"
    assert (await n0.queues.admin.stats("q"))["total"] == 0


async def test_trap_an_orphan_is_rescued_and_runs_twice(node: Any) -> None:
    """
    oban-bg/oban#603 #424: a job that runs for long is taken for an orphan and started anew, and
    both runs are recorded.

    Who touches keeps it; who did not cannot finish, fail, touch or put aside what somebody else
    holds now.
    """
    n0, n1 = await node("n0"), await node("n1")
    slow, other = n0.queues.open_session(), n1.queues.open_session()
    await n0.queues.put("q", TaskSpec(id="a"))
    (task,) = await n0.queues.take(slow, ["q"], lease_ms=60)
    end_ms = await n0.queues.touch(slow, "q", "a", task.lease, 5_000)
    assert end_ms > task.lease_end_ms
    assert await n1.queues.take(other, ["q"], wait_ms=150) == [], "it was prolonged"
    await n0.queues.touch(slow, "q", "a", task.lease, 1)
    (again,) = await n1.queues.take(other, ["q"], wait_ms=60_000)
    assert again.lease > task.lease
    assert await n0.queues.ack(slow, "q", [("a", task.lease)]) == [0]
    for late in (n0.queues.release, n0.queues.fail, n0.queues.bury, n0.queues.touch):
        with pytest.raises(NotHeld):
            await late(slow, "q", "a", task.lease)
    await n0.queues.close_session(slow)
    assert await n1.queues.ack(other, "q", [("a", again.lease)]) == [1]

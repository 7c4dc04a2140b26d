"""A take that waits: which of many gets what, and what becomes of one whose consumer goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import shards_of
from support.queues.parked_takes import LONG_MS, parked, wait_in

from tidewarden.errors import Error
from tidewarden.queue import TaskSpec


async def test_many_waiters_and_one_task_cost_one_script(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n1.queues.catalog.shard_count("q")
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(200)]
    await parked(eventually, n1.queues, 200)
    calls = n1.link.calls
    await n0.queues.put("q", TaskSpec(id="a"))
    await eventually(lambda: sum(take.done() for take in takes) == 1)
    assert takes[0].done(), "the oldest waiter"
    await n1.link.call("PING")
    assert n1.link.calls - calls <= 2 + 1
    n1.queues.end_waits()
    await asyncio.gather(*takes)


@pytest.mark.thorough
async def test_many_waiters_and_many_tasks(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n1.queues.catalog.shard_count("q")
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(100)]
    await parked(eventually, n1.queues, 100)
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=f"t{n:03}")) for n in range(100)))
    tasks = [task.id for take in takes for task in await take]
    assert sorted(tasks) == [f"t{n:03}" for n in range(100)]
    assert tasks[:16] == [f"t{n:03}" for n in range(16)], "oldest waiters first"


async def test_those_who_want_one_task_alone_do_not_stand_in_the_way(
    node: Any, eventually: Any
) -> None:
    n0 = await node()
    await n0.queues.catalog.shard_count("q")
    named = [
        n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS, task_id=f"n{n}")
        for n in range(40)
    ]
    anyone = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 41)
    calls = n0.link.calls
    await n0.queues.put("q", TaskSpec(id="other"))
    assert [task.id for task in await anyone] == ["other"]
    await n0.queues.put("q", TaskSpec(id="n39"))
    assert [task.id for task in await named[39]] == ["n39"]
    assert n0.link.calls - calls < 10
    n0.queues.end_waits()
    await asyncio.gather(*named)


@pytest.mark.parametrize("others", [0, 3])
async def test_who_waits_for_one_task_gets_it_from_whichever_node_puts_it(
    node: Any, eventually: Any, others: int
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    for number in range(others):
        await n1.queues.put("q", TaskSpec(id=f"other{number}"))
    await n0.queues.catalog.shard_count("q")
    wanted = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS, task_id="wanted")
    await parked(eventually, n0.queues, 1)
    began_s = asyncio.get_running_loop().time()
    await n1.queues.put("q", TaskSpec(id="wanted"))
    assert [task.id for task in await wanted] == ["wanted"]
    assert asyncio.get_running_loop().time() - began_s < LONG_MS / 2000


async def test_a_take_over_several_queues_takes_from_the_one_that_has(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session = n1.queues.open_session()
    for n in range(6):
        take = n1.queues.take(session, ["a", "b", "c"], wait_ms=LONG_MS, count=5)
        for queue in "abc":
            await parked(eventually, n1.queues, 1, queue)
        await n0.queues.put("cab"[n % 3], TaskSpec(id=f"t{n}"))
        assert [(task.queue, task.id) for task in await take] == [("cab"[n % 3], f"t{n}")]
        assert not any(
            shard.parked for shards in n1.queues.catalog.shards.values() for shard in shards
        )


async def test_the_wait_ends_empty_when_its_time_is_over(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": 4})
    assert await queues.take(queues.open_session(), ["q"], wait_ms=20) == []
    assert queues.consumer.waiting() == 0
    assert not any(shard.parked for shard in shards_of(queues, "q"))


async def test_a_consumer_that_goes_while_it_waits_takes_nothing(
    node: Any, eventually: Any
) -> None:
    n0 = await node()
    session, take = await wait_in(eventually, n0)
    await n0.queues.close_session(session)
    assert take.cancelled()
    await n0.queues.put("q", TaskSpec(id="a"))
    assert (await n0.queues.admin.stats("q"))["ready"] == 1
    assert n0.queues.consumer.waiting() == 0


@pytest.mark.parametrize("wait_ms", [0, LONG_MS])
async def test_a_consumer_that_goes_while_its_take_is_under_way(
    node: Any, eventually: Any, wait_ms: int
) -> None:
    """What was taken for one already gone goes back, and the attempt does not count."""
    n0 = await node()
    await n0.queues.put("q", TaskSpec(id="a", attempts=1))
    session = n0.queues.open_session()
    take = n0.queues.take(session, ["q"], wait_ms=wait_ms)
    await asyncio.sleep(0)  # sent
    await n0.queues.close_session(session)
    assert take.cancelled()
    (task,) = await n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    assert task.attempt == 1
    shown = await n0.queues.admin.peek("q", "a")
    assert shown["losses"] == 0
    assert (await n0.queues.admin.stats("q"))["count_release"] == 1


async def test_a_consumer_that_goes_when_it_is_woken(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session, take = await wait_in(eventually, n1)
    _, other = await wait_in(eventually, n1)
    shard = shards_of(n1.queues, "q")[0]
    wakes = shard.wakes
    await n0.queues.put("q", TaskSpec(id="a"))
    await eventually(lambda: shard.wakes > wakes)
    await n1.queues.close_session(session)
    assert [task.id for task in await other] == ["a"] or [task.id for task in await take] == ["a"]


async def test_a_consumer_that_goes_before_its_queue_is_known(node: Any) -> None:
    n0 = await node()
    await n0.queues.put("q", TaskSpec(id="a"))
    n1 = await node("n1")
    session = n1.queues.open_session()
    take = n1.queues.take(session, ["q"])
    await n1.queues.close_session(session)
    assert await take == []
    assert (await n0.queues.admin.stats("q"))["ready"] == 1


async def test_a_cancelled_take_of_several_shards_gives_all_back(
    node: Any, eventually: Any
) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"shards": 8})
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=f"t{n}")) for n in range(40)))
    for turns in range(12):
        take = n0.queues.take(n0.queues.open_session(), ["q"], count=40)
        for _ in range(turns):
            await asyncio.sleep(0)
        if take.done():
            break
        take.cancel()
        await eventually(lambda take=take: take.cancelled())
    await n0.link.call("PING")
    await n0.link.call("PING")
    stats = await n0.queues.admin.stats("q")
    assert stats["total"] == 40
    assert stats.get("count_loss", 0) == 0


async def test_a_queue_cut_anew_sends_its_waiters_back(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n1)
    await n0.queues.admin.configure("q", {"shards": 4})
    assert await take == []
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 4)
    _, take = await wait_in(eventually, n1)
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_what_one_shard_gave_is_not_kept_back_for_anothers_trouble(
    node: Any, eventually: Any
) -> None:
    n0 = await node()
    await n0.queues.put("good", TaskSpec(id="a"))
    await n0.queues.catalog.shard_count("bad")
    await n0.link.call("SET", "{tw:bad:0}:shard", "no hash")
    session = n0.queues.open_session()
    (task,) = await n0.queues.take(session, ["good", "bad"], count=2, wait_ms=LONG_MS)
    assert task.id == "a"
    with pytest.raises(Error, match="WRONGTYPE"):
        await n0.queues.take(session, ["good", "bad"], wait_ms=LONG_MS)
    await n0.link.call("DEL", "{tw:bad:0}:shard")


async def test_of_several_shards_those_that_hold_nothing_are_asked_once(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 8})
    first = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 1)
    for number in range(3):
        await n1.queues.put("q", TaskSpec(id=f"a{number}"))
        assert [task.id for task in await first] == [f"a{number}"]
        calls = n0.link.calls
        first = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
        await parked(eventually, n0.queues, 1)
        assert n0.link.calls - calls <= 2, (
            "the shard that gave one may have more; the others are known to be empty"
        )
    first.cancel()
    # What came while nobody waited is found, in whichever shard, and so is what falls due.
    await asyncio.gather(
        *(n1.queues.put("q", TaskSpec(id=f"b{n}", delay_ms=50 * (n % 2))) for n in range(16))
    )
    session, found = n0.queues.open_session(), []
    while len(found) < 16:
        found += [task.id for task in await n0.queues.take(session, ["q"], count=4, wait_ms=5000)]
    assert sorted(found) == sorted(f"b{n}" for n in range(16))


async def test_shards_that_had_nothing_are_asked_last_and_not_for_ever(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 4})
    session = n0.queues.open_session()
    assert await n0.queues.take(session, ["q"]) == []
    known = n0.queues.catalog.shards_known()
    assert all(shard.known_empty.dry(shard) for shard in known)
    for i in range(200):
        await n0.queues.put("q", TaskSpec(b"x", id=f"a{i}~2"))
    assert [shard.known_empty.dry(shard) for shard in known] == [True, True, False, True]
    for _ in range(8):
        assert (await n0.queues.take(session, ["q"]))[0].id.endswith("~2")
    calls = n0.link.calls
    for _ in range(12):
        await n0.queues.take(session, ["q"])
    assert n0.link.calls - calls < 12 + 4 * 3, (
        "but for a round in four, the first that is asked has one"
    )
    assert await n1.queues.catalog.shard_count("q") == 4
    await n1.queues.put("q", TaskSpec(b"x", id="b~0"))  # nobody here is told
    found = [(await n0.queues.take(session, ["q"]))[0].id for _ in range(20)]
    assert "b~0" in found


async def test_a_shard_that_gave_less_than_was_asked_for_is_passed_by_until_another_node_puts(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 4})
    session = n0.queues.open_session()
    assert await n0.queues.take(session, ["q"], count=5, wait_ms=1) == []
    await n1.queues.put("q", TaskSpec(b"x", id="a~2"))
    assert len(await n0.queues.take(session, ["q"], count=5, wait_ms=10_000)) == 1
    calls = n0.link.calls
    waiting = n0.queues.take(session, ["q"], count=5, wait_ms=10_000)
    await eventually(lambda: any(shard.parked for shard in n0.queues.catalog.shards_known()))
    assert n0.link.calls == calls, "nobody was asked: all four are known to hold nothing"
    await n1.queues.put("q", TaskSpec(b"x", id="b~2"))
    assert [task.id for task in await waiting] == ["b~2"]


def test_who_gets_less_is_told_of_more(desk: Any) -> None:
    """
    By the third argument of a take, 2: registered where nothing is left, told at once where there
    may be more.
    """
    desk.put("a")
    assert len(desk.run("queue.take", 200, 5, 0, "2", "")[0]) == 1
    assert (desk.woke, desk.record("waiting")) == (False, desk.holder)
    desk.put("b", ttl_ms=1000)
    desk.put("c", ttl_ms=1000)
    desk.put("d")
    desk.now += 1000  # one of the two is buried before, the other when it is picked
    assert desk.run("queue.take", 1, 1, 0, "2", "") == [[]]
    assert desk.woke
    assert desk.run("queue.take", 1, 1, 0, "2", "")[0][0][0] == b"d"
    assert not desk.woke

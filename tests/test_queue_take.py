"""Waiting takes: woken by whatever makes a task ready, at no cost while nothing happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidewarden.errors import Error
from tidewarden.queue import Changes, NewTask

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


async def test_woken_by_a_put_on_the_same_node(node: Any, eventually: Any) -> None:
    n0 = await node()
    _, take = await wait_in(eventually, n0)
    await n0.queues.put("q", NewTask(id="a"))
    assert [task.id for task in await take] == ["a"]


@pytest.mark.parametrize("shards", [1, 16])
async def test_woken_by_a_put_on_another_node(node: Any, eventually: Any, shards: int) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.configure("q", {"shards": shards})
    await eventually(lambda: len(n1.queues._shards.get("q", ())) == shards)
    _, take = await wait_in(eventually, n1)
    await n0.queues.put("q", NewTask(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_woken_again_and_again(node: Any, eventually: Any) -> None:
    """A node that was told takes, and registers again when it finds nothing."""
    n0, n1 = await node("n0"), await node("n1")
    for n in range(5):
        session, take = await wait_in(eventually, n1)
        await n0.queues.put("q", NewTask(id=f"a{n}"))
        (task,) = await take
        assert await n1.queues.ack(session, "q", [(task.id, task.lease)]) == [1]


@pytest.mark.parametrize("putter", ["n0", "n1"])
async def test_woken_when_a_task_falls_due(node: Any, eventually: Any, putter: str) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n0)
    await {"n0": n0, "n1": n1}[putter].queues.put("q", NewTask(id="a", delay_ms=60))
    (task,) = await take
    assert task.id == "a"


async def test_woken_for_an_earlier_task_than_it_slept_for(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n0)
    await n1.queues.put("q", NewTask(id="late", delay_ms=LONG_MS))
    await n1.queues.put("q", NewTask(id="soon", delay_ms=40))
    assert [task.id for task in await take] == ["soon"]


async def test_woken_when_another_nodes_lease_ends(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", NewTask(id="a"))
    await n0.queues.take(n0.queues.open_session(), ["q"], lease_ms=60)
    _, take = await wait_in(eventually, n1)
    (task,) = await take
    assert (task.id, task.attempt) == ("a", 2)


async def test_woken_by_a_lease_taken_while_it_waits(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", NewTask(id="a", delay_ms=10**6))
    _, take = await wait_in(eventually, n1)
    await n0.queues.take(n0.queues.open_session(), ["q"], lease_ms=40, task_id="a")
    assert [task.attempt for task in await take] == [2]


async def test_woken_by_release_fail_kick_update_and_replace(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", NewTask(id="a"))
    session, held = n0.queues.open_session(), []
    held = await n0.queues.take(session, ["q"])

    async def woken(action: Any) -> None:
        nonlocal session, held
        other, take = await wait_in(eventually, n1)
        await action()
        session, held = other, await take
        assert [task.id for task in held] == ["a"]

    await woken(lambda: n0.queues.release(session, "q", "a", held[0].lease))
    await woken(lambda: n1.queues.fail(session, "q", "a", held[0].lease))
    await n0.queues.bury(session, "q", "a", held[0].lease)
    await woken(lambda: n0.queues.kick("q", count=1))
    await n0.queues.release(session, "q", "a", held[0].lease, delay_ms=10**6)
    await woken(lambda: n0.queues.update("q", "a", Changes(delay_ms=0)))
    await n0.queues.release(session, "q", "a", held[0].lease, delay_ms=10**6)
    await woken(lambda: n0.queues.put("q", NewTask(id="a", if_exists="replace")))


@pytest.mark.parametrize("where", ["n0", "n1"])
async def test_woken_when_a_consumer_disconnects(node: Any, eventually: Any, where: str) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", NewTask(id="a"))
    session = n0.queues.open_session()
    await n0.queues.take(session, ["q"])
    _, take = await wait_in(eventually, {"n0": n0, "n1": n1}[where])
    await n0.queues.close_session(session)
    (task,) = await take
    assert (task.id, task.attempt) == ("a", 1)


async def test_woken_when_a_pause_ends_or_is_ended(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.pause("q")
    await n0.queues.put("q", NewTask(id="a"))
    session, take = await wait_in(eventually, n1)
    await n0.queues.resume("q")
    (task,) = await take
    await n0.queues.pause("q", 60)
    await n1.queues.release(session, "q", "a", task.lease)
    _, take = await wait_in(eventually, n1)
    assert [task.id for task in await take] == ["a"]


async def test_puts_into_a_paused_queue_wake_nobody(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.pause("q")
    _, take = await wait_in(eventually, n1)
    calls = n1.link.calls
    for n in range(10):
        await n0.queues.put("q", NewTask(id=f"a{n}"))
    assert await n1.ears.call("PING")
    assert await n1.link.call("PING") == b"PONG"
    assert n1.link.calls == calls + 1
    await n0.queues.resume("q")
    assert [task.id for task in await take] == ["a0"]


async def test_woken_when_a_node_dies(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", NewTask(id="a"))
    await n0.queues.take(n0.queues.open_session(), ["q"])
    _, take = await wait_in(eventually, n1)
    await n1.queues.script("queue.reap", "q", 0, [1, "n0", 1, 100])
    assert [task.id for task in await take] == ["a"]


async def test_nothing_is_polled(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.configure("q", {"shards": 4})
    await eventually(lambda: len(n1.queues._shards.get("q", ())) == 4)
    await n0.queues.put("q", NewTask(id="far", delay_ms=10**6))
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(50)]
    await parked(eventually, n1.queues, 50)
    calls = n1.link.calls, n1.ears.calls, n0.link.calls
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.15
    await eventually(lambda: loop.time() > end)
    assert (n1.link.calls, n1.ears.calls, n0.link.calls) == calls
    n1.queues.end_waits()
    assert await asyncio.gather(*takes) == [[]] * 50


async def test_a_wake_up_between_the_answer_and_the_parking_is_not_lost(node: Any, eventually: Any) -> None:
    """The put's message arrives while the take's empty answer is not yet read: it asks again instead of sleeping."""
    n0 = await node()
    await n0.queues.put("q", NewTask(id="first"))
    await n0.queues.take(n0.queues.open_session(), ["q"])
    shard = n0.queues._shards["q"][0]
    for n in range(20):
        take = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
        await asyncio.sleep(0)  # the take is on its way, and the put behind it in the same connection
        put = n0.queues.put("q", NewTask(id=f"a{n}"))
        assert [task.id for task in await take] == [f"a{n}"]
        await put
    assert not shard.parked


async def test_a_message_that_comes_while_the_take_is_asked_is_not_lost(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.configure("q", {"shards": 3})
    await eventually(lambda: len(n1.queues._shards.get("q", ())) == 3)
    for n in range(30):
        take = n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS)
        for _ in range(n % 6):
            await asyncio.sleep(0)
        await n0.queues.put("q", NewTask(id=f"a{n}"))
        assert [task.id for task in await take] == [f"a{n}"]


async def test_many_waiters_and_one_task_cost_one_script(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n1.queues.shards("q")
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(200)]
    await parked(eventually, n1.queues, 200)
    calls = n1.link.calls
    await n0.queues.put("q", NewTask(id="a"))
    await eventually(lambda: sum(take.done() for take in takes) == 1)
    assert takes[0].done(), "the oldest waiter"
    await n1.link.call("PING")
    assert n1.link.calls - calls <= 2 + 1
    n1.queues.end_waits()
    await asyncio.gather(*takes)


async def test_many_waiters_and_many_tasks(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n1.queues.shards("q")
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(100)]
    await parked(eventually, n1.queues, 100)
    await asyncio.gather(*(n0.queues.put("q", NewTask(id=f"t{n:03}")) for n in range(100)))
    tasks = [task.id for take in takes for task in await take]
    assert sorted(tasks) == [f"t{n:03}" for n in range(100)]
    assert tasks[:16] == [f"t{n:03}" for n in range(16)], "oldest waiters first"


async def test_those_who_want_one_task_alone_do_not_stand_in_the_way(node: Any, eventually: Any) -> None:
    n0 = await node()
    await n0.queues.shards("q")
    named = [n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS, task_id=f"n{n}") for n in range(40)]
    anyone = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    await parked(eventually, n0.queues, 41)
    calls = n0.link.calls
    await n0.queues.put("q", NewTask(id="other"))
    assert [task.id for task in await anyone] == ["other"]
    await n0.queues.put("q", NewTask(id="n39"))
    assert [task.id for task in await named[39]] == ["n39"]
    assert n0.link.calls - calls < 10
    n0.queues.end_waits()
    await asyncio.gather(*named)


async def test_a_take_over_several_queues_takes_from_the_one_that_has(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session = n1.queues.open_session()
    for n in range(6):
        take = n1.queues.take(session, ["a", "b", "c"], wait_ms=LONG_MS, count=5)
        for queue in "abc":
            await parked(eventually, n1.queues, 1, queue)
        await n0.queues.put("cab"[n % 3], NewTask(id=f"t{n}"))
        assert [(task.queue, task.id) for task in await take] == [("cab"[n % 3], f"t{n}")]
        assert not any(shard.parked for shards in n1.queues._shards.values() for shard in shards)


async def test_the_wait_ends_empty_when_its_time_is_over(node: Any) -> None:
    queues = (await node()).queues
    await queues.configure("q", {"shards": 4})
    assert await queues.take(queues.open_session(), ["q"], wait_ms=20) == []
    assert queues.waiting() == 0
    assert not any(shard.parked for shard in queues._shards["q"])


async def test_a_consumer_that_goes_while_it_waits_takes_nothing(node: Any, eventually: Any) -> None:
    n0 = await node()
    session, take = await wait_in(eventually, n0)
    await n0.queues.close_session(session)
    assert take.cancelled()
    await n0.queues.put("q", NewTask(id="a"))
    assert (await n0.queues.stats("q"))["ready"] == 1
    assert n0.queues.waiting() == 0


@pytest.mark.parametrize("wait_ms", [0, LONG_MS])
async def test_a_consumer_that_goes_while_its_take_is_under_way(node: Any, eventually: Any, wait_ms: int) -> None:
    """What was taken for one already gone goes back, and the attempt does not count."""
    n0 = await node()
    await n0.queues.put("q", NewTask(id="a", attempts=1))
    session = n0.queues.open_session()
    take = n0.queues.take(session, ["q"], wait_ms=wait_ms)
    await asyncio.sleep(0)  # sent
    await n0.queues.close_session(session)
    assert take.cancelled()
    (task,) = await n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    assert task.attempt == 1
    shown = await n0.queues.peek("q", "a")
    assert shown["losses"] == 0
    assert (await n0.queues.stats("q"))["count_release"] == 1


async def test_a_consumer_that_goes_when_it_is_woken(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    session, take = await wait_in(eventually, n1)
    _, other = await wait_in(eventually, n1)
    shard = n1.queues._shards["q"][0]
    wakes = shard.wakes
    await n0.queues.put("q", NewTask(id="a"))
    await eventually(lambda: shard.wakes > wakes)
    await n1.queues.close_session(session)
    assert [task.id for task in await other] == ["a"] or [task.id for task in await take] == ["a"]


async def test_a_consumer_that_goes_before_its_queue_is_known(node: Any) -> None:
    n0 = await node()
    await n0.queues.put("q", NewTask(id="a"))
    n1 = await node("n1")
    session = n1.queues.open_session()
    take = n1.queues.take(session, ["q"])
    await n1.queues.close_session(session)
    assert await take == []
    assert (await n0.queues.stats("q"))["ready"] == 1


async def test_a_cancelled_take_of_several_shards_gives_all_back(node: Any, eventually: Any) -> None:
    n0 = await node()
    await n0.queues.configure("q", {"shards": 8})
    await asyncio.gather(*(n0.queues.put("q", NewTask(id=f"t{n}")) for n in range(40)))
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
    stats = await n0.queues.stats("q")
    assert stats["total"] == 40
    assert stats.get("count_loss", 0) == 0


async def test_missed_messages_are_made_up_for_by_waking_all(node: Any, eventually: Any) -> None:
    """The ears were deaf for a while: when they hear again, every waiting take asks again."""
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n1)
    n1.ears._transport.abort()
    await n0.queues.put("q", NewTask(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_a_queue_cut_anew_sends_its_waiters_back(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n1)
    await n0.queues.configure("q", {"shards": 4})
    assert await take == []
    await eventually(lambda: len(n1.queues._shards["q"]) == 4)
    _, take = await wait_in(eventually, n1)
    await n0.queues.put("q", NewTask(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_what_one_shard_gave_is_not_kept_back_for_anothers_trouble(node: Any, eventually: Any) -> None:
    n0 = await node()
    await n0.queues.put("good", NewTask(id="a"))
    await n0.queues.shards("bad")
    await n0.link.call("SET", "{tw:bad:0}:shard", "no hash")
    session = n0.queues.open_session()
    (task,) = await n0.queues.take(session, ["good", "bad"], count=2, wait_ms=LONG_MS)
    assert task.id == "a"
    with pytest.raises(Error, match="WRONGTYPE"):
        await n0.queues.take(session, ["good", "bad"], wait_ms=LONG_MS)
    await n0.link.call("DEL", "{tw:bad:0}:shard")

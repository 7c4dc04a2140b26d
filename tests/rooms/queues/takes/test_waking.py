"""
Waiting takes are woken by whatever makes a task ready, at no cost while nothing happens.

What wakes one, step by step, is told in ``transcripts/waking``; here is what else must hold.
"""

from __future__ import annotations

import asyncio
from typing import Any

from support.inspect import FLY, flying_of, shards_of, transport_of
from support.queues.parked_takes import LONG_MS, parked, wait_in

from tidewarden.queue import Changes, TaskSpec


async def test_woken_by_a_put_on_another_node_into_one_of_many_shards(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 16})
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 16)
    _, take = await wait_in(eventually, n1)
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_woken_again_and_again(node: Any, eventually: Any) -> None:
    """A node that was told takes, and registers again when it finds nothing."""
    n0, n1 = await node("n0"), await node("n1")
    for n in range(5):
        session, take = await wait_in(eventually, n1)
        await n0.queues.put("q", TaskSpec(id=f"a{n}"))
        (task,) = await take
        assert await n1.queues.ack(session, "q", [(task.id, task.lease)]) == [1]


async def test_woken_when_a_task_of_the_same_node_falls_due(node: Any, eventually: Any) -> None:
    n0 = await node("n0")
    _, take = await wait_in(eventually, n0)
    await n0.queues.put("q", TaskSpec(id="a", delay_ms=60))
    (task,) = await take
    assert task.id == "a"


async def test_woken_for_an_earlier_task_than_it_slept_for(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n0)
    await n1.queues.put("q", TaskSpec(id="late", delay_ms=LONG_MS))
    await n1.queues.put("q", TaskSpec(id="soon", delay_ms=40))
    assert [task.id for task in await take] == ["soon"]


async def test_woken_by_a_lease_taken_while_it_waits(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a", delay_ms=10**6))
    _, take = await wait_in(eventually, n1)
    await n0.queues.take(n0.queues.open_session(), ["q"], lease_ms=40, task_id="a")
    assert [task.attempt for task in await take] == [2]


async def test_woken_by_release_fail_kick_update_and_replace(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
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
    await woken(lambda: n0.queues.buried.kick("q", count=1))
    await n0.queues.release(session, "q", "a", held[0].lease, delay_ms=10**6)
    await woken(lambda: n0.queues.admin.update("q", "a", Changes(delay_ms=0)))
    await n0.queues.release(session, "q", "a", held[0].lease, delay_ms=10**6)
    await woken(lambda: n0.queues.put("q", TaskSpec(id="a", if_exists="replace")))


async def test_woken_when_a_consumer_of_the_same_node_disconnects(
    node: Any, eventually: Any
) -> None:
    n0 = await node("n0")
    await n0.queues.put("q", TaskSpec(id="a"))
    session = n0.queues.open_session()
    await n0.queues.take(session, ["q"])
    _, take = await wait_in(eventually, n0)
    await n0.queues.close_session(session)
    (task,) = await take
    assert (task.id, task.attempt) == ("a", 1)


async def test_who_waits_asks_behind_a_hangup_and_not_after_its_answer(
    node: Any, eventually: Any
) -> None:
    n0 = await node()
    holder, sent = n0.queues.open_session(), []
    await n0.queues.put("q", TaskSpec(id="a"))
    assert len(await n0.queues.take(holder, ["q"])) == 1
    _, take = await wait_in(eventually, n0)
    (shard,) = shards_of(n0.queues, "q")
    fly = getattr(shard, FLY)
    shard._fly = lambda name, *rest: (sent.append((name, flying_of(shard))), fly(name, *rest))
    await n0.queues.close_session(holder)
    assert [task.id for task in await take] == ["a"]
    assert sent[:2] == [("queue.end", 0), ("queue.take", 1)], (
        "the take left while the end was under way"
    )


async def test_woken_when_a_pause_ends_or_is_ended(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.pause("q")
    await n0.queues.put("q", TaskSpec(id="a"))
    session, take = await wait_in(eventually, n1)
    await n0.queues.admin.resume("q")
    (task,) = await take
    await n0.queues.admin.pause("q", 60)
    await n1.queues.release(session, "q", "a", task.lease)
    _, take = await wait_in(eventually, n1)
    assert [task.id for task in await take] == ["a"]


async def test_puts_into_a_paused_queue_wake_nobody(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.pause("q")
    _, take = await wait_in(eventually, n1)
    calls = n1.link.calls
    for n in range(10):
        await n0.queues.put("q", TaskSpec(id=f"a{n}"))
    assert await n1.ears.call("PING")
    assert await n1.link.call("PING") == b"PONG"
    assert n1.link.calls == calls + 1
    await n0.queues.admin.resume("q")
    assert [task.id for task in await take] == ["a0"]


async def test_nothing_is_polled(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 4})
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 4)
    await n0.queues.put("q", TaskSpec(id="far", delay_ms=10**6))
    takes = [n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS) for _ in range(50)]
    await parked(eventually, n1.queues, 50)
    calls = n1.link.calls, n1.ears.calls, n0.link.calls
    loop = asyncio.get_running_loop()
    end = loop.time() + 0.15
    await eventually(lambda: loop.time() > end)
    assert (n1.link.calls, n1.ears.calls, n0.link.calls) == calls
    n1.queues.end_waits()
    assert await asyncio.gather(*takes) == [[]] * 50


async def test_a_wake_up_between_the_answer_and_the_parking_is_not_lost(
    node: Any, eventually: Any
) -> None:
    """
    The put's message arrives while the take's empty answer is not yet read: it asks again instead
    of sleeping.
    """
    n0 = await node()
    await n0.queues.put("q", TaskSpec(id="first"))
    await n0.queues.take(n0.queues.open_session(), ["q"])
    shard = shards_of(n0.queues, "q")[0]
    for n in range(20):
        take = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
        # the take is on its way, and the put behind it in the same connection
        await asyncio.sleep(0)
        put = n0.queues.put("q", TaskSpec(id=f"a{n}"))
        assert [task.id for task in await take] == [f"a{n}"]
        await put
    assert not shard.parked


async def test_a_message_that_comes_while_the_take_is_asked_is_not_lost(
    node: Any, eventually: Any
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"shards": 3})
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 3)
    for n in range(30):
        take = n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=LONG_MS)
        for _ in range(n % 6):
            await asyncio.sleep(0)
        await n0.queues.put("q", TaskSpec(id=f"a{n}"))
        assert [task.id for task in await take] == [f"a{n}"]


async def test_missed_messages_are_made_up_for_by_waking_all(node: Any, eventually: Any) -> None:
    """The ears were deaf for a while: when they hear again, every waiting take asks again."""
    n0, n1 = await node("n0"), await node("n1")
    _, take = await wait_in(eventually, n1)
    transport_of(n1.ears).abort()
    await n0.queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await take] == ["a"]


async def test_an_older_reply_that_is_read_late_hides_nothing(node: Any) -> None:
    """
    The sweep's connection is another than the takes': what it was told may be of before what they
    know.
    """
    n0 = await node()
    await n0.queues.put("q", TaskSpec(id="a", delay_ms=10**6))
    (shard,) = shards_of(n0.queues, "q")
    loop, now_ms = asyncio.get_running_loop(), shard.now_ms + 10
    shard.on_shard_state(now_ms, now_ms + 2000, False)
    for older in (-1, now_ms + 60_000):
        shard.on_shard_state(now_ms - 5, older, False)
        assert shard.due_by(loop.time() + 2.1)
        assert shard.now_ms == now_ms
    shard.on_shard_state(now_ms - 5, now_ms + 995, False)
    assert shard.due_by(loop.time() + 1.1), "earlier than is known: it may be"
    shard.on_shard_state(now_ms - 5, now_ms - 5, False)
    shard.on_shard_state(now_ms - 5, now_ms + 60_000, False)
    assert not shard.due_by(loop.time() + 5), "what has come is no event any more"
    shard.on_shard_state(now_ms - 3_600_000, -1, False)
    assert shard.now_ms == now_ms - 3_600_000, "the store's clock has stepped back"

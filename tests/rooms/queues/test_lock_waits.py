"""Those who wait for a lock: who gets it next, at what cost, and what comes of one that goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import shards_of
from support.queues.waiting_locks import LONG_MS, locks_of, waits_noted

from tidewarden.errors import Draining, NotFound, NotHeld, StoreDown
from tidewarden.queue.locks import QUEUE


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ["release", "disconnect"])
async def test_a_waiter_gets_it_at_the_end_of_the_hold(
    node: Any, how: str, elsewhere: bool
) -> None:
    n0 = await node("n0")
    n1 = await node("n1") if elsewhere else n0
    one, two = locks_of(n0), locks_of(n1)
    here, there = n0.queues.open_session(), n1.queues.open_session()
    fence = await one.acquire(here, "a", LONG_MS)
    assert fence
    assert await two.acquire(there, "a", LONG_MS) is None
    waiting = two.acquire(there, "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    if how == "release":
        await one.release(here, "a", fence)
        with pytest.raises(NotHeld, match=f"the lock a is not held under the fence {fence}"):
            await one.release(here, "a", fence)
    else:
        await n0.queues.close_session(here)
    got = await waiting
    assert got is not None
    assert got > fence
    await waits_noted(n0, 0)
    assert (await two.peek("a"))["node"] == ("n1" if elsewhere else "n0")
    await n1.queues.close_session(there)
    with pytest.raises(NotFound):
        await one.peek("a")


async def test_those_who_wait_on_a_node_are_served_in_their_order(node: Any) -> None:
    n0 = await node()
    locks = locks_of(n0)
    session = n0.queues.open_session()
    fence = await locks.acquire(session, "a", LONG_MS)
    order: list[int] = []

    async def one(number: int) -> None:
        got = await locks.acquire(session, "a", LONG_MS, wait_ms=LONG_MS)
        assert got
        order.append(number)
        assert await locks.acquire(session, "a", LONG_MS) is None, (
            "who does not wait goes past nobody"
        )
        await locks.release(session, "a", got)

    tasks = [asyncio.ensure_future(one(number)) for number in range(20)]
    await waits_noted(n0, 1)
    assert locks.waiting == 20
    tasks[5].cancel()
    await locks.release(session, "a", fence)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [number for number in range(20) if number != 5]
    assert (locks.waiting, session.held, session.takes) == (0, {}, set())


@pytest.mark.thorough
async def test_one_release_costs_one_try_however_many_wait(node: Any) -> None:
    """
    200 wait for as many locks of few shards, and twenty for the same: a release wakes one, and
    nobody else asks.
    """
    n0, n1 = await node("n0"), await node("n1")
    holder, waiter = locks_of(n0), locks_of(n1, waiting_max=1000)
    here, there = n0.queues.open_session(), n1.queues.open_session()
    names = [f"lock{n}" for n in range(200)]
    fences = await asyncio.gather(*(holder.acquire(here, name, LONG_MS) for name in names))
    waits = [
        waiter.acquire(there, name, LONG_MS, wait_ms=LONG_MS) for name in [*names, *["lock0"] * 20]
    ]
    await waits_noted(n0, 200)
    asked: list[str] = []
    for i in range(await n1.queues.catalog.shard_count(QUEUE)):
        shard = shards_of(n1.queues, QUEUE)[i]
        original = shard.batched
        shard.batched = lambda name, *args, original=original: (
            asked.append(args[0]),
            original(name, *args),
        )[1]
    await holder.release(here, "lock0", fences[0])
    assert await waits[0]
    await waits_noted(n0, 200)  # the next in line has been noted in its turn
    await asyncio.sleep(0.1)
    assert asked == ["lock0", "lock0"], "the one that got it, and the next of its line"
    for wait in waits[1:]:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await waits_noted(n0, 0)
    await asyncio.gather(n0.queues.close_session(here), n1.queues.close_session(there))


async def test_the_end_of_a_lease_needs_nobody_to_sweep(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    gone, locks = locks_of(n0), locks_of(n1)
    session = n1.queues.open_session()
    old = await gone.acquire(n0.queues.open_session(), "a", 60)
    assert old
    got = await locks.acquire(session, "a", LONG_MS, wait_ms=LONG_MS)
    assert got is not None
    assert got > old
    with pytest.raises(NotHeld):
        await gone.renew(n0.queues.open_session(), "a", old, 1000)
    await locks.release(session, "a", got)


async def test_a_renewed_lock_is_waited_for_longer(node: Any) -> None:
    n0 = await node()
    locks = locks_of(n0)
    here, there = n0.queues.open_session(), n0.queues.open_session()
    fence = await locks.acquire(here, "a", 80)
    assert fence
    waiting = locks.acquire(there, "a", LONG_MS, wait_ms=400)
    for _ in range(10):
        await asyncio.sleep(0.03)
        assert await locks.renew(here, "a", fence, 2000) > 0
    assert await waiting is None
    await waits_noted(n0, 0)
    assert here.held[QUEUE, "a"][0] == fence
    await n0.queues.close_session(here)
    assert await locks.acquire(there, "a", LONG_MS), "the renewed hold ended with its session"


async def test_a_waiter_that_goes_takes_nothing(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    locks, others = locks_of(n0), locks_of(n1)
    here, gone, last = n0.queues.open_session(), n0.queues.open_session(), n1.queues.open_session()
    fence = await locks.acquire(here, "a", LONG_MS)
    left_alone = locks.acquire(gone, "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    waiting = others.acquire(last, "a", LONG_MS, wait_ms=LONG_MS)
    await n0.queues.close_session(gone)
    assert fence
    await locks.release(here, "a", fence)
    assert await waiting
    assert left_alone.cancelled()
    assert not gone.held
    await others.release(last, "a", (await others.peek("a"))["fence"])


@pytest.mark.parametrize("wait_ms", [0, LONG_MS])
async def test_what_was_acquired_for_one_already_gone_is_given_back(
    node: Any, eventually: Any, wait_ms: int
) -> None:
    n0 = await node()
    locks = locks_of(n0)
    for how in ("cancel", "close"):
        session = n0.queues.open_session()
        asked = locks.acquire(session, "a", LONG_MS, wait_ms=wait_ms)
        await asyncio.sleep(0)  # the script is on its way
        await asyncio.sleep(0)
        if how == "cancel":
            asked.cancel()
        else:
            await n0.queues.close_session(session)
        await asyncio.gather(asked, return_exceptions=True)
        other = n0.queues.open_session()
        fence = await locks.acquire(other, "a", LONG_MS, wait_ms=5000)
        assert fence
        assert not session.held
        await locks.release(other, "a", fence)


async def test_a_lost_wake_up_is_covered(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    here, there = n0.queues.open_session(), n1.queues.open_session()
    fence = await one.acquire(here, "a", LONG_MS)
    assert fence
    waiting = two.acquire(there, "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    await n1.ears.call("UNSUBSCRIBE", "{tw}:wake:n1.1")
    await one.release(here, "a", fence)
    n1.queues.wakeups.wake_all()  # what the daemon does after each connect
    assert await waiting


async def test_an_answer_lost_on_the_way_from_the_store(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The script ran, its answer did not come: a waiting acquire asks again and finds that the lock is
    its own.
    """
    n0 = await node()
    locks = locks_of(n0)
    session = n0.queues.open_session()
    shard = await n0.queues.catalog.shard(QUEUE, "a")
    ask, lost = shard.batched, []

    def losing(name: str, *args: Any) -> asyncio.Future[Any]:
        if lost:
            return ask(name, *args)
        lost.append(ask(name, *args))
        broken: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broken.set_exception(StoreDown("the connection broke"))
        return broken

    monkeypatch.setattr(shard, "batched", losing)
    fence = await locks.acquire(session, "a", LONG_MS, wait_ms=LONG_MS)
    assert fence == (await lost[0])[0]
    await locks.release(session, "a", fence)
    for wait_ms in (0, 100):
        lost.clear()
        with pytest.raises(StoreDown):
            await locks.acquire(session, "a", 5000, wait_ms=wait_ms)
        assert (await locks.peek("a"))["fence"] == (await lost[0])[0], (
            "nobody's, until its lease ends"
        )
        await locks.release(session, "a", (await lost[0])[0])
    await waits_noted(n0, 0)


async def test_a_node_that_goes_down_waits_for_nothing(node: Any) -> None:
    n0 = await node()
    locks = locks_of(n0)
    session = n0.queues.open_session()
    await locks.acquire(session, "a", LONG_MS)
    waits = [locks.acquire(session, "a", LONG_MS, wait_ms=LONG_MS) for _ in range(3)]
    await waits_noted(n0, 1)
    n0.queues.end_waits()
    assert {type(got) for got in await asyncio.gather(*waits, return_exceptions=True)} == {Draining}
    await waits_noted(n0, 0)

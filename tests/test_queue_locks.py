"""Locks: who holds one, under which fence, and who is next when it ends, on one node or on several."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tidewarden.errors import BadArg, Draining, Error, Full, NotFound, NotHeld, Stale, StoreDown
from tidewarden.queue.locks import QUEUE, Locks
from tidewarden.queue.task import LEASE_MAX_MS

LONG_MS = 60_000


# --- script by script, at a time of the test's


def acquire(
    desk: Any, name: str, key: str = "=k", ms: int = 1000, *, take: int = 1, holder: str = "", uuid: str = ""
) -> list[int]:
    return list(desk.run("queue.lock_acquire", name, key, ms, take, 0, uuid, holder=holder)[0])


def release(desk: Any, name: str, fence: int) -> int:
    return int(desk.run("queue.lock_release", name, fence)[0])


def renew(desk: Any, name: str, fence: int, ms: int = 1000) -> list[int]:
    return list(desk.run("queue.lock_renew", name, fence, ms)[0])


def left(desk: Any) -> set[bytes]:
    """Which keys the shard has."""
    return {key.rpartition(b"}:")[2] for key in desk.client.scan_iter(f"{desk.prefix}:*")}


def test_one_holds_it_until_it_is_released(desk: Any) -> None:
    fence, lease, end_ms = acquire(desk, "a", "=one")
    assert (fence, end_ms) == (lease, desk.now + 1000)
    assert acquire(desk, "a", "=two") == [0, 0, desk.now + 1000]
    assert release(desk, "a", fence + 1) == 0
    assert release(desk, "b", fence) == 0
    assert release(desk, "a", fence) == lease
    assert release(desk, "a", fence) == 0, "released twice"
    assert renew(desk, "a", fence) == [0, 0]
    assert acquire(desk, "a", "=two")[0] > fence


def test_a_released_lock_leaves_nothing(desk: Any) -> None:
    for n in range(50):
        assert release(desk, f"lock{n}", acquire(desk, f"lock{n}")[0])
    acquire(desk, "a", ms=10)
    desk.now += 11
    assert desk.run("queue.sweep", 1, 100, holder="n0.1")[0] == 1
    assert left(desk) == {b"shard", b"counts"}


def test_fences_grow_whatever_becomes_of_the_lock(desk: Any) -> None:
    fences = []
    for n in range(12):
        fence, lease, _ = acquire(desk, "a", f"={n}", ms=10)
        fences.append(fence)
        if n % 4 == 0:
            release(desk, "a", fence)
        elif n % 4 == 1:
            desk.now += 10
        elif n % 4 == 2:
            assert desk.end(("a", lease), "loss") == 1
        else:
            desk.run("queue.reap", 1, "n0", 0, 100)
            assert desk.run("queue.free", 100) == 1
        if desk.views:
            desk.set_view(n + 2)
    assert fences == sorted(set(fences))


def test_the_same_key_gets_the_same_fence_and_the_lock_goes_with_it(desk: Any) -> None:
    """A retry after a broken connection: the end of that connection, heard of later, ends nothing."""
    fence, lease, _ = acquire(desk, "a", "=k", holder="n0.1")
    desk.now += 500
    again, later, end_ms = acquire(desk, "a", "=k", holder="n1.1")
    assert (again, end_ms) == (fence, desk.now + 1000)
    assert later > lease
    assert desk.end(("a", lease), "loss") == 0, "the first connection has gone"
    assert desk.peek("a")["holder"] == b"n1.1"
    assert renew(desk, "a", fence, 700) == [later, desk.now + 700]
    assert acquire(desk, "a", "=other")[0] == 0
    assert desk.end(("a", later), "loss") == 1
    assert acquire(desk, "a", "=k")[0] > later, "the key of a hold that has ended is nothing special"


def test_only_what_the_key_holds(desk: Any) -> None:
    assert acquire(desk, "a", "=k", take=0) == [0, 0, 0]
    fence = acquire(desk, "a", "=k")[0]
    assert acquire(desk, "a", "=k", take=0)[0] == fence
    assert acquire(desk, "a", "=x", take=0)[0] == 0


def test_a_lease_that_ran_out_needs_no_sweep(desk: Any) -> None:
    old = acquire(desk, "a", "=k", ms=100)[0]
    desk.now += 99
    assert acquire(desk, "a", "=other")[0] == 0
    assert renew(desk, "a", old, 10)[1] == desk.now + 10
    desk.now += 10
    new = acquire(desk, "a", "=k")[0]
    assert new > old, "the same key, but its hold had ended"
    assert release(desk, "a", old) == 0
    assert renew(desk, "a", old) == [0, 0]


def test_a_dead_nodes_locks_are_free_and_it_gets_none(desk: Any) -> None:
    old = acquire(desk, "a", holder="n1.4")[0]
    acquire(desk, "b", "=b", holder="n0.1")
    assert desk.run("queue.reap", 1, "n1", 4, 100) == [1, 0]
    with pytest.raises(Stale):
        acquire(desk, "a", "=x", holder="n1.4")
    assert acquire(desk, "a", "=x", holder="n1.5")[0] > old
    assert acquire(desk, "b", "=x")[0] == 0


def test_a_sessions_lock_outlives_its_node_and_ends_with_the_session(desk: Any) -> None:
    uuid = "0123456789abcdef" * 2
    fence, _, _ = acquire(desk, "a", "=k", holder="n0.1", uuid=uuid)
    assert desk.run("queue.reap", 1, "n0", 1, 100) == [0, 0]
    assert acquire(desk, "a", "=other", holder="n1.1") == [0, 0, desk.now + 1000]
    assert acquire(desk, "a", "=k", holder="n1.1", uuid=uuid)[0] == fence
    assert renew(desk, "a", fence)[0]
    desk.audit()
    assert acquire(desk, "a", "=k", holder="n1.1")[0] == fence, "by a bare connection that knows the key"
    assert desk.run("queue.lose", uuid, 10) == [0, 0]
    assert acquire(desk, "a", "=k", holder="n1.1", uuid=uuid)[0] == fence
    assert desk.run("queue.lose", uuid, 10) == [1, 0]
    assert acquire(desk, "a", "=k", holder="n1.1")[0] > fence
    assert release(desk, "a", acquire(desk, "a", holder="n1.1", uuid=uuid)[0])


def test_several_in_one_script(desk: Any) -> None:
    args = ["a", "=1", 100, 1, 0, "", "a", "=2", 100, 1, 1, "", "b", "=1", 100, 1, 0, "", "a", "=1", 200, 1, 0, ""]
    first, second, other, again = desk.run("queue.lock_acquire", *args)
    assert second == [0, 0, desk.now + 100]
    assert again[0] == first[0] != other[0]
    assert len({first[1], other[1], again[1]}) == 3
    assert desk.run("queue.lock_release", "a", first[0], "b", other[0], "b", other[0]) == [again[1], other[1], 0]


def test_a_lock_that_a_repair_put_aside_can_be_taken(desk: Any) -> None:
    old = acquire(desk, "a")[0]
    desk.client.zrem(f"{desk.prefix}:leased:n0.1", "a")
    desk.run("queue.check", "tasks", "0", 100, 1)
    assert desk.state("a") == "ready"
    fence = acquire(desk, "a", "=x")[0]
    assert fence > old
    assert release(desk, "a", fence)


def test_on_a_full_store_locks_are_released_and_kept_but_not_taken(desk: Any) -> None:
    fence = acquire(desk, "a", "=k")[0]
    for n in range(20):
        acquire(desk, f"b{n}", "=k")
    used = desk.client.info("memory")["used_memory"]
    desk.client.config_set("maxmemory", used - 100_000)
    try:
        before = desk.digest()
        with pytest.raises(Full):
            acquire(desk, "c")
        assert desk.digest() == before
        assert acquire(desk, "a", "=k")[0] == fence
        assert renew(desk, "a", fence)[0]
        assert desk.run("queue.lock_acquire", "a", "=x", 10, 1, 1, "")[0][0] == 0, "and it is noted that somebody waits"
        assert desk.client.hlen(f"{desk.prefix}:waits") == 1
        assert release(desk, "a", fence)
    finally:
        desk.client.config_set("maxmemory", 0)


def test_any_order_of_everything(desk: Any) -> None:
    """Against a model: at most one holds a lock, under a fence greater than all before, until its end by any way."""

    @settings(
        max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def play(data: st.DataObject) -> None:
        desk.client.flushdb()
        if desk.views:
            desk.set_view(1)
        held: dict[str, tuple[str, int, int, int]] = {}  # name: key, fence, lease, end
        greatest = dict.fromkeys("ab", 0)
        old: list[tuple[str, int, int]] = []
        for _ in range(data.draw(st.integers(1, 25))):
            what = data.draw(st.sampled_from(["acquire", "acquire", "renew", "release", "loss", "time", "sweep"]))
            name = data.draw(st.sampled_from("ab"))
            key, fence, lease, end_ms = held.get(name, ("", 0, 0, 0))
            if what == "acquire":
                want = data.draw(st.sampled_from(["=1", "=2", "=3"]))
                ms = data.draw(st.integers(1, 50))
                got, new, until_ms = acquire(desk, name, want, ms, holder=data.draw(st.sampled_from(["n0.1", "n1.1"])))
                if end_ms > desk.now and key != want:
                    assert (got, new, until_ms) == (0, 0, end_ms)
                    continue
                assert until_ms == desk.now + ms
                if end_ms > desk.now:
                    assert got == fence
                    assert new > lease
                    old.append((name, 0, lease))
                else:
                    assert got == new > greatest[name]
                    old.append((name, fence, lease))
                greatest[name] = new
                held[name] = (want, got, new, until_ms)
            elif what == "time":
                desk.now += data.draw(st.integers(0, 40))
            elif what == "sweep":
                desk.run("queue.sweep", 1, 100)
                held = {name: hold for name, hold in held.items() if hold[3] > desk.now}
            elif old and data.draw(st.booleans()):
                stale, was, ended = data.draw(st.sampled_from(old))
                assert renew(desk, stale, was) == [0, 0]
                assert release(desk, stale, was) == 0
                assert desk.end((stale, ended), "loss") == 0
            elif name in held and desk.state(name):  # it may have ended by its time in another's script
                if what == "renew":
                    assert renew(desk, name, fence, 30) == [lease, desk.now + 30]
                    held[name] = (key, fence, lease, desk.now + 30)
                else:
                    done = release(desk, name, fence) if what == "release" else desk.end((name, lease), "loss")
                    assert done == (lease if what == "release" else 1)
                    old.append((name, fence, lease))
                    del held[name]
        desk.audit()

    play()


# --- nodes


def locks_of(n: Any, **limits: int) -> Locks:
    return Locks(n.queues, wait_max_ms=limits.get("wait_max_ms", 3_600_000), waiting_max=limits.get("waiting_max", 100))


async def waits_noted(n: Any, names: int) -> None:
    """Until the store knows that so many locks are waited for."""
    for _ in range(5000):
        shards = await n.queues.shards(QUEUE)
        found = await asyncio.gather(*(n.link.call("HLEN", f"{{tw:{QUEUE}:{i}}}:waits") for i in range(shards)))
        if sum(found) == names:
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"{names} waits were not noted")


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ["release", "disconnect"])
async def test_a_waiter_gets_it_at_the_end_of_the_hold(node: Any, how: str, elsewhere: bool) -> None:
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
        assert await locks.acquire(session, "a", LONG_MS) is None, "who does not wait goes past nobody"
        await locks.release(session, "a", got)

    tasks = [asyncio.ensure_future(one(number)) for number in range(20)]
    await waits_noted(n0, 1)
    assert locks.waiting == 20
    tasks[5].cancel()
    await locks.release(session, "a", fence)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [number for number in range(20) if number != 5]
    assert (locks.waiting, session.held, session.takes) == (0, {}, set())


async def test_one_release_costs_one_try_however_many_wait(node: Any) -> None:
    """200 wait for as many locks of few shards, and twenty for the same: a release wakes one, and nobody else asks."""
    n0, n1 = await node("n0"), await node("n1")
    holder, waiter = locks_of(n0), locks_of(n1, waiting_max=1000)
    here, there = n0.queues.open_session(), n1.queues.open_session()
    names = [f"lock{n}" for n in range(200)]
    fences = await asyncio.gather(*(holder.acquire(here, name, LONG_MS) for name in names))
    waits = [waiter.acquire(there, name, LONG_MS, wait_ms=LONG_MS) for name in [*names, *["lock0"] * 20]]
    await waits_noted(n0, 200)
    asked: list[str] = []
    for i in range(await n1.queues.shards(QUEUE)):
        shard = n1.queues._shards[QUEUE][i]
        original = shard.batched
        shard.batched = lambda name, *args, original=original: (asked.append(args[0]), original(name, *args))[1]
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


async def test_a_key_makes_a_retry_safe(node: Any) -> None:
    """The answer was lost, and the caller asks again on another node; the first connection's end comes late."""
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    broken, retry, other = n0.queues.open_session(), n1.queues.open_session(), n1.queues.open_session()
    fence = await one.acquire(broken, "a", LONG_MS, key=b"k\x00\xff ")
    waiting = two.acquire(other, "a", LONG_MS, wait_ms=LONG_MS, key=b"other")
    await waits_noted(n0, 1)
    for wait_ms in (0, LONG_MS):
        assert await two.acquire(retry, "a", LONG_MS, wait_ms=wait_ms, key=b"k\x00\xff ") == fence, "past the line"
    await n0.queues.close_session(broken)
    assert await one.acquire(n0.queues.open_session(), "a", LONG_MS) is None, "it is held still"
    await n1.queues.close_session(retry)
    got = await waiting
    assert got
    assert got > fence


async def test_a_session_keeps_its_locks_for_its_grace(node: Any) -> None:
    """The connection goes, another joins its session at another node: the lock is held still, and ends with the session."""
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    first, second = n0.queues.open_session("bob"), n1.queues.open_session("bob")
    uuid = await n0.queues.join_session(first, "bob", "", 300)
    fence = await one.acquire(first, "a", LONG_MS)
    assert fence
    waiting = two.acquire(n1.queues.open_session(), "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    await n0.queues.close_session(first)
    assert await n1.queues.join_session(second, "bob", uuid) == uuid
    await asyncio.sleep(0.4)
    await two.renew(second, "a", fence, LONG_MS)
    assert (await one.peek("a"))["session"] == uuid
    assert not waiting.done()
    await n1.queues.close_session(second)
    got = await waiting
    assert got
    assert got > fence
    ended = n0.queues.open_session("bob")
    with pytest.raises(NotFound):
        await n0.queues.join_session(ended, "bob", uuid)


async def test_a_session_that_has_ended_acquires_nothing(node: Any) -> None:
    n0 = await node()
    locks = locks_of(n0)
    session = n0.queues.open_session("bob")
    await n0.queues.join_session(session, "bob")
    other = n0.queues.open_session()
    fence = await locks.acquire(other, "a", LONG_MS)
    waiting = locks.acquire(session, "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    n0.queues._lost(session.shared)
    with pytest.raises(NotFound, match="has ended"):
        await waiting
    await locks.release(other, "a", fence or 0)
    with pytest.raises(NotFound, match="has ended"):
        await locks.acquire(session, "a", LONG_MS)
    await waits_noted(n0, 0)


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
async def test_what_was_acquired_for_one_already_gone_is_given_back(node: Any, eventually: Any, wait_ms: int) -> None:
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
    n1.queues.wake_all()  # what the daemon does after each connect
    assert await waiting


async def test_an_answer_lost_on_the_way_from_the_store(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script ran, its answer did not come: a waiting acquire asks again and finds that the lock is its own."""
    n0 = await node()
    locks = locks_of(n0)
    session = n0.queues.open_session()
    shard = await n0.queues.shard(QUEUE, "a")
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
        assert (await locks.peek("a"))["fence"] == (await lost[0])[0], "nobody's, until its lease ends"
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


@pytest.mark.parametrize(
    "name", ["ä/ö:ü", "{x}", "a}:b", "%d", "*", "[a]", "end:x", "ready", "'\"", "0", "\u00a0", "x" * 200]
)
async def test_odd_names(node: Any, name: str) -> None:
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    here, there = n0.queues.open_session(), n1.queues.open_session()
    fence = await one.acquire(here, name, LONG_MS, key=b"k")
    assert fence
    waiting = two.acquire(there, name, LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    assert (await one.page())[0] == [await two.peek(name)]
    shown = await one.peek(name)
    assert (shown["name"], shown["fence"], shown["node"], shown["keyed"]) == (name, fence, "n0", True)
    await one.release(here, name, fence)
    assert await waiting
    await n1.queues.close_session(there)
    assert await one.page() == ([], "")


async def test_what_is_refused(node: Any) -> None:
    n0 = await node()
    locks = locks_of(n0, wait_max_ms=1000, waiting_max=1)
    session = n0.queues.open_session()
    for name in ("", "a b", "a\n", "x" * 201, "\x7f", "\udc80"):
        with pytest.raises(BadArg, match="lock's name"):
            locks.acquire(session, name, 10)
        for call in (locks.renew(session, name, 1, 10), locks.release(session, name, 1), locks.peek(name)):
            with pytest.raises(BadArg, match="lock's name"):
                await call
    for lease_ms in (0, -1, LEASE_MAX_MS + 1):
        with pytest.raises(BadArg, match="the lease"):
            locks.acquire(session, "a", lease_ms)
        with pytest.raises(BadArg, match="the lease"):
            await locks.renew(session, "a", 1, lease_ms)
    for fence in (-1, 2**53):
        with pytest.raises(BadArg, match="the fence"):
            await locks.release(session, "a", fence)
    with pytest.raises(BadArg, match="WAIT is 1001"):
        locks.acquire(session, "a", 10, wait_ms=1001)
    with pytest.raises(BadArg, match="KEY has 201"):
        locks.acquire(session, "a", 10, key=b"x" * 201)
    await locks.acquire(session, "a", LONG_MS)
    waiting = locks.acquire(session, "a", 10, wait_ms=1000)
    await waits_noted(n0, 1)
    with pytest.raises(Full, match="waiting_max"):
        locks.acquire(session, "b", 10, wait_ms=1)
    waiting.cancel()
    with pytest.raises(Error):
        await n0.queues.script("queue.lock_acquire", QUEUE, 0, ["a", "k", "x", 1, 0, ""])
    for verb, args in (
        ("acquire", ["", "k", 1, 1, 0, ""]),
        ("acquire", ["a"]),
        ("acquire", []),
        ("renew", ["a", 1]),
        ("release", ["a", "-1"]),
    ):
        with pytest.raises(BadArg):
            await n0.queues.script(f"queue.lock_{verb}", QUEUE, 0, args)
    await n0.queues.close_session(session)


class Ledger:
    """The resource that the lock is for: it knows the greatest fence it has seen, and refuses what comes with a lesser one."""

    def __init__(self) -> None:
        self.fence = 0
        self.writes: list[int] = []
        self.refused = 0

    def write(self, fence: int) -> bool:
        if fence < self.fence:
            self.refused += 1
            return False
        self.fence = fence
        self.writes.append(fence)
        return True


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.live) for seed in (0, 2, 3))])
async def test_one_at_a_time_under_many_contenders(node: Any, seed: int) -> None:
    """
    Three nodes, forty contenders for two locks: they work and release, sleep past their lease, vanish, or ask twice by KEY.

    Whoever's release is answered OK was alone all the time; whoever was late is stopped by the resource, at the latest.
    """
    dice = random.Random(seed)
    nodes = [await node(f"n{i}", views=seed % 2 == 1) for i in range(3)]
    locks = [locks_of(n) for n in nodes]
    ledgers = {"a": Ledger(), "b": Ledger()}
    inside: dict[str, set[int]] = {"a": set(), "b": set()}
    done = {"worked": 0, "late": 0, "vanished": 0}

    async def contend(number: int) -> None:
        for turn in range(4):
            at = dice.randrange(3)
            name, how = dice.choice("ab"), dice.choices(["work", "oversleep", "vanish"], [8, 1, 1])[0]
            session, key = nodes[at].queues.open_session(), f"{number}.{turn}".encode() if dice.random() < 0.5 else b""
            fence = await locks[at].acquire(
                session, name, 150 if how == "oversleep" else LONG_MS, wait_ms=LONG_MS, key=key
            )
            assert fence
            ledger = ledgers[name]
            if how == "oversleep":
                await asyncio.sleep(0.2 + dice.random() / 10)
                ledger.write(fence)
                try:
                    await locks[at].release(session, name, fence)
                except NotHeld:
                    done["late"] += 1
                continue
            assert not inside[name], "somebody else is in there"
            inside[name].add(fence)
            assert ledger.write(fence)
            if key and dice.random() < 0.5:
                at = dice.randrange(3)  # the connection seems broken
                broken, session = session, nodes[at].queues.open_session()
                assert await locks[at].acquire(session, name, LONG_MS, wait_ms=LONG_MS, key=key) == fence
                await nodes[0].queues.close_session(broken)
            await asyncio.sleep(dice.random() / 200)
            assert ledger.write(fence)
            inside[name].discard(fence)
            if how == "vanish":
                await nodes[at].queues.close_session(session)
                done["vanished"] += 1
            else:
                await locks[at].release(session, name, fence)
                done["worked"] += 1

    await asyncio.gather(*(contend(number) for number in range(40)))
    assert all(ledger.writes == sorted(ledger.writes) for ledger in ledgers.values())
    assert done["worked"] > 80
    assert [n.waiting for n in locks] == [0, 0, 0]
    await waits_noted(nodes[0], 0)
    assert (await locks[0].page())[0] == []

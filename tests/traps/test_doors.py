"""
The traps of connections: a consumer that goes at the worst moment, at real doors before a real
queue and store.

A lost wake-up and ears that were deaf have their tests by the single step in
``rooms/queues/takes/test_waking.py``; a consumer's socket that is cut in a whole cluster in
``live/failover/test_nodes.py``. Leases here run for an hour: what is stranded stays stranded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import hiredis
import pytest
from support.doors.trap_doors import HOUR_MS, Pair, doors, turns
from support.inspect import shards_of, transport_of
from support.waiting import eventually

__all__ = ["doors"]  # a fixture


async def configured(doors: Pair, **settings: Any) -> None:
    """A queue that both nodes know."""
    for door in doors:
        await door.queues.admin.configure("q", settings)


# --- disconnects and waiting takes ---


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
async def test_trap_disconnect_during_a_waiting_take(doors: Pair, seed: int) -> None:
    """
    A consumer goes in the moment in which its task comes: the task is with the next one, and the
    attempt does not count.
    """
    dice = random.Random(seed)
    await configured(doors, losses_max=0)
    well = await doors[1].dial()
    for n in range(40):
        gone = await doors[n % 2].dial()
        gone.send(f"Q.TAKE WAIT {HOUR_MS} LEASE {HOUR_MS} FROM q")
        await eventually(lambda n=n: doors[n % 2].server.context.waiting == 1)
        well.send(f"Q.PUT q x ID t{n} ATTEMPTS 1")
        await turns(dice.randrange(12))
        gone.drop(reset=dice.random() < 0.5)
        assert await well.reply() == b"t%d" % n
        ((_, task_id, lease, _, attempt, _, _),) = await well.call(
            "Q.TAKE", "WAIT", 20_000, "FROM", "q"
        )
        assert (task_id, attempt) == (b"t%d" % n, 1)
        assert await well.call("Q.ACK", "q", task_id, lease) == b"OK"
    await eventually(lambda: not doors[0].server.context.peers.connections)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
async def test_trap_waiters_stranded_by_a_lost_wake_up(doors: Pair, seed: int) -> None:
    """
    One wake-up, one waiter, and that one goes: whoever waits beside it, or at another node, has to
    be woken in its place.

    Now and then a node's ear is cut, too, so that it does not hear what is told meanwhile.
    """
    dice = random.Random(seed)
    await configured(doors, losses_max=0)
    putter = await doors[0].dial()
    waiting: dict[asyncio.Task[Any], Any] = {}

    async def wait_one(number: int) -> None:
        line = await doors[number].dial()
        line.send(f"Q.TAKE WAIT {HOUR_MS} LEASE {HOUR_MS} FROM q")
        waiting[asyncio.ensure_future(line.reply())] = line

    for n in range(3):
        await wait_one(n % 2)
    for n in range(50):
        await eventually(
            lambda: doors[0].server.context.waiting + doors[1].server.context.waiting == 3
        )
        putter.send(f"Q.PUT q x ID t{n}")
        await turns(dice.randrange(10))
        ear = transport_of(doors[dice.randrange(2)].ears)  # None: it is cut still
        if ear is not None and dice.random() < 0.2:
            ear.abort()
        victim = dice.choice(list(waiting))
        line = waiting.pop(victim)
        line.drop()
        await asyncio.gather(victim, return_exceptions=True)
        assert await putter.reply() == b"t%d" % n
        done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert done, f"t{n} is stranded: {await doors[0].queues.admin.peek('q', f't{n}')}"
        (found,) = done
        ((_, task_id, lease, *_),) = found.result()
        line = waiting.pop(found)
        assert task_id == b"t%d" % n
        assert await line.call("Q.ACK", "q", task_id, lease) == b"OK"
        await line.close()
        for _ in range(2):
            await wait_one(dice.randrange(2))
    for task, line in waiting.items():
        line.drop()
        await asyncio.gather(task, return_exceptions=True)


async def test_trap_waiters_stranded_beside_a_take_of_the_same_turn(doors: Pair) -> None:
    """
    Puts and a take that go out as one script: what the take leaves is for those who wait at the
    other node.
    """
    waiters = [await doors[1].dial() for _ in range(2)]
    for line in waiters:
        line.send(f"Q.TAKE WAIT {HOUR_MS} FROM q")
    await eventually(lambda: doors[1].server.context.waiting == 2)
    putter, taker = await doors[0].dial(), await doors[0].dial()
    await taker.call("Q.TAKE", "FROM", "q")
    putter.send(*(f"Q.PUT q x ID t{n}" for n in range(3)))
    taker.send("Q.TAKE FROM q")
    tasks = [await line.reply() for line in (*waiters, taker)]
    assert sorted(task_id for rows in tasks for _, task_id, *_ in rows) == [b"t0", b"t1", b"t2"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
async def test_trap_same_task_to_two_consumers_around_a_disconnect(doors: Pair, seed: int) -> None:
    """
    tarantool/queue#46, tarantool/sharded-queue#21: two consumers hold one task.

    Consumers take, go without a word or acknowledge, all at random. Nobody is handed what somebody
    holds who has not gone.
    """
    dice = random.Random(seed)
    await configured(doors, losses_max=0)
    total, holder, done = 60, dict[bytes, int](), Counter[bytes]()
    numbers: list[int] = []
    putter = await doors[0].dial()
    putter.send(*(f"Q.PUT q x ID t{n}" for n in range(total)))
    for _ in range(total):
        await putter.reply()

    async def consume(me: int) -> None:
        line = None
        while len(done) < total:
            line = line or await doors[me % 2].dial()
            tasks = await line.call("Q.TAKE", "COUNT", 2, "WAIT", 20, "LEASE", HOUR_MS, "FROM", "q")
            for _, task_id, lease, *_ in tasks:
                assert task_id not in holder, (
                    f"{task_id} is held by {holder[task_id]} and handed to {me}"
                )
                holder[task_id] = me
                numbers.append(lease)
            await turns(dice.randrange(4))
            if dice.random() < 0.4:
                for _, task_id, *_ in tasks:
                    del holder[task_id]
                if dice.random() < 0.5:
                    line.send("Q.TAKE COUNT 2 FROM q")
                    await turns(dice.randrange(4))
                line.drop(reset=dice.random() < 0.5)
                line = None
                continue
            for _, task_id, lease, *_ in tasks:
                del holder[task_id]
                assert await line.call("Q.ACK", "q", task_id, lease) == b"OK"
                done[task_id] += 1

    async with asyncio.timeout(150):
        await asyncio.gather(*(consume(me) for me in range(8)))
    assert set(done.values()) == {1}
    assert len(numbers) == len(set(numbers))
    assert (await doors[0].queues.admin.stats("q"))["total"] == 0


async def test_trap_closing_one_connection_frees_what_another_holds(doors: Pair) -> None:
    """tarantool/queue#103: the trigger of one session's end ran with the number of another."""
    lines = [await doors[n % 2].dial() for n in range(6)]
    held = []
    for n, line in enumerate(lines):
        await line.call("Q.PUT", "q", "x", "ID", f"t{n}")
        held.append((await line.call("Q.TAKE", "LEASE", HOUR_MS, "FROM", "q"))[0])
    for n in (0, 3, 4):
        lines[n].drop()
    free = [(await lines[1].call("Q.TAKE", "WAIT", 20_000, "FROM", "q"))[0][1] for _ in range(3)]
    assert sorted(free) == [b"t0", b"t3", b"t4"]
    assert await lines[1].call("Q.TAKE", "FROM", "q") == []
    for n in (1, 2, 5):
        assert await lines[n].call("Q.ACK", "q", held[n][1], held[n][2]) == b"OK"


async def test_trap_closing_one_connection_frees_what_it_held_before(doors: Pair) -> None:
    """As above: its task was handed on meanwhile, by its number and another connection."""
    first, other, second = [await doors[n % 2].dial() for n in range(3)]
    await first.call("Q.PUT", "q", "x", "ID", "a")
    ((_, _, lease, *_),) = await first.call("Q.TAKE", "LEASE", HOUR_MS, "FROM", "q")
    assert await other.call("Q.RELEASE", "q", "a", lease) == b"OK"
    ((_, _, lease, *_),) = await second.call("Q.TAKE", "LEASE", HOUR_MS, "FROM", "q")
    first.drop()
    await eventually(lambda: len(doors[0].server.context.peers.connections) == 1)
    assert await other.call("Q.TAKE", "WAIT", 50, "FROM", "q") == []
    assert await second.call("Q.ACK", "q", "a", lease) == b"OK"


async def test_trap_ack_from_another_connection(doors: Pair) -> None:
    """
    tarantool/queue#85, beanstalkd/beanstalkd#626 #644: only the very connection may acknowledge.
    Here whoever has the number.
    """
    holder, other = await doors[0].dial(), await doors[1].dial()
    for name in ("a", "b"):
        await holder.call("Q.PUT", "q", "x", "ID", name)
    (_, _, a, *_), (_, _, b, *_) = await holder.call(
        "Q.TAKE", "COUNT", 2, "LEASE", HOUR_MS, "FROM", "q"
    )
    assert await other.call("Q.ACK", "q", "a", a) == b"OK"
    holder.drop()
    ((_, task_id, lease, *_),) = await other.call("Q.TAKE", "WAIT", 20_000, "FROM", "q")
    assert (task_id, lease > b) == (b"b", True)
    late = await other.call("Q.ACK", "q", "b", b)
    assert isinstance(late, hiredis.ReplyError)
    assert str(late).startswith("NOTHELD")
    assert await other.call("Q.ACK", "q", "b", lease) == b"OK"


async def test_trap_several_takes_on_one_connection(doors: Pair) -> None:
    """
    tarantool/queue#28: a second take while the first one waits. Here they wait in their order, and
    each is answered.
    """
    line, putter = await doors[0].dial(), await doors[1].dial()
    line.send(*[f"Q.TAKE WAIT {HOUR_MS} FROM q"] * 5, "PING")
    for n in range(5):
        await putter.call("Q.PUT", "q", "x", "ID", f"t{n}")
        ((_, task_id, *_),) = await line.reply()
        assert task_id == b"t%d" % n
    assert await line.reply() == b"PONG"


@pytest.mark.parametrize("why", ["empty", "paused", "delayed", "named", "sixteen shards", "held"])
async def test_trap_pop_with_a_long_wait_never_returns(doors: Pair, why: str) -> None:
    """
    Netflix/dyno-queues#58. A wait ends by its time whatever the queue is, and by a task whatever it
    was.
    """
    line, other = await doors[0].dial(), await doors[1].dial()
    loop = asyncio.get_running_loop()
    if why == "sixteen shards":
        await doors[0].queues.admin.configure("q", {"shards": 16})
        await eventually(lambda: len(shards_of(doors[1].queues, "q")) == 16)
    elif why == "paused":
        await other.call("Q.PUT", "q", "x", "ID", "a")
        await other.call("Q.PAUSE", "q")
    elif why == "delayed":
        await other.call("Q.PUT", "q", "x", "ID", "a", "DELAY", HOUR_MS)
    elif why == "held":
        await other.call("Q.PUT", "q", "x", "ID", "a")
        held = await other.call("Q.TAKE", "LEASE", HOUR_MS, "FROM", "q")
    take = ("Q.TAKE", "WAIT", 150, *(("ID", "a") if why == "named" else ()), "FROM", "q")
    begun = loop.time()
    assert await line.call(*take) == []
    assert loop.time() - begun >= 0.14
    line.send((*take[:2], str(HOUR_MS), *take[3:]))
    await eventually(lambda: doors[0].server.context.waiting == 1)
    if why == "paused":
        await other.call("Q.RESUME", "q")
    elif why == "delayed":
        await other.call("Q.UPDATE", "q", "a", "DELAY", 1)
    elif why == "held":
        await other.call("Q.RELEASE", "q", "a", held[0][2])
    else:
        await other.call("Q.PUT", "q", "x", "ID", "a")
    ((_, task_id, *_),) = await line.reply()
    assert task_id == b"a"

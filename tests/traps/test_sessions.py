"""
The traps of sessions that several connections share, at real doors before a real queue and store.
See ``traps/test_scripts.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import hiredis
import pytest
from support.doors.trap_doors import HOUR_MS, Pair, doors, turns
from support.waiting import eventually

__all__ = ["doors"]  # a fixture


async def joined(door: Any, uuid: str = "", grace_ms: int = HOUR_MS) -> tuple[Any, str]:
    """A connection of that session, or of a new one, and the session's uuid."""
    line = await door.dial()
    return line, (await line.call("SESSION", *[uuid] * bool(uuid), "GRACE", grace_ms)).decode()


async def take(line: Any, wait_ms: int = 0) -> tuple[bytes, int]:
    """Id and lease of the task that it gets."""
    ((_, task_id, lease, *_),) = await line.call(
        "Q.TAKE", "WAIT", wait_ms, "LEASE", HOUR_MS, "FROM", "q"
    )
    return task_id, lease


async def test_trap_one_session_from_two_connections(doors: Pair) -> None:
    """
    tarantool/queue's shared sessions: what one connection took, the other may finish, at another
    node too.

    That one of them goes ends nothing; that both are gone ends all that is left, once the grace is
    over.
    """
    a, uuid = await joined(doors[0], grace_ms=30)
    b, _ = await joined(doors[1], uuid, grace_ms=30)
    other = await doors[0].dial()
    for n in range(4):
        await other.call("Q.PUT", "q", "x", "ID", f"t{n}")
    by_a, by_b, left, kept = await take(a), await take(b), await take(a), await take(b)
    assert await b.call("Q.ACK", "q", *by_a) == b"OK"
    assert await a.call("Q.ACK", "q", *by_b) == b"OK"
    a.drop(reset=True)
    await eventually(lambda: len(doors[0].server.context.peers.connections) == 1)
    assert await other.call("Q.TAKE", "WAIT", 100, "FROM", "q") == [], "the session is still there"
    assert await b.call("Q.ACK", "q", *left) == b"OK"
    b.drop()
    task_id, lease = await take(other, 20_000)
    assert task_id == kept[0]
    assert lease > kept[1]
    late = await other.call("Q.ACK", "q", *kept)
    assert isinstance(late, hiredis.ReplyError)


async def test_trap_a_waiting_take_of_the_connection_that_has_gone(doors: Pair) -> None:
    """
    Of two connections of one session both wait, and one goes: the task is not handed to it, for
    nobody would see it.
    """
    for n in range(20):
        a, uuid = await joined(doors[n % 2])
        b, _ = await joined(doors[n // 2 % 2], uuid)
        putter = await doors[0].dial()
        for line in (a, b):
            line.send(f"Q.TAKE WAIT {HOUR_MS} LEASE {HOUR_MS} FROM q")
        await eventually(
            lambda: doors[0].server.context.waiting + doors[1].server.context.waiting == 2
        )
        a.drop(reset=n % 3 == 0)
        await eventually(
            lambda: doors[0].server.context.waiting + doors[1].server.context.waiting == 1
        )
        await putter.call("Q.PUT", "q", "x", "ID", f"t{n}")
        ((_, task_id, lease, *_),) = await b.reply()
        assert await b.call("Q.ACK", "q", task_id, lease) == b"OK"
        await putter.close()
        await b.close()


async def test_trap_ack_after_a_reconnect(doors: Pair) -> None:
    """
    tarantool/queue#85, #46: the connection breaks while its consumer works; it comes back at
    another node and goes on.
    """
    line, uuid = await joined(doors[0])
    other = await doors[1].dial()
    for n in range(10):
        await other.call("Q.PUT", "q", "x", "ID", f"t{n}")
        held = await take(line)
        line.drop(reset=n % 2 == 0)
        assert await other.call("Q.TAKE", "FROM", "q") == []
        line, again = await joined(doors[(n + 1) % 2], uuid)
        assert again == uuid
        assert await line.call("Q.ACK", "q", *held) == b"OK"
    line.drop()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
async def test_trap_sessions_of_several_connections_at_random(doors: Pair, seed: int) -> None:
    """
    Three sessions of two connections each, which break and come back at either node while their
    consumers work.

    A take whose answer was lost holds its task until the lease runs out, so leases are short; each
    task counts once.
    """
    dice = random.Random(seed)
    for door in doors:
        await door.queues.admin.configure("q", {"losses_max": 0})
    total, done, numbers = 60, Counter[bytes](), list[int]()
    newest: dict[bytes, int] = {}
    counted: dict[bytes, int] = {}
    putter = await doors[0].dial()
    putter.send(*(f"Q.PUT q x ID t{n}" for n in range(total)))
    for _ in range(total):
        await putter.reply()

    async def consume(uuid: str, door: Any) -> None:
        line = None
        held: list[tuple[bytes, int]] = []
        while len(done) < total:
            if line is None:
                line, _ = await joined(door, uuid)
            for task_id, lease in held:  # of the connection before, too
                if await line.call("Q.ACK", "q", task_id, lease) == b"OK":
                    done[task_id] += 1
                    counted[task_id] = lease
            held = []
            tasks = await line.call("Q.TAKE", "COUNT", 3, "WAIT", 20, "LEASE", 15, "FROM", "q")
            held = [(task_id, lease) for _, task_id, lease, *_ in tasks]
            numbers.extend(lease for _, lease in held)
            newest.update((task_id, max(lease, newest.get(task_id, 0))) for task_id, lease in held)
            await asyncio.sleep(dice.choice([0, 0, 0.013, 0.017, 0.03]))
            if dice.random() < 0.3:
                if dice.random() < 0.5:
                    line.send("Q.TAKE COUNT 3 LEASE 15 FROM q")
                    await turns(dice.randrange(5))
                line.drop(reset=dice.random() < 0.5)
                line, door = None, dice.choice(doors)

    firsts = [await joined(doors[n % 2]) for n in range(3)]
    async with asyncio.timeout(150):
        await asyncio.gather(*(consume(uuid, door) for _, uuid in firsts for door in doors))
    assert set(done.values()) == {1}
    assert len(numbers) == len(set(numbers))
    assert counted == newest, "only the last lease of a task counts"
    assert (await doors[0].queues.admin.stats("q"))["total"] == 0

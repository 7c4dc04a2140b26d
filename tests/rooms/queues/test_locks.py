"""
Locks: who holds one, under which fence, and who is next when it ends, on one node or on several.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.inspect import lose_session
from support.queues.shared_sessions import graces_held
from support.queues.waiting_locks import LONG_MS, locks_of, waits_noted

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Error, Full, NotFound, NotHeld
from tidewarden.queue.locks import QUEUE
from tidewarden.queue.task import LEASE_MAX_MS
from tidewarden.server.verbs.lock import seen_locks


async def test_a_key_makes_a_retry_safe(node: Any) -> None:
    """
    The answer was lost, and the caller asks again on another node; the first connection's end comes
    late.
    """
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    broken, retry, other = (
        n0.queues.open_session(),
        n1.queues.open_session(),
        n1.queues.open_session(),
    )
    fence = await one.acquire(broken, "a", LONG_MS, key=b"k\x00\xff ")
    waiting = two.acquire(other, "a", LONG_MS, wait_ms=LONG_MS, key=b"other")
    await waits_noted(n0, 1)
    for wait_ms in (0, LONG_MS):
        assert (
            await two.acquire(retry, "a", LONG_MS, wait_ms=wait_ms, key=b"k\x00\xff ") == fence
        ), "past the line"
    await n0.queues.close_session(broken)
    assert await one.acquire(n0.queues.open_session(), "a", LONG_MS) is None, "it is held still"
    await n1.queues.close_session(retry)
    got = await waiting
    assert got
    assert got > fence


async def test_a_session_keeps_its_locks_for_its_grace(node: Any, eventually: Any) -> None:
    """
    The connection goes, another joins its session at another node: the lock is held still, and ends
    with the session.
    """
    n0, n1 = await node("n0"), await node("n1")
    one, two = locks_of(n0), locks_of(n1)
    first, second = n0.queues.open_session("bob"), n1.queues.open_session("bob")
    uuid = await n0.queues.join_session(first, "bob", "", LONG_MS)
    fence = await one.acquire(first, "a", LONG_MS)
    assert fence
    waiting = two.acquire(n1.queues.open_session(), "a", LONG_MS, wait_ms=LONG_MS)
    await waits_noted(n0, 1)
    with graces_held(n0.queues) as let_come:
        await n0.queues.close_session(first)
        assert await n1.queues.join_session(second, "bob", uuid, 1) == uuid
        let_come()
        await eventually(lambda: n0.queues.sessions.counts()["detached"] == 0)
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
    lose_session(n0.queues, session.shared)
    with pytest.raises(NotFound, match="has ended"):
        await waiting
    await locks.release(other, "a", fence or 0)
    with pytest.raises(NotFound, match="has ended"):
        await locks.acquire(session, "a", LONG_MS)
    await waits_noted(n0, 0)


@pytest.mark.parametrize(
    "name",
    ["ä/ö:ü", "{x}", "a}:b", "%d", "*", "[a]", "end:x", "ready", "'\"", "0", "\u00a0", "x" * 200],
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
    assert (shown["name"], shown["fence"], shown["node"], shown["keyed"]) == (
        name,
        fence,
        "n0",
        True,
    )
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
        for call in (
            locks.renew(session, name, 1, 10),
            locks.release(session, name, 1),
            locks.peek(name),
        ):
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
        await n0.queues.scripts.run("queue.lock_acquire", QUEUE, 0, ["a", "k", "x", 1, 0, ""])
    for verb, args in (
        ("acquire", ["", "k", 1, 1, 0, ""]),
        ("acquire", ["a"]),
        ("acquire", []),
        ("renew", ["a", 1]),
        ("release", ["a", "-1"]),
    ):
        with pytest.raises(BadArg):
            await n0.queues.scripts.run(f"queue.lock_{verb}", QUEUE, 0, args)
    await n0.queues.close_session(session)


class Ledger:
    """
    The resource that the lock is for: it knows the greatest fence it has seen, and refuses what
    comes with a lesser one.
    """

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 10))]
)
async def test_one_at_a_time_under_many_contenders(node: Any, seed: int) -> None:
    """
    Three nodes, forty contenders for two locks: they work and release, sleep past their lease,
    vanish, or ask twice by KEY.

    Whoever's release is answered OK was alone all the time; whoever was late is stopped by the
    resource, at the latest.
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
            name, how = (
                dice.choice("ab"),
                dice.choices(["work", "oversleep", "vanish"], [8, 1, 1])[0],
            )
            session, key = (
                nodes[at].queues.open_session(),
                f"{number}.{turn}".encode() if dice.random() < 0.5 else b"",
            )
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
                assert (
                    await locks[at].acquire(session, name, LONG_MS, wait_ms=LONG_MS, key=key)
                    == fence
                )
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


async def test_a_page_and_its_cursor_name_a_users_own_locks_alone(node: Any) -> None:
    n0 = await node()
    locks, session = locks_of(n0), n0.queues.open_session()
    names = [f"{whose}{n}" for n in range(6) for whose in ("other", "mine", "secret")]
    for name in names:
        await locks.acquire(session, name, LONG_MS)
    rights = Rights(("lock:mine*",))
    for count in (1, 2, 4, 100):
        found: list[str] = []
        after, pages = "", 0
        while True:
            page, after = await seen_locks(locks, rights, count, after)
            assert "other" not in after
            assert "secret" not in after
            assert len(page) <= count
            found += [lock["name"] for lock in page]
            pages += 1
            if not after:
                break
        assert sorted(found) == [f"mine{n}" for n in range(6)]
        assert pages <= 6 // count + 1
    assert await seen_locks(locks, Rights(("lock:none",)), 2, "") == ([], "")
    every, _ = await seen_locks(locks, Rights(("lock",)), 100, "")
    assert sorted(lock["name"] for lock in every) == sorted(names)

"""
Every answer of a durable queue waits for its group: on a real primary with a replica that is
stopped and goes on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support.doors import doubles
from support.inspect import parked_in
from support.queues.waiting_locks import locks_of
from support.store.replicas import LIMIT_MS, Replicas, Seat, seat, stopped
from support.store.servers import StoreServer
from support.store.shard_audit import audit_store

from tidewarden.errors import BadArg, NoQuorum
from tidewarden.queue.task import Changes, TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec

Act = Callable[[], Awaitable[Any]]


@pytest.fixture
async def one(pair: Replicas, request: pytest.FixtureRequest) -> AsyncIterator[Seat]:
    """A process whose queue ``q`` is durable; the store is audited afterwards."""
    with pair.client() as client:
        client.flushall()
    async with seat(pair.url(), replicas=1) as made:
        await made.queues.admin.configure("q", {"durability": "quorum"})
        yield made
    socket = str(pair.folder / str(pair.ports[0]) / "s")
    await asyncio.to_thread(audit_store, StoreServer(socket, f"unix://{socket}"))


async def taken(one: Seat, count: int = 1) -> Any:
    """A session and tasks that it holds."""
    session = one.queues.open_session()
    for _ in range(count):
        await one.queues.put("q", TaskSpec(b"x"))
    return session, await one.queues.take(session, ["q"], count=count)


async def refused(one: Seat, pair: Replicas, act: Act) -> NoQuorum:
    """What it is answered while the replica does not."""
    with stopped(one, pair), pytest.raises(NoQuorum) as caught:
        await act()
    return caught.value


async def test_with_its_replica_there_a_task_goes_its_way(one: Seat, pair: Replicas) -> None:
    session, (task,) = await taken(one)
    assert pair.client(pair.ports[1]).keys("{tw:q:0}*")
    assert await one.queues.ack(session, "q", [(task.id, task.lease)]) == [1]
    assert one.commits.stats()["commit_missed_total"] == 0


async def test_every_verb_of_a_task_in_hand(one: Seat, pair: Replicas) -> None:
    queues = one.queues
    session, tasks = await taken(one, 6)
    names = iter([(task.id, task.lease) for task in tasks])
    verbs: list[Act] = [
        lambda: queues.ack(session, "q", [next(names)]),
        lambda: queues.release(session, "q", *next(names)),
        lambda: queues.fail(session, "q", *next(names)),
        lambda: queues.bury(session, "q", *next(names)),
        lambda: queues.touch(session, "q", *next(names)),
        lambda: queues.admin.update("q", tasks[5].id, Changes(priority=3, lease=tasks[5].lease)),
    ]
    with stopped(one, pair):
        told = await asyncio.gather(*(verb() for verb in verbs), return_exceptions=True)
    assert [one for one in told if not isinstance(one, NoQuorum)] == []


async def test_every_verb_of_the_queue(one: Seat, pair: Replicas) -> None:
    queues = one.queues
    for name in ("a", "b", "c"):
        await queues.put("q", TaskSpec(b"x", id=name, delay_ms=60_000))
    session, (task,) = await taken(one)
    await queues.bury(session, "q", task.id, task.lease)
    verbs: list[Act] = [
        lambda: queues.put("q", TaskSpec(b"x")),
        lambda: queues.put("q", TaskSpec(b"x", id="a")),  # keeps what is there
        lambda: queues.put_waiting("q", TaskSpec(b"x"), 10),
        lambda: queues.take(session, ["q"]),
        lambda: queues.admin.delete("q", "b"),
        lambda: queues.admin.delete("q", "nobody"),  # 0
        lambda: queues.ack(session, "q", [("c", 1)]),  # 0
        lambda: queues.buried.kick("q", count=1),
        lambda: queues.wait("q", "nobody", 0),
        lambda: queues.admin.pause("q"),
        lambda: queues.admin.resume("q"),
        lambda: queues.buried.move("q", "elsewhere", count=1),
        lambda: queues.bulk.release_all("q"),
        lambda: queues.bulk.purge("q"),
    ]
    with stopped(one, pair):
        told = await asyncio.gather(*(verb() for verb in verbs), return_exceptions=True)
        stats = await queues.admin.stats("q")  # shows what the primary has
        assert stats["queue"] == "q"
    assert [one for one in told if not isinstance(one, NoQuorum)] == []
    await queues.put("q", TaskSpec(b"x"))


async def test_a_topic_says_so_of_its_durable_queues(one: Seat, pair: Replicas) -> None:
    """It was answered INTERNAL: the refusal of the queue could not be made into the topic's."""
    for queue in ("q", "plain"):
        await one.queues.topics.link("events", queue)
    error = await refused(one, pair, lambda: one.queues.put("events", TaskSpec(b"x", id="a")))
    assert re.search(
        r"1 of the 2 queues of .* refused the task \(NOQUORUM\).* A put with ID a may be repeated",
        str(error),
    )
    assert await one.queues.put("events", TaskSpec(b"x", id="a")) == "a"


async def test_what_a_take_got_without_its_quorum_is_handed_back(one: Seat, pair: Replicas) -> None:
    queues, session = one.queues, one.queues.open_session()
    await queues.put("q", TaskSpec(b"x", id="t"))
    await refused(one, pair, lambda: queues.take(session, ["q"]))
    async with asyncio.timeout(60):
        (task,) = await queues.take(session, ["q"], wait_ms=50_000)
    assert (task.id, task.attempt) == ("t", 1)
    assert session.held.keys() == {("q", "t")}


@pytest.mark.thorough
async def test_a_waiting_take_that_found_nothing_survives_it(one: Seat, pair: Replicas) -> None:
    queues, session = one.queues, one.queues.open_session()
    with stopped(one, pair):
        waiting = asyncio.ensure_future(queues.take(session, ["q"], wait_ms=60_000))
        await asyncio.sleep(LIMIT_MS * 2 / 1000)
        assert not waiting.done()
    await queues.put("q", TaskSpec(b"x", id="t"))
    async with asyncio.timeout(60):
        assert [task.id for task in await waiting] == ["t"]


async def test_a_parked_take_is_answered_after_its_group(
    one: Seat, pair: Replicas, eventually: Any
) -> None:
    queues, session = one.queues, one.queues.open_session()
    waiting = asyncio.ensure_future(queues.take(session, ["q"], wait_ms=60_000))
    await eventually(lambda: parked_in(queues, "q"))
    with stopped(one, pair):
        await asyncio.gather(queues.put("q", TaskSpec(b"x", id="t")), return_exceptions=True)
        with pytest.raises(NoQuorum):
            await waiting
    async with asyncio.timeout(60):
        assert [task.id for task in await queues.take(session, ["q"], wait_ms=50_000)] == ["t"]


@pytest.mark.thorough
async def test_the_plain_way(one: Seat, pair: Replicas) -> None:
    queues, session = one.queues, one.queues.open_session()
    loop = asyncio.get_running_loop()
    put, got = loop.create_future(), loop.create_future()
    assert queues.fast_path.put(b"q", b"x", put)
    assert await put == 1
    with stopped(one, pair):
        assert queues.fast_path.take(session, b"q", 0, got)
        with pytest.raises(NoQuorum):
            await got
    again = loop.create_future()
    queues.fast_path.take(session, b"q", 50_000, again)
    (task,) = await again
    with stopped(one, pair):
        acked = loop.create_future()
        queues.fast_path.ack(session, b"q", task.id.encode(), task.lease, acked)
        with pytest.raises(NoQuorum):
            await acked
    assert list(session.held) == [("q", task.id)]  # nobody knows, so it goes on holding it


async def test_answers_at_the_door_come_in_their_order(one: Seat, pair: Replicas) -> None:
    async with doubles.Door(queues=one.queues) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        with stopped(one, pair):
            writer.write(b"Q.PUT q x\r\nQ.PUT q y ID y\r\nQ.PUT plain z ID z\r\nPING\r\n")
            async with asyncio.timeout(60):
                told = [await reader.readline() for _ in range(2)]
                plain = [await reader.readline() for _ in range(3)]
        assert [line[:10] for line in told] == [b"-NOQUORUM "] * 2
        assert plain == [b"$1\r\n", b"z\r\n", b"+PONG\r\n"]
        writer.close()


@pytest.mark.thorough
async def test_locks_have_the_systems_durability(one: Seat, pair: Replicas) -> None:
    locks, session = (
        locks_of(one, wait_max_ms=100_000, waiting_max=10),
        one.queues.open_session(),
    )
    fence = await locks.acquire(session, "l", 60_000)
    assert fence
    await refused(one, pair, lambda: locks.acquire(session, "other", 60_000))
    await refused(one, pair, lambda: locks.renew(session, "l", fence, 60_000))
    await refused(one, pair, lambda: locks.release(session, "l", fence))
    async with asyncio.timeout(60):
        # what was not granted was given back
        assert await locks.acquire(session, "other", 60_000, wait_ms=50_000)
    keyed = await locks.acquire(session, "k", 60_000, key=b"mine")
    await refused(one, pair, lambda: locks.acquire(session, "k", 60_000, key=b"mine"))
    # not given back: it was held before
    assert await locks.acquire(session, "k", 60_000, key=b"mine") == keyed


@pytest.mark.thorough
async def test_a_lock_that_was_acquired_without_its_quorum_for_one_who_has_gone(
    one: Seat, pair: Replicas
) -> None:
    locks, session = (
        locks_of(one, wait_max_ms=100_000, waiting_max=10),
        one.queues.open_session(),
    )
    assert await locks.acquire(session, "warm", 60_000)
    with stopped(one, pair):
        asking = asyncio.ensure_future(locks.acquire(session, "l", 60_000))
        await asyncio.sleep(LIMIT_MS / 2000)
        asking.cancel()
        await asyncio.sleep(LIMIT_MS * 2 / 1000)
    async with asyncio.timeout(60):
        assert await locks.acquire(session, "l", 60_000, wait_ms=50_000)


@pytest.mark.thorough
async def test_schedules_too_whatever_their_queue_is(one: Seat, pair: Replicas) -> None:
    schedules = Schedules(one.queues)
    await one.queues.put("plain", TaskSpec(b"x"))
    spec = Spec.every(60_000, "none")
    await schedules.put("s", spec, "plain", TaskSpec(b"x"))
    await refused(one, pair, lambda: schedules.put("s2", spec, "plain", TaskSpec(b"x")))
    await refused(one, pair, lambda: schedules.delete("s"))
    with stopped(one, pair):
        assert await one.queues.put("plain", TaskSpec(b"x"))  # such a queue goes on


@pytest.mark.thorough
async def test_a_closed_session_ends_its_leases_when_it_can(one: Seat, pair: Replicas) -> None:
    session, _ = await taken(one)
    with stopped(one, pair):
        closing = asyncio.ensure_future(one.queues.close_session(session))
        await asyncio.sleep(LIMIT_MS * 2 / 1000)
    async with asyncio.timeout(60):
        await closing
        assert await one.queues.take(one.queues.open_session(), ["q"], wait_ms=50_000)


async def test_the_setting_itself_is_firm_and_can_be_taken_back(one: Seat, pair: Replicas) -> None:
    await refused(one, pair, lambda: one.queues.admin.configure("other", {"durability": "quorum"}))
    await one.queues.admin.configure("q", {"durability": "one"})
    with stopped(one, pair):
        assert await one.queues.put("q", TaskSpec(b"x"))
    with pytest.raises(BadArg, match="appendfsync always"):
        await one.queues.admin.configure("q", {"durability": "fsync"})


async def test_a_node_that_cannot_wait_serves_no_durable_queue(pair: Replicas, one: Seat) -> None:
    async with seat(pair.url(), replicas=0) as other:
        with pytest.raises(NoQuorum, match=r"store\.replicas"):
            await other.queues.put("q", TaskSpec(b"x", id="nowhere"))
        with pytest.raises(BadArg, match=r"store\.replicas"):
            await other.queues.admin.configure("mine", {"durability": "quorum"})
    assert (await one.queues.admin.stats("q"))["total"] == 0


async def test_scripts_that_show_or_are_repeated_wait_for_nobody(one: Seat, pair: Replicas) -> None:
    """Nobody reads a promise in what they answer."""
    session, _ = await taken(one)
    scripts: dict[str, list[str | int]] = {
        "queue.check": ["tasks", "0", 10, 0],
        "queue.check_record": [0],
        "queue.configure": [],
        "queue.lanes": ["heads", "", 10],
        "queue.leases": ["a", 1],
        "queue.session_release": ["0" * 32, 10],
        "queue.leases_of": [0, 10],
        "queue.peek": ["id", "a", ""],
        "queue.reap": [1, "gone", 1, 10],
        "queue.stats": [],
        "queue.unwait": ["a"],
        "scheduler.due": [10],
        "scheduler.find": ["s"],
        "scheduler.fire": [1, one.queues.catalog.holder],
        "scheduler.forget": [],
        "scheduler.list": ["0", 10, 10],
        "scheduler.place": ["s"],
    }
    with stopped(one, pair):
        for name, args in scripts.items():
            await one.queues.scripts.run(name, "q", 0, args)
        with pytest.raises(NoQuorum):
            await one.queues.scripts.run("queue.pause", "q", 0, [0])
    await one.queues.close_session(session)

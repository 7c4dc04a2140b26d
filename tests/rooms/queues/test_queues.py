"""
The verbs of one node against a real store: puts, acks, ends, sessions, and errors in the caller's
words.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from tidewarden.errors import BadArg, Exists, Full, NotHeld, Stale, StoreDown, TooBig
from tidewarden.queue import TaskSpec
from tidewarden.queue.task import LEASE_NUMBER_MAX
from tidewarden.user_limits import ACTING


async def one(queues: Any, session: Any, queue: str = "q", **options: Any) -> Any:
    (task,) = await queues.take(session, [queue], **options)
    return task


@pytest.mark.parametrize("views", [True, False])
async def test_put_take_ack(node: Any, views: bool) -> None:
    queues = (await node(views=views)).queues
    session = queues.open_session("bob")
    task_id = await queues.put("q", TaskSpec(b"x", within_ms=5000))
    task = await one(queues, session)
    assert (task.queue, task.id, task.payload, task.attempt) == ("q", task_id, b"x", 1)
    assert task.deadline_ms == pytest.approx(task.lease_end_ms - 30_000 + 5_000, abs=2000)
    assert task.lease > (2**36 if views else 10**15)
    assert {place: held[:2] for place, held in session.held.items()} == {
        ("q", task_id): (task.lease, task.lease_end_ms)
    }
    assert await queues.ack(session, "q", [(task_id, task.lease)]) == [1]
    assert session.held == {}
    assert await queues.ack(session, "q", [(task_id, task.lease)]) == [0], (
        "an id of ours leaves no tombstone"
    )
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_an_id_of_the_callers_makes_a_retry_safe(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    assert (
        await queues.put("q", TaskSpec(b"1", id="a"))
        == await queues.put("q", TaskSpec(b"2", id="a"))
        == "a"
    )
    task = await one(queues, session)
    assert await queues.ack(session, "q", [("a", task.lease)]) == [1]
    assert await queues.ack(session, "q", [("a", task.lease)]) == [1]
    assert await queues.put("q", TaskSpec(b"3", id="a")) == "a"
    assert (await queues.admin.stats("q"))["total"] == 0
    with pytest.raises(Exists, match="the task a is there already"):
        await queues.put("q", TaskSpec(id="a", if_exists="fail"))


async def test_put_answers_in_the_callers_words(node: Any) -> None:
    queues = (await node(flags={"limits.payload_bytes": "100"})).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    with pytest.raises(Exists):
        await queues.put("q", TaskSpec(id="a", if_exists="fail"))
    await one(queues, session)
    with pytest.raises(NotHeld, match="the task a is leased; it cannot be replaced now"):
        await queues.put("q", TaskSpec(id="a", if_exists="replace"))
    for queue, task, error in (
        ("q", TaskSpec(b"x" * 101), TooBig), ("bad name", TaskSpec(), BadArg), ("q", TaskSpec(priority=100), BadArg),
        ("q", TaskSpec(id="a\udcff"), BadArg),
    ):  # fmt: skip
        with pytest.raises(error):
            await queues.put(queue, task)


async def test_items_of_one_turn_become_one_script(node: Any) -> None:
    n0 = await node()
    queues, session = n0.queues, n0.queues.open_session()
    await queues.put("q", TaskSpec(id="first"))
    calls = n0.link.calls
    await asyncio.gather(
        *(queues.put("q", TaskSpec(id=f"t{n:03}", priority=n % 5)) for n in range(400))
    )
    assert n0.link.calls == calls + 1
    batches = await asyncio.gather(*(queues.take(session, ["q"]) for _ in range(401)))
    assert n0.link.calls == calls + 2
    tasks = [task for batch in batches for task in batch]
    assert len({task.id for task in tasks}) == 401
    acks = await asyncio.gather(
        *(queues.ack(session, "q", [(task.id, task.lease)]) for task in tasks)
    )
    assert n0.link.calls == calls + 3
    assert acks == [[1]] * 401


async def test_one_bad_item_does_not_spoil_the_others_of_its_turn(node: Any) -> None:
    """What arrives together is one script, so every item is judged before it gets there."""
    n0 = await node()
    queues, session = n0.queues, n0.queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    task = await one(queues, session)
    bad: list[Any] = []
    good = queues.ack(session, "q", [("a", task.lease)])
    for lease in (-1, LEASE_NUMBER_MAX + 1, 10**16, 2**64):
        for call in (
            lambda lease=lease: queues.ack(session, "q", [("a", lease)]),
            lambda lease=lease: queues.touch(session, "q", "a", lease),
            lambda lease=lease: queues.release(session, "q", "a", lease),
            lambda lease=lease: queues.fail(session, "q", "a", lease),
            lambda lease=lease: queues.bury(session, "q", "a", lease),
        ):
            with pytest.raises(BadArg, match="the lease number is"):
                await call()
            bad.append(lease)
    assert await good == [1]
    assert len(bad) == 20


@pytest.mark.thorough
async def test_large_takes_of_one_turn_are_cut_into_scripts(node: Any) -> None:
    queues = (await node()).queues
    sessions = [queues.open_session() for _ in range(7)]
    await asyncio.gather(*(queues.put("q", TaskSpec()) for _ in range(1500)))
    taken = await asyncio.gather(*(queues.take(session, ["q"], count=1000) for session in sessions))
    assert sorted(map(len, taken)) == [0, 0, 0, 0, 0, 500, 1000]


async def test_large_payloads_of_one_turn_are_cut_into_scripts(node: Any) -> None:
    n0 = await node()
    await n0.queues.put("q", TaskSpec())
    calls = n0.link.calls
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(b"x" * 1_000_000)) for _ in range(10)))
    assert 3 <= n0.link.calls - calls <= 5


async def test_text_that_is_none_is_refused_and_nobody_waits_for_ever(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    with pytest.raises(BadArg):
        await queues.ack(session, "q", [("a\udcff", 5)])
    with pytest.raises(BadArg):
        await queues.take(session, ["q"], task_id="a\udcff")
    task = await one(queues, session)
    with pytest.raises(BadArg, match="UTF-8"):
        await queues.fail(session, "q", "a", task.lease, reason="\udcff")
    assert await queues.ack(session, "q", [("a", task.lease)]) == [1]


async def test_release_fail_bury_touch(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    task = await one(queues, session)
    await queues.release(session, "q", "a", task.lease)
    assert session.held == {}
    task = await one(queues, session)
    assert task.attempt == 1
    end_ms = await queues.touch(session, "q", "a", task.lease, 90_000)
    assert end_ms > task.lease_end_ms + 50_000
    assert {place: held[:2] for place, held in session.held.items()} == {
        ("q", "a"): (task.lease, end_ms)
    }
    await queues.fail(session, "q", "a", task.lease, reason="broken")
    assert (await queues.admin.peek("q", "a"))["reason"] == "broken"
    task = await one(queues, session)
    assert task.attempt == 2
    await queues.fail(session, "q", "a", task.lease, delay_ms=60_000)
    assert (await queues.admin.peek("q", "a"))["state"] == "delayed"
    task = await one(queues, session, task_id="a")
    await queues.bury(session, "q", "a", task.lease)
    assert (await queues.admin.peek("q", "a"))["reason"] == "buried"
    for call in (queues.release, queues.fail, queues.bury, queues.touch):
        with pytest.raises(NotHeld, match=f"the task a of q is not held under lease {task.lease}"):
            await call(session, "q", "a", task.lease)


async def test_a_lease_may_be_used_by_another_session(node: Any) -> None:
    queues = (await node()).queues
    taker, other = queues.open_session(), queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    task = await one(queues, taker)
    assert await queues.ack(other, "q", [("a", task.lease)]) == [1]
    await queues.close_session(taker)
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_what_a_take_may_ask(node: Any) -> None:
    queues = (await node(flags={"limits.wait_ms": "1000"})).queues
    session = queues.open_session()
    for options in (
        {"count": 0}, {"count": 1001}, {"wait_ms": -1}, {"wait_ms": 1001}, {"lease_ms": -1}, {"lease_ms": 2**40},
        {"task_id": "a b"},
    ):  # fmt: skip
        with pytest.raises(BadArg):
            await queues.take(session, ["q"], **options)
    with pytest.raises(BadArg, match="at least one queue"):
        await queues.take(session, [])
    with pytest.raises(BadArg):
        await queues.take(session, ["bad name"])
    with pytest.raises(BadArg):
        await queues.ack(session, "q", [])


async def test_so_many_takes_may_wait(node: Any) -> None:
    queues = (await node(flags={"limits.waiting_max": "2"})).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a", delay_ms=10**6))
    waiting = [queues.take(session, ["q"], wait_ms=60_000) for _ in range(2)]
    with pytest.raises(Full, match=r"limits\.waiting_max"):
        queues.take(session, ["q"], wait_ms=1)
    assert await queues.take(session, ["q"]) == [], "one that does not wait is served"
    waiting[0].cancel()
    await asyncio.sleep(0)
    third = queues.take(session, ["q"], wait_ms=60_000)
    assert queues.consumer.waiting() == 2
    queues.end_waits()
    assert await asyncio.gather(waiting[1], third) == [[], []]
    assert queues.consumer.waiting() == 0


async def test_earlier_queues_first(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    for queue, count in (("low", 3), ("high", 2)):
        for n in range(count):
            await queues.put(queue, TaskSpec(id=f"{queue}{n}"))
    tasks = await queues.take(session, ["high", "low"], count=4)
    assert [task.id for task in tasks] == ["high0", "high1", "low0", "low1"]
    assert [task.queue for task in tasks] == ["high", "high", "low", "low"]
    assert [(await one(queues, session, "low")).id] == ["low2"]


async def test_sixteen_shards_are_served_in_turn(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.admin.configure("q", {"shards": 16})
    ids = [f"t{n}" for n in range(160)]
    await asyncio.gather(*(queues.put("q", TaskSpec(id=name)) for name in ids))
    assert await queues.catalog.shard_count("q") == 16
    by_shard: dict[int, int] = {}
    for name in ids:
        by_shard[queues.catalog.shard_of("q", name)] = (
            by_shard.get(queues.catalog.shard_of("q", name), 0) + 1
        )
    first = [(await one(queues, session)).id for _ in range(16)]
    assert {queues.catalog.shard_of("q", name) for name in first} == set(range(16)), "one of each"
    rest = await queues.take(session, ["q"], count=1000)
    assert sorted(first + [task.id for task in rest]) == sorted(ids)
    stats = await queues.admin.stats("q")
    assert (stats["shards"], stats["leased"], stats["count_taken"]) == (16, 160, 160)
    assert await queues.ack(session, "q", [(task.id, task.lease) for task in rest]) == [1] * 144


async def test_one_task_of_many_shards_by_its_id(node: Any) -> None:
    n0 = await node()
    queues, session = n0.queues, n0.queues.open_session()
    await queues.admin.configure("q", {"shards": 16})
    await asyncio.gather(
        *(queues.put("q", TaskSpec(id=f"t{n}", delay_ms=10**6)) for n in range(40))
    )
    calls = n0.link.calls
    for n in (3, 17, 39):
        assert (await one(queues, session, task_id=f"t{n}")).id == f"t{n}"
        await queues.ack(session, "q", [(f"t{n}", (session.held["q", f"t{n}"])[0])])
    assert n0.link.calls == calls + 6, "only its own shard is asked"
    assert await queues.take(session, ["q"], task_id="t3") == []


async def test_a_session_that_closes_loses_all_at_once_in_one_batch(node: Any) -> None:
    n0 = await node()
    queues, session, other = n0.queues, n0.queues.open_session(), n0.queues.open_session()
    for n in range(20):
        await queues.put("q", TaskSpec(id=f"t{n:02}", attempts=1))
    tasks = await queues.take(session, ["q"], count=10)
    await queues.ack(session, "q", [(tasks[0].id, tasks[0].lease)])
    await queues.release(session, "q", tasks[1].id, tasks[1].lease)
    calls = n0.link.calls
    await queues.close_session(session)
    assert n0.link.calls == calls + 1
    again = await queues.take(other, ["q"], count=10)
    assert [task.id for task in again] == [f"t{n:02}" for n in range(1, 11)]
    assert {task.attempt for task in again} == {1}, "the attempt was given back"
    assert (await queues.admin.peek("q", "t02"))["losses"] == 1
    assert (await queues.admin.peek("q", "t01"))["losses"] == 0
    await queues.close_session(session)


async def test_a_task_that_loses_its_consumers_too_often_is_buried(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"losses_max": 2})
    await queues.put("q", TaskSpec(id="a"))
    for _ in range(2):
        session = queues.open_session()
        await one(queues, session)
        await queues.close_session(session)
    assert (await queues.admin.peek("q", "a"))["state"] == "buried"
    assert await queues.buried.kick("q", count=1) == 1


async def test_an_ack_under_way_when_its_session_closes_counts(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    task = await one(queues, session)
    ack = queues.ack(session, "q", [("a", task.lease)])
    await queues.close_session(session)
    assert await ack == [1]
    stats = await queues.admin.stats("q")
    assert (stats["total"], stats.get("count_loss", 0)) == (0, 0)


async def test_a_dead_boot_is_refused_until_it_registers_again(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1", boot=4)
    session = n1.queues.open_session()
    await n0.queues.put("q", TaskSpec(id="a"))
    await one(n1.queues, session)
    assert await n0.queues.scripts.run("queue.reap", "q", 0, [1, "n1", 4, 100]) == [1, 0]
    with pytest.raises(Stale, match=r"n1\.4 was declared dead"):
        await n1.queues.take(session, ["q"])
    waiting = n1.queues.take(session, ["q"], count=5, wait_ms=60_000)
    n1.queues.catalog.holder = "n1.5"  # as registering does
    assert [task.id for task in await waiting] == ["a"]


async def test_two_nodes_share_a_queue_and_no_task_goes_twice(node: Any) -> None:
    nodes = [await node("n0"), await node("n1")]
    sessions = [(n.queues, n.queues.open_session()) for n in nodes]
    await asyncio.gather(*(nodes[n % 2].queues.put("q", TaskSpec(id=f"t{n}")) for n in range(300)))
    seen: list[str] = []
    while len(seen) < 300:
        batches = await asyncio.gather(
            *(queues.take(session, ["q"], count=7) for queues, session in sessions)
        )
        seen += [task.id for batch in batches for task in batch]
    assert len(set(seen)) == 300


@pytest.mark.thorough
async def test_the_systems_own_takes_are_under_no_limit_of_the_users(node: Any) -> None:
    queues = (await node(flags={"limits.wait_ms": "1000", "limits.waiting_max": "1"})).queues
    user, system = queues.open_session(), queues.open_session()
    waiting = queues.take(user, ["q"], wait_ms=1000)
    for options in ({"wait_ms": 1001}, {"wait_ms": 1000}):
        with pytest.raises((BadArg, Full)):
            await queues.take(user, ["q"], **options)
    taking = queues.take(system, ["_webhooks"], wait_ms=600_000)
    await queues.put("_webhooks", TaskSpec(b"x", id="a"))
    async with asyncio.timeout(5):
        assert [task.id for task in await taking] == ["a"]
        assert await waiting == []


@pytest.mark.parametrize("name", ["q", "topic"])
@pytest.mark.parametrize("way", ["plain", "fast", "waiting"])
async def test_puts_keep_their_order_while_their_name_becomes_known(
    node: Any, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    """As when a client sends a thousand puts at once to a queue that is new to the node."""
    n0 = await node()
    queues, catalog = n0.queues, n0.queues.catalog
    if name == "topic":
        await queues.topics.link("topic", "q")
        catalog.topics.clear()
    real, may_go_on, known = catalog.links_of, asyncio.Event(), asyncio.Event()

    async def links_of(asked: str) -> Any:
        links = await real(asked)
        known.set()
        await may_go_on.wait()  # other callbacks of the same turn come before whoever asked
        return links

    monkeypatch.setattr(catalog, "links_of", links_of)
    earlier = [queues.put(name, TaskSpec(b"%d" % n)) for n in range(3)]
    await known.wait()
    later: Any
    if way == "waiting":
        later = asyncio.ensure_future(queues.put_waiting(name, TaskSpec(b"3"), 1000))
    elif way == "fast":
        later = asyncio.get_running_loop().create_future()
        if queues.fast_path.put(name.encode(), b"3", later) is None:
            later = queues.put(name, TaskSpec(b"3"))
    else:
        later = queues.put(name, TaskSpec(b"3"))
    await asyncio.sleep(0.05)  # so that a put which goes now is due before the others
    may_go_on.set()
    await asyncio.gather(*earlier, later)
    tasks = await queues.take(queues.open_session(), ["q"], count=10)
    assert [task.payload for task in tasks] == [b"0", b"1", b"2", b"3"]


async def test_one_users_refusal_is_not_the_next_ones(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user looks up for himself whether he may make the queue."""
    queues = (await node()).queues
    real = queues.catalog.links_of

    async def links_of(name: str) -> Any:
        if ACTING.get() == "poor":
            raise Full("your share is used up")
        return await real(name)

    monkeypatch.setattr(queues.catalog, "links_of", links_of)
    acting = {user: contextvars.copy_context() for user in ("poor", "rich")}
    for user, context in acting.items():
        context.run(ACTING.set, user)
    refused = acting["poor"].run(queues.put, "q", TaskSpec())
    made = acting["rich"].run(queues.put, "q", TaskSpec(id="a"))
    with pytest.raises(Full, match="your share"):
        await refused
    assert await made == "a"


async def test_who_puts_to_a_new_name_is_told_at_once_that_the_store_is_down(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one behind the other, each after the time that a store has."""
    queues = (await node()).queues
    asked: list[str] = []

    async def links_of(name: str) -> None:
        asked.append(name)
        raise StoreDown("it is not heard")

    monkeypatch.setattr(queues.catalog, "links_of", links_of)
    puts = [queues.put("q", TaskSpec()) for _ in range(100)]
    told = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(error, StoreDown) for error in told)
    assert asked == ["q"]
    monkeypatch.undo()
    await queues.put("q", TaskSpec())

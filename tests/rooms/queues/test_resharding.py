"""
A queue is cut into other shards, and nodes that have not heard of it yet cannot put into what is
another layout.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.inspect import settings_of

from tidewarden.errors import BadArg, Error, NotFound, Stale
from tidewarden.queue import TaskSpec
from tidewarden.queue.catalog import KnownShards
from tidewarden.queue.partitioning import shard_of
from tidewarden.queue.settings import QueueSettings
from tidewarden.queue.shards.resharding import Resharded, repeat, resharded_error


def test_the_scripts_word_is_understood() -> None:
    found = resharded_error("q", Error("RECUT 7 the queue was cut"))
    assert isinstance(found, Resharded)
    assert found.layout == 7
    assert found.code == "STALE"
    for other in (Error("x RECUT 7"), Stale("RECUT 7 y")):
        assert resharded_error("q", other) is other


async def test_a_queue_that_is_dropped_as_its_cut_was_read_answers() -> None:
    loop = asyncio.get_running_loop()
    receivers = [loop.create_future() for _ in range(2)]
    places: asyncio.Future[Any] = loop.create_future()
    repeat(places, Stale("cut"), receivers, "queue.put", ("a", "", b"x", "b", "", b"y"))
    places.set_result(KnownShards().__getitem__)
    for receiver in receivers:
        with pytest.raises(NotFound, match="was dropped"):
            await asyncio.wait_for(receiver, 10)


async def deaf_pair(node: Any, shards: int = 2) -> tuple[Any, Any]:
    """Two nodes that know a queue of so many shards; the second hears of nothing any more."""
    n0 = await node("n0")
    await n0.queues.admin.configure("q", {"shards": shards})
    n1 = await node("n1")
    assert await n1.queues.catalog.shard_count("q") == shards
    await n1.ears.stop()
    return n0, n1


@pytest.mark.parametrize("shards", [1, 3, 8])
async def test_a_stale_nodes_puts_arrive_where_everybody_looks(node: Any, shards: int) -> None:
    n0, n1 = await deaf_pair(node)
    await n0.queues.admin.configure("q", {"shards": shards})
    names = [f"t{n}" for n in range(50)]
    assert await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=name)) for name in names)) == names
    for name in names:
        assert (await n0.queues.admin.peek("q", name))["state"] == "ready"
    assert await n1.queues.catalog.shard_count("q") == shards
    assert (await n0.queues.admin.stats("q"))["ready"] == 50


async def test_a_stale_nodes_acks_find_the_task(node: Any) -> None:
    n0, n1 = await deaf_pair(node)
    await n0.queues.admin.configure("q", {"shards": 5})
    session = n0.queues.open_session()
    names = [f"t{n}" for n in range(20)]
    await asyncio.gather(*(n0.queues.put("q", TaskSpec(id=name)) for name in names))
    taken = await n0.queues.take(session, ["q"], count=20)
    assert len(taken) == 20
    # Together with a take, which cannot be repeated: every part of the batch is refused.
    acks = n1.queues.ack(n1.queues.open_session(), "q", [(task.id, task.lease) for task in taken])
    take = n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=60_000)
    assert await acks == [1] * 20
    assert await take == [], "who waits where the queue no longer is asks again"
    assert (await n0.queues.admin.stats("q"))["total"] == 0


async def test_what_cannot_be_repeated_is_refused_once(node: Any) -> None:
    n0, n1 = await deaf_pair(node)
    await n0.queues.admin.configure("q", {"shards": 4})
    await n0.queues.put("q", TaskSpec(id="a"))
    with pytest.raises(Stale, match="is being cut into other shards; repeat"):
        await n1.queues.take(n1.queues.open_session(), ["q"])
    assert [task.id for task in await n1.queues.take(n1.queues.open_session(), ["q"])] == ["a"]
    await n0.queues.admin.delete("q", "a", force=True)
    await n0.queues.admin.configure("q", {"shards": 1})
    with pytest.raises(Stale):
        await n1.queues.admin.resume("q")
    assert (await n1.queues.admin.stats("q"))["shards"] == 1
    await n0.queues.admin.configure("q", {"shards": 4})
    assert (await n1.queues.admin.stats("q"))["shards"] == 4, "what changes nothing is asked again"


async def test_scripts_of_other_rooms_are_repeated(node: Any) -> None:
    n0, n1 = await deaf_pair(node)
    await n0.queues.admin.configure("q", {"shards": 4})
    assert await n1.queues.scripts.run("queue.reap", "q", 0, [1, "n9", 1, 10]) == [0, 0]
    await n0.queues.admin.configure("q", {"shards": 3})
    assert (await n1.queues.scripts.run_on(n0.link, "queue.stats", "q", 1, []))[2][:4] == [
        0,
        0,
        0,
        0,
    ]


async def test_a_cut_needs_an_empty_queue_and_leaves_it_usable(node: Any) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"shards": 2})
    await n0.queues.put("q", TaskSpec(id="a"))
    for values in (
        {"shards": 3},
        {"strategy": "round_robin"},
        {"shards": 3, "strategy": "round_robin"},
    ):
        with pytest.raises(BadArg, match="can be changed only while it is empty"):
            await n0.queues.admin.configure("q", values)
    # the same number is no change
    assert await n0.queues.admin.configure("q", {"shards": 2, "lease_ms": 5})
    assert (await n0.queues.admin.peek("q", "a"))["state"] == "ready"
    assert "layout" not in await n0.queues.admin.settings("q")


async def test_a_put_into_the_middle_of_a_cut_stops_it(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n0, n1 = await deaf_pair(node)

    async def empty(_queue: str) -> dict[str, int]:
        await n1.queues.put("q", TaskSpec(id="late"))
        return {"total": 0, "schedules": 0}

    with monkeypatch.context() as patch:
        patch.setattr(n0.queues.admin, "stats", empty)
        with pytest.raises(BadArg, match="shards of q can be changed only while it is empty"):
            await n0.queues.admin.configure("q", {"shards": 4})
    for one in (n0, n1):
        for n in range(10):
            await one.queues.put("q", TaskSpec(id=f"t{n}"))
        assert (await one.queues.admin.stats("q"))["total"] == 11


@pytest.mark.thorough
async def test_a_cut_whose_node_died_over_it_is_undone(
    node: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    n0, n1 = await deaf_pair(node)
    # closed one shard of two, and died
    await n0.queues.scripts.run("queue.configure", "q", 0, ["layout", 2])
    names = [f"t{n}" for n in range(20)]
    await asyncio.gather(*(n1.queues.put("q", TaskSpec(id=name)) for name in names))
    assert "broke off; it keeps its 2" in caplog.text
    await eventually(lambda: settings_of(n0.queues)["q"].layout == 3)
    for name in names:
        assert (await n0.queues.admin.peek("q", name))["state"] == "ready"
    raw = await n0.link.call("HGET", "{tw}:queues", "q")
    assert msgspec.json.decode(raw, type=QueueSettings).layout == 3


@pytest.mark.parametrize("beyond", [1, 7])
async def test_settings_that_the_store_lost_while_a_shard_knows_of_a_newer_cut(
    node: Any, beyond: int, eventually: Any
) -> None:
    """As after a failover just behind a cut: every request has an answer, and the queue goes on."""
    n0 = await node("n0")
    await n0.queues.admin.configure("q", {"shards": 2, "lease_ms": 1000})
    layout = settings_of(n0.queues)["q"].layout
    for shard, ahead in ((0, 1), (1, beyond)):
        await n0.queues.scripts.run("queue.configure", "q", shard, ["layout", layout + ahead])
    await n0.link.call("HDEL", "{tw}:queues", "q")
    names = [f"t{n}" for n in range(20)]
    async with asyncio.timeout(60):
        waiting = set(names)
        while waiting:
            tried = sorted(waiting)
            puts = (n0.queues.put("q", TaskSpec(id=name)) for name in tried)
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
            assert all(isinstance(one, str | Stale) for one in outcomes), outcomes
            waiting -= {one for one in outcomes if isinstance(one, str)}
        for name in names:
            assert (await n0.queues.admin.peek("q", name))["state"] == "ready"
    await eventually(lambda: settings_of(n0.queues)["q"].layout > layout + beyond)
    assert settings_of(n0.queues)["q"].lease_ms == 1000


async def test_two_that_cut_at_once_do_not_mix(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="x"))
    await n0.queues.admin.delete("q", "x")
    replies = await asyncio.gather(
        n0.queues.admin.configure("q", {"shards": 4}),
        n1.queues.admin.configure("q", {"shards": 7}),
        return_exceptions=True,
    )
    assert all(isinstance(reply, dict | Stale) for reply in replies), replies
    for n in range(30):
        for one in (n0, n1):
            await one.queues.put("q", TaskSpec(id=f"t{n}"))
    assert (
        (await n0.queues.admin.stats("q"))["total"]
        == (await n1.queues.admin.stats("q"))["total"]
        == 30
    )


@pytest.mark.thorough
async def test_nothing_is_lost_while_a_busy_queue_is_cut_again_and_again(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    names = [f"t{n}" for n in range(400)]
    done: set[str] = set()
    cuts = 0

    async def produce() -> None:
        for at, name in enumerate(names):
            while True:
                try:
                    await (n0, n1)[at % 2].queues.put("q", TaskSpec(id=name))
                    break
                except Stale:
                    await asyncio.sleep(0)

    async def consume(one: Any) -> None:
        session = one.queues.open_session()
        while len(done) < len(names):
            try:
                for task in await one.queues.take(session, ["q"], count=5, wait_ms=20):
                    assert await one.queues.ack(session, "q", [(task.id, task.lease)]) == [1]
                    assert task.id not in done
                    done.add(task.id)
            except Stale:
                await asyncio.sleep(0)

    async def cut() -> None:
        nonlocal cuts
        shards = 0
        while len(done) < len(names):
            shards = shards % 4 + 1
            try:
                await (n0, n1)[shards % 2].queues.admin.configure("q", {"shards": shards})
                cuts += 1
            except (BadArg, Stale):
                pass
            await asyncio.sleep(0.002)

    async with asyncio.timeout(60):
        await asyncio.gather(produce(), consume(n0), consume(n1), cut())
    assert done == set(names)
    assert cuts > 3
    assert await n0.link.call("KEYS", "{tw:q:*}:tasks") == [], "no task lies where nobody looks"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
async def test_no_lease_of_the_former_shards_is_given_again(
    node: Any, before: int, after: int
) -> None:
    """An id lies in another shard now, which has given out fewer numbers."""
    queues = (await node(views=True)).queues
    await queues.admin.configure("q", {"shards": before})
    task_id = next(
        name for name in map(str, range(99)) if shard_of(name, before) != shard_of(name, after)
    )
    await queues.put("q", TaskSpec(id=task_id))
    (old,) = await queues.take(queues.open_session(), ["q"])
    await queues.admin.delete("q", task_id, force=True)
    await queues.admin.configure("q", {"shards": after})
    await queues.put("q", TaskSpec(id=task_id))
    (new,) = await queues.take(queues.open_session(), ["q"])
    assert new.lease > old.lease
    assert await queues.ack(queues.open_session(), "q", [(task_id, old.lease)]) == [0]

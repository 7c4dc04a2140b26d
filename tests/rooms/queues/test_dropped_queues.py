"""Queues and topics end, and nobody who comes late brings one back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from support.inspect import link_of

from tidewarden.errors import BadArg, Error, Full, NotFound, Stale
from tidewarden.queue import TaskSpec
from tidewarden.queue.ends import dropped_queues, queue_expiry
from tidewarden.queue.partitioning import shard_of
from tidewarden.queue.settings import Dropped
from tidewarden.queue.shards.shard_settings import close
from tidewarden.user_limits import ACTING

DROPPED = "the queue q was dropped"


async def filled(node: Any, shards: int = 2) -> tuple[Any, Any, Any]:
    """A node whose queue has a task in each state, one that is leased, and its session."""
    n0 = await node("n0")
    queues = n0.queues
    await queues.admin.configure("q", {"shards": shards, "lane_limit": 1})
    for name in ("leased", "buried"):
        await queues.put("q", TaskSpec(id=name))
        (task,) = await queues.take(queues.open_session(), ["q"], task_id=name)
        if name == "buried":
            await queues.bury(queues.open_session(), "q", name, task.lease)
        else:
            leased = task
    await queues.put("q", TaskSpec(id="ready"))
    await queues.put("q", TaskSpec(id="delayed", delay_ms=600_000))
    for name in ("a", "b"):
        await queues.put("q", TaskSpec(id=f"{name}", lane="x"))
    return n0, queues, leased


async def keys_of(queues: Any) -> list[str]:
    """The keys of the queue's shards, those that end by themselves aside."""
    link = link_of(queues)
    found = [key.decode() for key in await link.call("KEYS", "{tw:q:*")]
    return sorted([key for key in found if await link.call("PTTL", key) < 0])


async def test_a_queue_goes_with_what_it_holds(node: Any) -> None:
    _, queues, _ = await filled(node)
    assert await queues.dropped.drop("q", force=True) == 6
    assert await keys_of(queues) == []
    assert await queues.catalog.names() == []
    with pytest.raises(NotFound, match="there is no queue q"):
        await queues.admin.stats("q")
    for again in (queues.dropped.drop("q"), queues.put("q", TaskSpec(id="new"))):
        with pytest.raises(NotFound, match=DROPPED):
            await again
    with pytest.raises(NotFound, match=DROPPED):
        await queues.take(queues.open_session(), ["q"])
    assert await queues.catalog.names() == []


async def test_one_that_is_made_again_is_new(node: Any) -> None:
    _, queues, leased = await filled(node)
    await queues.admin.configure("q", {"capacity": 50})
    await queues.dropped.drop("q", force=True)
    shown = await queues.admin.configure("q", {"lease_ms": 700})
    assert (shown["shards"], shown["capacity"], shown["lease_ms"]) == (1, 0, 700)
    assert (await queues.admin.stats("q"))["total"] == 0
    await queues.put("q", TaskSpec(id="leased"))
    (task,) = await queues.take(queues.open_session(), ["q"])
    assert task.lease != leased.lease
    assert await queues.ack(queues.open_session(), "q", [("leased", leased.lease)]) == [0]
    assert await keys_of(queues), "its record does not end with the dropped one's"
    assert await link_of(queues).call("PTTL", "{tw:q:0}:shard") == -1


async def test_without_force_it_has_to_be_empty_and_goes_on(node: Any) -> None:
    n0 = await node()
    queues = n0.queues
    await queues.put("q", TaskSpec(id="a"))
    with pytest.raises(BadArg, match="q holds tasks or has schedules; FORCE drops it with its"):
        await queues.dropped.drop("q")
    (task,) = await queues.take(queues.open_session(), ["q"])
    assert await queues.ack(queues.open_session(), "q", [("a", task.lease)]) == [1]
    assert await queues.dropped.drop("q") == 0


async def test_a_drop_that_is_refused_disturbs_nobody(node: Any, eventually: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": 3})
    await queues.topics.link("news", "q")
    wait = asyncio.ensure_future(queues.take(queues.open_session(), ["q"], wait_ms=60_000))
    shards = queues.catalog.shards["q"]
    await eventually(lambda: all(shard.parked for shard in shards))
    noted = [part for n in range(100_000) for part in (f"old{n}", "{}")]
    await link_of(queues).call("HSET", "{tw}:dropped", *noted)
    with pytest.raises(Full, match="100000 queues were dropped within a day"):
        await queues.dropped.drop("q", force=True)
    await link_of(queues).call("DEL", "{tw}:dropped")
    with pytest.raises(BadArg, match="is linked"):
        await queues.dropped.drop("q")
    await queues.put("q", TaskSpec(id="later", delay_ms=600_000))
    with pytest.raises(BadArg, match="holds tasks"):
        await queues.dropped.drop("q")
    assert queues.catalog.shards["q"] is shards
    await queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await wait] == ["a"]


async def test_what_is_none_and_what_is_the_systems_is_refused(node: Any) -> None:
    queues = (await node()).queues
    with pytest.raises(NotFound, match="there is no queue none"):
        await queues.dropped.drop("none")
    with pytest.raises(BadArg, match="the system's"):
        await queues.dropped.drop("_locks")
    await queues.topics.link("news", "mail")
    with pytest.raises(BadArg, match="news is a topic, which Q"):
        await queues.dropped.drop("news")
    with pytest.raises(NotFound, match="there is no topic mail"):
        await queues.dropped.drop_topic("mail")


async def test_a_linked_queue_leaves_its_topics_by_force_alone(node: Any) -> None:
    queues = (await node()).queues
    for topic in ("news", "facts"):
        await queues.topics.link(topic, "q")
        await queues.topics.link(topic, "other")
    with pytest.raises(BadArg, match="q is linked to topics: to 2; FORCE unlinks it"):
        await queues.dropped.drop("q")
    await queues.put("q", TaskSpec(id="a"))
    assert await queues.dropped.drop("q", force=True) == 1
    assert await queues.topics.all() == {"facts": ["other"], "news": ["other"]}
    await queues.put("news", TaskSpec(id="b"))
    assert (await queues.admin.stats("other"))["ready"] == 1


async def test_a_topic_ends_and_its_queues_stay(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.topics.link("news", "mail")
    await n1.queues.put("news", TaskSpec(id="a"))
    assert await n0.queues.dropped.drop_topic("news") == 1
    assert await n0.queues.topics.all() == {}
    assert (await n0.queues.admin.stats("mail"))["ready"] == 1
    await eventually(lambda: "news" not in n1.queues.catalog.topics)
    await n1.queues.put("news", TaskSpec(id="b"))
    assert await n0.queues.catalog.names() == ["mail", "news"], "the name is free"


async def test_who_waits_or_holds_is_told(node: Any, eventually: Any) -> None:
    _, queues, leased = await filled(node, 1)
    await queues.bulk.purge("q", "ready")
    n1 = await node("n1")
    await n1.queues.catalog.open("q")
    wait = asyncio.ensure_future(
        n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=60_000, task_id="none")
    )
    await eventually(lambda: n1.queues.catalog.shards["q"][0].parked)
    await queues.dropped.drop("q", force=True)
    with pytest.raises(NotFound, match=DROPPED):
        await wait
    with pytest.raises(NotFound, match=DROPPED):
        await queues.ack(queues.open_session(), "q", [("leased", leased.lease)])


async def test_a_session_that_holds_its_tasks_closes(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    for queue in ("q", "r"):
        await queues.put(queue, TaskSpec(id="a"))
    assert len(await queues.take(session, ["q", "r"], count=2)) == 2
    await queues.dropped.drop("q", force=True)
    await queues.close_session(session)
    assert (await queues.admin.stats("r"))["ready"] == 1, "the other queue's task is free again"


async def deaf_pair(node: Any) -> tuple[Any, Any]:
    """Two nodes, of which the second knows the queue, and hears of nothing any more."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
    await n1.queues.catalog.open("q")
    await n1.ears.stop()
    return n0.queues, n1.queues


async def test_a_node_that_has_not_heard_of_it_brings_nothing_back(node: Any) -> None:
    queues, deaf = await deaf_pair(node)
    (task,) = await deaf.take(deaf.open_session(), ["q"])
    await queues.dropped.drop("q", force=True)
    puts = [deaf.put("q", TaskSpec(id=f"t{n}")) for n in range(20)]
    ack = deaf.ack(deaf.open_session(), "q", [("a", task.lease)])
    for late in (*puts, ack):
        with pytest.raises(NotFound, match=DROPPED):
            await late
    await deaf.catalog.recall()
    assert await queues.catalog.names() == []
    assert await keys_of(queues) == []


async def test_a_store_that_was_exchanged_brings_nothing_back(node: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.dropped.drop("q", force=True)
    await deaf.catalog.recall()
    assert await queues.catalog.names() == []
    assert "q" not in deaf.catalog.settings


async def test_a_drop_that_broke_off_before_its_name_went_is_none(node: Any) -> None:
    queues, other = await deaf_pair(node)
    shards = await queues.catalog.open("q")
    assert await close(shards, 1, "last_layout")  # and here the node died
    await other.put("q", TaskSpec(id="b"))
    assert (await other.admin.stats("q"))["ready"] == 2


async def test_a_drop_that_broke_off_after_it_is_ended_by_the_leader(node: Any) -> None:
    _, queues, _ = await filled(node)
    catalog = queues.catalog
    raw, settings = await catalog.stored("q")
    note = Dropped(settings.layout + 1, settings.shards, 1)
    word, links = await catalog.run_on_names(
        "queue.drop_queue", "q", raw, msgspec.json.encode(note), 1, 1000, 1000
    )
    assert (word, links) == (1, 0)  # and here the node died
    catalog.lose("q")
    with pytest.raises(Stale, match="what it held is still being removed; repeat this in a moment"):
        await queues.admin.configure("q", {"lease_ms": 5})
    await queues.dropped.tend()
    assert await keys_of(queues) == []
    await queues.dropped.tend()
    await queues.admin.configure("q", {"lease_ms": 5})
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_the_name_is_free_after_a_day(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = (await node()).queues
    await queues.put("q", TaskSpec(id="a"))
    await queues.dropped.drop("q", force=True)
    await queues.dropped.tend()
    with pytest.raises(NotFound):
        await queues.put("q", TaskSpec(id="b"))
    monkeypatch.setattr(dropped_queues, "KEPT_MS", -60_000)
    await queues.dropped.tend()
    assert await queues.put("q", TaskSpec(id="b")) == "b"
    assert (await queues.admin.stats("q"))["total"] == 1


async def test_what_is_noted_of_it_and_cannot_be_read_stops_nothing(node: Any) -> None:
    queues = (await node()).queues
    await queues.put("q", TaskSpec(id="a"))
    await link_of(queues).call("HSET", "{tw}:dropped", "odd", "no JSON")
    await queues.dropped.drop("q", force=True)
    await queues.dropped.tend()
    assert await keys_of(queues) == []
    await link_of(queues).call("HDEL", "{tw}:dropped", "odd")


async def test_its_place_is_free_at_once(node: Any) -> None:
    queues = (await node(flags={"limits.queues_max": "3", "limits.user_share": "0.5"})).queues
    for name in ("q", "r", "s"):
        await queues.put(name, TaskSpec(id="a"))
    with pytest.raises(Full):
        await queues.put("t", TaskSpec(id="a"))
    await queues.dropped.drop("q", force=True)
    assert await queues.put("t", TaskSpec(id="a")) == "a"


async def test_one_user_has_its_share_of_those_that_are_known_as_dropped(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others drop nothing for a day, and queues that nobody uses take up the names."""
    monkeypatch.setattr(dropped_queues, "DROPPED_MAX", 10)
    queues = (await node()).queues
    queues.user_limits.follow(["eve", "bob"])
    token = ACTING.set("eve")
    try:
        for n in range(9):
            await queues.put(f"eve.{n}", TaskSpec(id="a"))
        ACTING.set("bob")
        await queues.put("bob", TaskSpec(id="a"))
        for n in range(8):  # whoever drops them
            await queues.dropped.drop(f"eve.{n}", force=True)
        said = r"eve has made 8 queues that were dropped, where 2 of 10 \(within a day\) are free"
        with pytest.raises(Full, match=said):
            await queues.dropped.drop("eve.8", force=True)
        await queues.dropped.drop("bob", force=True)
        await queues.admin.configure("eve.0", {"lease_ms": 5})  # known as dropped no more
        await queues.dropped.drop("eve.8", force=True)
    finally:
        ACTING.reset(token)


async def test_its_makers_share_is_free_again(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = (await node()).queues
    token = ACTING.set("ann")
    try:
        await queues.put("q", TaskSpec(id="a"))
        await queues.topics.link("news", "r")
        makers = await link_of(queues).call("HGETALL", "{tw}:makers")
        assert dict(zip(makers[::2], makers[1::2], strict=True)) == {
            b"queues ann": b"1",
            b"queue q": b"ann",
            b"topics ann": b"1",
            b"topic news": b"ann",
            b"queue r": b"ann",
        } | {b"queues ann": b"2"}
        for name in ("q", "r"):
            await queues.dropped.drop(name, force=True)
        await queues.dropped.drop_topic("news")
    finally:
        ACTING.reset(token)
    monkeypatch.setattr(dropped_queues, "KEPT_MS", -60_000)
    await queues.dropped.tend()
    assert await link_of(queues).call("HGETALL", "{tw}:makers") == []


async def test_a_topic_goes_on_without_a_queue_that_ended(node: Any) -> None:
    """Also where a node has heard neither of the end nor that the topic lacks it now."""
    queues, deaf = await deaf_pair(node)
    for name in ("q", "r"):
        await queues.topics.link("news", name)
    await deaf.put("news", TaskSpec(id="a"))
    for free in (False, True):
        await queues.dropped.drop("q", force=True) if not free else await expire(queues)
        for n in range(3):
            assert await deaf.put("news", TaskSpec(id=f"{free}-{n}")) == f"{free}-{n}"
            spec = TaskSpec(id=f"{free}-w{n}")
            assert await deaf.capacity_wait.put("news", spec, 5) == spec.id
        assert await queues.catalog.names() == ["r"], "no copy makes it again"
        await queues.admin.configure("q", {"expire_ms": 60_000})
        await queues.topics.link("news", "q")
        deaf.catalog.topics["news"] = ("q", "r")
        await deaf.catalog.open("q")
    assert (await queues.admin.stats("r"))["ready"] == 13


async def test_a_queue_that_was_dropped_is_not_linked(node: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.dropped.drop("q", force=True)
    with pytest.raises(NotFound, match=DROPPED):
        await deaf.topics.link("news", "q")
    assert await queues.topics.all() == {}


async def test_a_queue_that_ended_is_made_again_as_it_is_linked(node: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.admin.configure("q", {"expire_ms": 60_000})
    await deaf.catalog.stored("q")
    await expire(queues)
    assert await deaf.topics.link("news", "q") == 1
    assert (await queues.admin.settings("q"))["expire_ms"] == 0
    assert (await queues.admin.stats("q"))["total"] == 0


async def test_queues_that_may_not_be_dropped_hold_up_no_look(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader tried all of them in each look, and ended nothing of dead nodes meanwhile."""
    monkeypatch.setattr(queue_expiry, "REFUSED_MAX", 2)
    queues = (await node()).queues
    for name in "abcde":
        await queues.admin.configure(name, {"expire_ms": 60_000})
    await queues.expiry.look(lambda: None)
    used_ms = int((await queues.catalog.time())[0]) * 1000 - 70_000
    for name in "abcde":
        await link_of(queues).call("HSET", f"{{tw:{name}:0}}:shard", "used", used_ms)
    tried: list[str] = []

    async def refused(_: Any, queue: str, **_how: bool) -> int:
        tried.append(queue)
        raise Full("many were dropped")

    monkeypatch.setattr(dropped_queues.DroppedQueues, "drop", refused)
    for _ in range(3):
        await queues.expiry.look(lambda: None)
    assert tried == ["a", "b", "c", "d", "e", "a"]


async def expire(queues: Any) -> None:
    """Let the queue end because nobody uses it."""
    await unused_since(queues, 70_000)
    assert "q" not in await look(queues)


async def unused_since(queues: Any, ago_ms: int, shard: int = 0) -> None:
    """Have the record of the queue's shard say that it was used so long ago."""
    await queues.expiry.look(lambda: None)  # what comes next is no gap in the looks
    used_ms = int((await queues.catalog.time())[0]) * 1000 - ago_ms
    await link_of(queues).call("HSET", f"{{tw:q:{shard}}}:shard", "used", used_ms)


async def used(queues: Any) -> int:
    """How long ago the record says that the queue was used, in ms."""
    used_ms = await link_of(queues).call("HGET", "{tw:q:0}:shard", "used")
    return int((await queues.catalog.time())[0]) * 1000 - int(used_ms)


async def look(queues: Any) -> list[str]:
    """Let the leader look for queues to end; those that are left."""
    await queues.expiry.look(lambda: None)
    return list(await queues.catalog.names())


async def test_a_queue_that_nobody_uses_ends_and_its_name_is_free(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.topics.link("news", "q", {"expire_ms": 200, "capacity": 7})
    await queues.topics.link("news", "r")
    await n1.queues.put("news", TaskSpec(id="a"))
    async with asyncio.timeout(60):
        while await look(queues) != ["r"]:
            await asyncio.sleep(0.02)
    assert await queues.topics.all() == {"news": ["r"]}
    assert await keys_of(queues) == []
    with pytest.raises(NotFound, match=DROPPED):
        await queues.admin.pause("q")
    assert await n1.queues.put("q", TaskSpec(id="b")) == "b", "a put or a take makes it again"
    shown = await queues.admin.settings("q")
    assert (shown["expire_ms"], shown["capacity"]) == (0, 0)
    assert (await queues.admin.stats("q"))["total"] == 1
    assert "q" in await look(queues)


async def test_many_are_looked_at_together_and_one_that_is_unreadable_alone(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    queues = (await node()).queues
    link, names = link_of(queues), [f"q{number:02}" for number in range(70)]
    for name in names:
        await queues.admin.configure(name, {"expire_ms": 600_000})
    await look(queues)
    before = link.calls
    assert await look(queues) == names
    assert link.calls - before <= 4, "three of at most 32 queues, and the names"
    now_ms = int((await queues.catalog.time())[0]) * 1000
    for name in ("q05", "q06", "q69"):
        await link.call("HSET", f"{{tw:{name}:0}}:shard", "used", now_ms - 700_000)
    await link.call("HSET", "{tw:q06:0}:shard", "format", 99)
    assert await look(queues) == [name for name in names if name not in ("q05", "q69")]
    assert "it is not known whether q06 is used: the shard {tw:q06:0} has format 99" in caplog.text


async def test_a_use_that_comes_after_the_look_keeps_it(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.admin.configure("q", {"expire_ms": 60_000, "shards": 2})
    await queues.put("q", TaskSpec(id="a"))
    run_each = queues.scripts.run_each
    taken: list[Any] = []

    async def used_meanwhile(*call: Any, together: bool) -> Any:
        found = await run_each(*call, together=together)
        taken.extend(await n1.queues.take(n1.queues.open_session(), ["q"]))
        return found

    for shard in range(2):
        await unused_since(queues, 70_000, shard)
    monkeypatch.setattr(queues.scripts, "run_each", used_meanwhile)
    assert await look(queues) == ["q"]
    (task,) = taken
    assert await n1.queues.ack(n1.queues.open_session(), "q", [("a", task.lease)]) == [1]
    assert await queues.put("q", TaskSpec(id="b")) == "b"


async def test_who_waits_uses_it(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.admin.configure("q", {"expire_ms": 60_000})
    await n1.queues.catalog.open("q")
    wait = asyncio.ensure_future(n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=60_000))
    async with asyncio.timeout(60):
        while not n1.queues.catalog.shards["q"][0].parked:
            await asyncio.sleep(0.01)
        await unused_since(queues, 70_000)
        assert await look(queues) == ["q"]
        while await used(queues) > 2000:
            await asyncio.sleep(0.01)
    assert await look(queues) == ["q"]
    await queues.put("q", TaskSpec(id="a"))
    assert [task.id for task in await wait] == ["a"]
    await unused_since(queues, 70_000)
    assert await look(queues) == ["q"], "so does who holds a task"
    assert await used(queues) < 2000


async def test_a_node_that_waits_no_more_keeps_it_for_a_moment_alone(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.admin.configure("q", {"expire_ms": 60_000})
    assert await n1.queues.take(n1.queues.open_session(), ["q"], wait_ms=1) == []
    await unused_since(queues, 70_000)
    assert await look(queues) == ["q"]
    assert 54_000 < await used(queues) <= 56_000
    await unused_since(queues, 70_000)
    assert await look(queues) == []


async def test_after_a_gap_in_the_looks_it_has_another_minute(node: Any) -> None:
    """The leader is new, or the store was away: perhaps nobody could use it."""
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.admin.configure("q", {"expire_ms": 600_000})
    await n1.queues.catalog.open("q")
    await unused_since(queues, 900_000)
    await n1.queues.expiry.look(lambda: None)
    assert 538_000 < await used(queues) <= 541_000
    assert await look(queues) == ["q"]
    await n1.queues.expiry.look(lambda: None)
    assert await used(queues) > 538_000, "that is once for each gap"
    await unused_since(queues, 900_000)
    assert await look(queues) == []


async def test_one_with_schedules_is_used(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("q", {"expire_ms": 60_000})
    await link_of(queues).call("HSET", "{tw:q:0}:schedules", "nightly", "x")
    await unused_since(queues, 70_000)
    assert await look(queues) == ["q"]
    with pytest.raises(BadArg, match="q has schedules; delete these first"):
        await queues.dropped.drop("q", force=True)
    await link_of(queues).call("DEL", "{tw:q:0}:schedules")
    await unused_since(queues, 70_000)
    assert await look(queues) == []


async def said(work: Any) -> str:
    """The code and the message of what a call was refused with, or `ok`."""
    try:
        await work
    except Error as error:
        return f"{error.code} {error}"
    return "ok"


async def test_whoever_comes_while_it_is_dropped_is_told_the_same(node: Any) -> None:
    """On the node that drops it, too, which forgets it while others' calls are refused."""
    queues = (await node()).queues
    for _ in range(3):
        await queues.admin.configure("q", {"shards": 2})
        drop = asyncio.ensure_future(queues.dropped.drop("q", force=True))
        answers = set()
        while not drop.done():
            puts = (said(queues.put("q", TaskSpec(id=f"t{n}"))) for n in range(9))
            answers |= set(await asyncio.gather(*puts, said(queues.admin.settings("q"))))
        await drop
        refusals = {answer.partition(";")[0] for answer in answers - {"ok"}}
        assert refusals == {f"NOTFOUND {DROPPED}"}


async def test_who_comes_to_one_that_ended_by_itself_repeats_it(node: Any, eventually: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.bulk.purge("q")
    await queues.admin.configure("q", {"expire_ms": 60_000})
    wait = asyncio.ensure_future(deaf.take(deaf.open_session(), ["q"], wait_ms=60_000))
    await eventually(lambda: deaf.catalog.shards["q"][0].parked)
    await unused_since(queues, 70_000)
    assert await look(queues) == ["q"], "nodes where takes wait are told, which this one misses"
    await unused_since(queues, 70_000)
    assert await look(queues) == []
    with pytest.raises(Stale):
        await deaf.put("q", TaskSpec(id="b"))
    assert await wait == [], "who waits asks again"
    assert await deaf.put("q", TaskSpec(id="b")) == "b"
    assert await queues.catalog.names() == ["q"]


async def test_a_topic_may_have_its_name(node: Any, eventually: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.dropped.drop("q", force=True)
    await queues.topics.link("q", "other")
    deaf.catalog.forget("q")
    await eventually(lambda: "q" not in deaf.catalog.shards)
    assert await deaf.put("q", TaskSpec(id="b")) == "b"
    assert (await queues.admin.stats("other"))["ready"] == 1


async def test_a_topic_may_have_its_name_where_nobody_said_so(node: Any) -> None:
    queues, deaf = await deaf_pair(node)
    await queues.dropped.drop("q", force=True)
    await queues.topics.link("q", "other")
    with pytest.raises(NotFound, match="it is a topic"):
        await deaf.put("q", TaskSpec(id="b"))
    assert await deaf.put("q", TaskSpec(id="b")) == "b"
    assert (await queues.admin.stats("other"))["ready"] == 1


async def test_a_list_of_schedules_goes_on_without_it(node: Any) -> None:
    """Its name was read before it was dropped."""
    queues = (await node()).queues
    await queues.put("q", TaskSpec(id="a"))
    await queues.dropped.drop("q", force=True)
    assert await queues.scripts.having(["q", "r"], "schedules") == []


async def test_no_lease_is_one_of_the_old_queues(node: Any) -> None:
    """Its ids lie in other shards now, which have given out fewer numbers."""
    queues = (await node(views=True)).queues
    await queues.admin.configure("q", {"shards": 2})
    task_id = next(name for name in map(str, range(99)) if shard_of(name, 2) == 1)
    await queues.put("q", TaskSpec(id=task_id))
    (old,) = await queues.take(queues.open_session(), ["q"])
    await queues.dropped.drop("q", force=True)
    await queues.admin.configure("q", {"lease_ms": 60_000})
    await queues.put("q", TaskSpec(id=task_id))
    (new,) = await queues.take(queues.open_session(), ["q"])
    assert new.lease > old.lease
    assert await queues.ack(queues.open_session(), "q", [(task_id, old.lease)]) == [0]


async def test_the_leader_goes_on_in_one_that_is_made_again(node: Any) -> None:
    n0 = await node()
    queues = n0.queues

    async def sweep() -> int:
        found = await queues.scripts.run_on(n0.link, "queue.sweep", "q", 0, [7, 100])
        return int(found[2][0])

    await queues.put("q", TaskSpec(id="a"))
    assert await sweep() == 0
    await queues.dropped.drop("q", force=True)
    await queues.admin.configure("q", {"lease_ms": 60_000})
    await queues.put("q", TaskSpec(id="b", delay_ms=1))
    moved = 0
    async with asyncio.timeout(60):
        while moved == 0:  # Stale: another led
            moved = await sweep()
    assert moved == 1

"""
Topics: a put reaches each linked queue once, under one id; safe to repeat; known to every node.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import capacity_waits_of, topics_of

from tidewarden.errors import BadArg, Full, NotFound
from tidewarden.queue import TaskSpec
from tidewarden.queue.topics import LINKS_MAX


async def ids_of(queues: Any, queue: str) -> list[str]:
    tasks, _ = await queues.admin.page(queue, "ready", 1000)
    return [task["id"] for task in tasks]


async def test_a_put_reaches_each_queue_once_under_one_id(node: Any) -> None:
    queues = (await node()).queues
    assert await queues.topics.link("events", "mail") == 1
    assert await queues.topics.link("events", "audit") == 1
    assert await queues.topics.link("events", "audit") == 0, "it was linked"
    assert await queues.put("events", TaskSpec(b"hello", id="a")) == "a"
    made = await queues.put("events", TaskSpec(b"x", priority=3))
    for queue in ("mail", "audit"):
        assert sorted(await ids_of(queues, queue)) == sorted(["a", made])
        assert (await queues.admin.peek(queue, made))["priority"] == 3
        task, _ = await queues.take(queues.open_session(), [queue], count=2)
        assert task.id == made
    assert await queues.topics.all() == {"events": ["audit", "mail"]}
    assert await queues.catalog.names() == ["audit", "mail"]


async def test_a_repeated_put_adds_nothing_also_where_the_task_is_done(node: Any) -> None:
    queues = (await node()).queues
    await queues.topics.link("events", "mail")
    await queues.topics.link("events", "audit")
    made = await queues.put("events", TaskSpec())
    session = queues.open_session()
    (task,) = await queues.take(session, ["mail"])
    assert await queues.ack(session, "mail", [(task.id, task.lease)]) == [1]
    assert await queues.put("events", TaskSpec(id=made)) == made
    assert await ids_of(queues, "mail") == []
    assert await ids_of(queues, "audit") == [made]


async def test_one_queue_refuses_and_the_rest_have_the_task(node: Any) -> None:
    queues = (await node()).queues
    await queues.admin.configure("small", {"capacity": 1})
    await queues.put("small", TaskSpec(id="x"))
    for queue in ("mail", "small", "audit"):
        await queues.topics.link("events", queue)
    with pytest.raises(
        Full, match=r"1 of the 3 queues of the topic events refused the task \(FULL\)"
    ) as full:
        await queues.put("events", TaskSpec(id="a"))
    assert "A put with ID a may be repeated" in str(full.value)
    # whoever puts needs no right to them
    assert not any(queue in str(full.value) for queue in ("mail", "small", "audit"))
    assert await ids_of(queues, "mail") == await ids_of(queues, "audit") == ["a"]
    await queues.admin.delete("small", "x")
    assert await queues.put("events", TaskSpec(id="a")) == "a"
    for queue in ("mail", "small", "audit"):
        assert await ids_of(queues, queue) == ["a"]


async def test_a_put_with_wait_waits_for_room_in_each_queue(node: Any, eventually: Any) -> None:
    queues = (await node()).queues
    for queue in ("one", "two"):
        await queues.admin.configure(queue, {"capacity": 1})
        await queues.put(queue, TaskSpec(id="x"))
        await queues.topics.link("events", queue)
    waiting = asyncio.ensure_future(queues.put_waiting("events", TaskSpec(id="a"), 60_000))
    await eventually(lambda: len(capacity_waits_of(queues)) == 2)
    await queues.admin.delete("one", "x")
    await queues.admin.delete("two", "x")
    assert await waiting == "a"
    with pytest.raises(Full, match=r"2 of the 2 queues .* the task \(FULL\)\. Q.STATS events"):
        await queues.put_waiting("events", TaskSpec(id="b"), 1)


async def test_a_name_is_a_queue_or_a_topic(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("mail", TaskSpec())
    with pytest.raises(BadArg, match="mail is a queue already"):
        await n0.queues.topics.link("mail", "other")
    await n0.queues.topics.link("events", "mail")
    with pytest.raises(BadArg, match="events is a topic; only queues"):
        await n0.queues.topics.link("more", "events")
    with pytest.raises(BadArg, match="found self twice"):
        await n0.queues.topics.link("self", "self")
    with pytest.raises(BadArg, match="the topic name"):
        await n0.queues.topics.link("a b", "mail")
    for one in (n0, n1):
        for refused in (
            one.queues.take(one.queues.open_session(), ["events"]),
            one.queues.admin.configure("events", {"shards": 2}),
            one.queues.admin.peek("events", "a"),
            one.queues.bulk.purge("events"),
        ):
            with pytest.raises(
                BadArg, match=r"events is a topic, which only takes puts; see Q\.LIST TOPICS"
            ):
                await refused
    assert await n0.queues.catalog.names() == [
        "mail",
        "other",
    ], "a refused link makes its queue, as any use does"


async def test_a_topic_stays_without_queues_and_takes_what_nobody_wants(node: Any) -> None:
    queues = (await node()).queues
    await queues.topics.link("events", "mail")
    assert await queues.topics.unlink("events", "mail") == 1
    assert await queues.topics.unlink("events", "mail") == 0
    assert await queues.put("events", TaskSpec(id="a")) == "a"
    assert await ids_of(queues, "mail") == []
    with pytest.raises(NotFound, match="no topic none"):
        await queues.topics.unlink("none", "mail")
    with pytest.raises(BadArg, match="it has no queues"):
        await queues.admin.pause("events")


async def test_other_nodes_hear_of_links(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.topics.link("events", "mail")
    await n1.queues.put("events", TaskSpec(id="a"))
    await n0.queues.topics.link("events", "audit")
    await eventually(lambda: topics_of(n1.queues).get("events") == ("mail", "audit"))
    await n1.queues.put("events", TaskSpec(id="b"))
    await n0.queues.topics.unlink("events", "mail")
    await eventually(lambda: topics_of(n1.queues).get("events") == ("audit",))
    await n1.queues.put("events", TaskSpec(id="c"))
    assert sorted(await ids_of(n0.queues, "mail")) == ["a", "b"]
    assert sorted(await ids_of(n0.queues, "audit")) == ["b", "c"]


async def test_links_are_read_anew_when_messages_were_missed(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.topics.link("events", "mail")
    await n1.queues.put("events", TaskSpec(id="a"))
    await n1.ears.stop()
    await n0.queues.topics.link("events", "audit")
    n1.queues.wakeups.wake_all()
    await n1.queues.put("events", TaskSpec(id="b"))
    assert await ids_of(n0.queues, "audit") == ["b"]


async def test_a_topic_has_only_so_many_queues(node: Any) -> None:
    n0 = await node()
    await n0.queues.topics.link("events", "q")
    links = " ".join(f"q{n}" for n in range(LINKS_MAX))
    await n0.link.call("HSET", "{tw}:topics", "events", links)
    with pytest.raises(BadArg, match="1000 queues, the most"):
        await n0.queues.topics.link("events", "more")


async def test_racing_links_are_all_there(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await asyncio.gather(
        *(n.queues.topics.link("events", f"q{i}") for i in range(20) for n in (n0, n1))
    )
    assert len((await n0.queues.topics.all())["events"]) == 20

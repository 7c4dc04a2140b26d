"""The cluster's names: how many queues there may be, and a name that the store has lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.doors import doubles
from support.doors.http_store import bearer, http_door
from support.inspect import link_of

from tidewarden.errors import Full, NotFound
from tidewarden.queue.settings import QueueSettings
from tidewarden.queue.task import TaskSpec
from tidewarden.user_limits import ACTING


async def test_so_many_queues_and_no_more(node: Any) -> None:
    n0 = await node(flags={"limits.queues_max": "2"})
    for queue in ("a", "b"):
        await n0.queues.put(queue, TaskSpec(id="1"))
    for use in (
        n0.queues.put("c", TaskSpec(id="1")),
        n0.queues.admin.configure("c", {}),
        n0.queues.topics.link("t", "c"),
    ):
        with pytest.raises(
            Full,
            match=r"no queue c, and the cluster has 2 already, of at most 2; .*limits\.queues_max",
        ):
            await use
    await n0.queues.put("a", TaskSpec(id="2"))
    assert await n0.queues.catalog.names() == ["a", "b"]
    other = await node("n1", flags={"limits.queues_max": "3"})
    await other.queues.put("c", TaskSpec(id="1"))
    await n0.queues.put("c", TaskSpec(id="2"))
    assert (await n0.queues.admin.stats("c"))["total"] == 2


async def test_the_systems_own_are_made_in_any_case(node: Any) -> None:
    n0 = await node(flags={"limits.queues_max": "1"})
    await n0.queues.put("a", TaskSpec(id="1"))
    assert (await n0.queues.admin.settings("_tokens:p:c"))["losses_max"] == 0
    assert await n0.queues.catalog.names() == ["_tokens:p:c", "a"]


async def test_settings_of_a_queue_that_the_store_has_lost(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A store that came back empty: whoever sets one thing does not lose the others, nor is it an
    error.
    """
    n0 = await node()
    await n0.queues.admin.configure("q", {"lease_ms": 123, "shards": 4})
    await n0.link.call("FLUSHALL")
    assert (await n0.queues.admin.configure("q", {}))["shards"] == 4
    assert "had lost the queue q" in caplog.text
    await n0.link.call("FLUSHALL")
    found = await n0.queues.admin.configure("q", {"losses_max": 7})
    assert (found["lease_ms"], found["shards"], found["losses_max"]) == (123, 4, 7)
    await n0.link.call("FLUSHALL")
    assert (await n0.queues.admin.configure("q", {"shards": 2}))["shards"] == 2
    await n0.queues.put("q", TaskSpec(id="1"))
    n1 = await node("n1")
    assert (await n1.queues.admin.settings("q"))["lease_ms"] == 123


async def test_a_lost_queue_whose_name_is_a_topics_now(node: Any) -> None:
    n0 = await node()
    await n0.queues.put("q", TaskSpec(id="1"))
    await n0.link.call("FLUSHALL")
    n1 = await node("n1")
    await n1.queues.topics.link("q", "other")
    with pytest.raises(NotFound, match="no queue q any more; it is a topic"):
        await n0.queues.admin.configure("q", {"losses_max": 7})


@pytest.fixture
def acting() -> Iterator[Callable[[str], object]]:
    """Sets for whom the test works; nobody afterwards."""
    yield ACTING.set
    ACTING.set("")


async def test_a_user_makes_its_share_of_names_and_no_more(node: Any, acting: Any) -> None:
    n0 = await node(flags={"limits.queues_max": "10"})
    n0.queues.user_limits.follow(["eve", "bob"])
    acting("eve")
    for n in range(8):
        # by whatever: a take makes a queue, too
        await n0.queues.take(n0.queues.open_session("eve"), [f"eve.{n}"])
    for use in (
        n0.queues.put("eve.8", TaskSpec(id="1")),
        n0.queues.admin.configure("eve.9", {}),
        n0.queues.take(n0.queues.open_session("eve"), ["eve.8"]),
    ):
        with pytest.raises(Full) as told:
            await use
        assert str(told.value) == (
            "the user eve has made 8 queues, where 2 of 10 (limits.queues_max) are free: the rest"
            " is for others (limits.user_share)"
        )
    await n0.queues.put("eve.0", TaskSpec(id="1"))  # of those there are it uses what it likes
    for n in range(5):
        await n0.queues.topics.link(f"topic.{n}", "eve.1")
    acting("bob")
    await n0.queues.put("bob.0", TaskSpec(id="1"))
    # what one node counts holds on all
    n1 = await node("n1", flags={"limits.queues_max": "10"})
    n1.queues.user_limits.follow(["eve", "bob"])
    acting("eve")
    with pytest.raises(Full, match="the user eve has made 8 queues"):
        await n1.queues.put("eve.8", TaskSpec(id="1"))
    for n in range(5, 8):
        await n1.queues.topics.link(f"topic.{n}", "eve.1")
    with pytest.raises(Full, match="the user eve has made 8 topics"):
        await n1.queues.topics.link("topic.8", "eve.1")
    acting("bob")
    await n1.queues.topics.link("topic.8", "eve.1")


@pytest.mark.thorough
async def test_shards_count_as_names_do(node: Any, acting: Any) -> None:
    """Every node keeps each of them: 2,000,000 of 8,000 names would take 3 GiB of each node."""
    n0 = await node(flags={"limits.queues_max": "100"})
    configure, dropped = n0.queues.admin.configure, n0.queues.dropped
    n0.queues.user_limits.follow(["eve", "bob"])
    acting("eve")
    for n in range(4):
        await configure(f"eve.{n}", {"shards": 256})
    acting("bob")
    await configure("bob.0", {"shards": 160})
    acting("eve")
    await n0.queues.put("eve.4", TaskSpec(id="1"))
    await n0.queues.bulk.purge("eve.4")
    with pytest.raises(Full, match=r"has made 65 queues \(each 16 shards count\), where 25 of 100"):
        await configure("eve.4", {"shards": 256})
    await n0.queues.put("eve.4", TaskSpec(id="1"))  # it is as it was
    await n0.queues.bulk.purge("eve.4")
    await configure("eve.4", {"shards": 32})
    acting("bob")
    await configure("bob.1", {"shards": 256})
    with pytest.raises(Full, match=r"no room for so many shards: in limits\.queues_max"):
        await configure("bob.2", {"shards": 256})
    acting("eve")
    await configure("eve.4", {"shards": 16})
    await dropped.drop("eve.0")
    acting("bob")  # who cuts another's queue has it count as his own
    await configure("eve.4", {"shards": 64})
    makers = await link_of(n0.queues).call("HGETALL", "{tw}:makers")
    found = dict(zip(makers[::2], makers[1::2], strict=True))
    assert (found[b"queues eve"], found[b"queues bob"]) == (b"48", b"31")
    assert found[b"more queues"] == str(3 * 15 + 9 + 15 + 3).encode()


async def test_what_an_older_node_dropped_counts_once(node: Any, acting: Any) -> None:
    """It knows nothing of places: those of a queue stayed, and were added to again."""
    n0 = await node(flags={"limits.queues_max": "100"})
    call, catalog = link_of(n0.queues).call, n0.queues.catalog
    settings = msgspec.json.encode(QueueSettings(shards=64))
    for _ in range(3):
        made = await catalog.run_on_names("queue.create_queue", "q", settings, 100, "eve", 500, "")
        assert made[0] == b"new"
        await call("HDEL", "{tw}:queues", "q")
    makers = await call("HGETALL", "{tw}:makers")
    assert dict(zip(makers[::2], makers[1::2], strict=True)) == {
        b"queues eve": b"4", b"queue q": b"eve", b"more queue q": b"3", b"more queues": b"3",
    }  # fmt: skip


async def test_links_count_as_topics_do(node: Any, acting: Any) -> None:
    """All of them are read where topics are listed, and where a queue is dropped."""
    n0 = await node(flags={"limits.queues_max": "20"})
    topics, dropped = n0.queues.topics, n0.queues.dropped
    n0.queues.user_limits.follow(["eve", "bob"])
    acting("")
    for n in range(17):
        await n0.queues.put(f"q.{n}", TaskSpec(id="1"))
    acting("eve")
    for n in range(8):
        for queue in range(17):
            await topics.link(f"eve.{n}", f"q.{queue}")
    with pytest.raises(Full, match="the user eve has made 16 topics, where 4 of 20"):
        await topics.link("eve.8", "q.0")
    await topics.unlink("eve.0", "q.0")
    await topics.link("eve.8", "q.0")
    with pytest.raises(Full, match="the user eve has made 16 topics"):
        await topics.link("eve.0", "q.0")
    acting("bob")
    for n in range(4):
        await topics.link(f"bob.{n}", "q.0")
    with pytest.raises(Full, match=r"no room for so many links: in limits\.queues_max 16"):
        await topics.link("eve.0", "q.0")
    await dropped.drop("q.16", force=True)  # which leaves the topics
    makers = await link_of(n0.queues).call("HGETALL", "{tw}:makers")
    found = dict(zip(makers[::2], makers[1::2], strict=True))
    assert (found[b"topics eve"], found[b"topics bob"]) == (b"9", b"4")
    assert b"more topics" not in found


async def test_a_user_who_is_alone_makes_all_names(node: Any, acting: Any) -> None:
    n0 = await node(flags={"limits.queues_max": "3"})
    n0.queues.user_limits.follow(["eve"])
    acting("eve")
    for n in range(3):
        await n0.queues.put(f"eve.{n}", TaskSpec(id="1"))
    with pytest.raises(Full, match="the cluster has 3 already"):
        await n0.queues.put("eve.3", TaskSpec(id="1"))


async def test_names_that_doors_make_are_their_users(node: Any) -> None:
    n0 = await node(flags={"limits.queues_max": "3"})
    n0.queues.user_limits.follow(["eve", "bob"])
    users = tuple(replace(doubles.ADMIN, name=name) for name in ("eve", "bob"))
    async with (
        doubles.Door(users=users, queues=n0.queues) as door,
        http_door(n0.queues, users=users) as http,
    ):
        line = await door.dial()
        assert await line.call("AUTH", "eve", doubles.SECRET) == b"OK"
        assert await line.call("Q.PUT", "a", "x")
        status, _ = await http.call("POST", "/v1/queues/b/tasks", {}, headers=bearer("eve"))
        assert status == 200
        assert str(await line.call("Q.PUT", "c", "x")).startswith("FULL the user eve has made 2")
        status, found = await http.call("POST", "/v1/queues/c/take", {}, headers=bearer("eve"))
        assert (status, found["error"]) == (507, "FULL")
        status, _ = await http.call("POST", "/v1/queues/c/take", {}, headers=bearer("bob"))
        assert status == 200

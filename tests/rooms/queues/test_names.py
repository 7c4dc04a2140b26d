"""The cluster's names: how many queues there may be, and a name that the store has lost."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import Full, NotFound
from tidewarden.queue.task import TaskSpec


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
    assert (await n0.queues.admin.settings("_tokens:p:c"))["shards"] == 16
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

"""
Queues as one node knows them: made when first used, read once, read again when another node changed
them.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import pytest
from support.inspect import background_tasks_of, parked_in, settings_of, shards_of, transport_of

from tidewarden.errors import BadArg
from tidewarden.queue import TaskSpec
from tidewarden.queue.shards.shard import Shard


async def test_a_queue_is_made_when_it_is_first_used(node: Any) -> None:
    n0 = await node()
    assert await n0.queues.catalog.names() == []
    await n0.queues.put("b", TaskSpec())
    await n0.queues.put("a", TaskSpec())
    assert await n0.queues.catalog.names() == ["a", "b"]
    assert (await n0.queues.admin.settings("a"))["shards"] == 1
    raw = json.loads(await n0.link.call("HGET", "{tw}:queues", "a"))
    assert raw["lease_ms"] == 30_000


async def test_many_that_use_a_new_queue_at_once_make_it_once(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    await asyncio.gather(
        *(n.queues.put("q", TaskSpec(id=f"t{i}")) for i in range(20) for n in (n0, n1))
    )
    assert (await n0.queues.admin.stats("q"))["ready"] == 20


async def test_settings_are_read_by_a_node_that_comes_later(node: Any) -> None:
    n0 = await node("n0")
    await n0.queues.admin.configure("q", {"shards": 4, "lease_ms": 500})
    n1 = await node("n1")
    assert await n1.queues.catalog.shard_count("q") == 4
    assert (await n1.queues.admin.settings("q"))["lease_ms"] == 500


async def test_another_nodes_change_is_heard(node: Any, eventually: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    assert await n1.queues.catalog.shard_count("q") == 1
    await n0.queues.admin.configure("q", {"shards": 3, "urgent_ms": 7})
    await eventually(lambda: len(shards_of(n1.queues, "q")) == 3)
    assert (await n1.queues.admin.settings("q"))["urgent_ms"] == 7


async def test_unknown_settings_of_a_newer_node_are_passed_over(node: Any) -> None:
    n0 = await node()
    await n0.link.call("HSET", "{tw}:queues", "q", b'{"shards": 2, "lane_limit": 5}')
    assert (await n0.queues.admin.settings("q"))["shards"] == 2


async def test_the_shard_of_an_id_never_changes(node: Any) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"shards": 16})
    for task_id in ("a", "ä", "provider/user"):
        assert n0.queues.catalog.shard_of("q", task_id) == zlib.crc32(task_id.encode()) % 16
        await n0.queues.put("q", TaskSpec(id=task_id))
        keys = await n0.link.call("KEYS", "*:tasks")
        assert f"{{tw:q:{n0.queues.catalog.shard_of('q', task_id)}}}:tasks".encode() in keys


async def test_any_rooms_script_runs_on_a_shard(node: Any) -> None:
    n0 = await node()
    assert await n0.queues.scripts.run("queue.put", "q", 0, ["a", "", b"x"], now_ms=5_000) == [1]
    assert (await n0.queues.admin.peek("q", "a"))["due_ms"] == 5_000
    with pytest.raises(BadArg, match="epoch is not an integer"):
        await n0.queues.scripts.run("queue.sweep", "q", 0, ["x", 1])
    with pytest.raises(KeyError):
        await n0.queues.scripts.run("queue.none", "q", 0, [])


async def test_a_script_on_another_connection_wakes_those_who_wait_here(
    node: Any, eventually: Any
) -> None:
    """The sweep's own connection: what it makes ready, this node's takes have to learn of."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.put("q", TaskSpec(id="a"))
    await n1.queues.scripts.run("queue.take", "q", 0, [200, 1, 0, 0, ""])
    take = n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=60_000)
    await eventually(lambda: parked_in(n0.queues, "q"))
    now_ms, next_ms, items = await n0.queues.scripts.run_on(
        n1.link, "queue.reap", "q", 0, [1, "n1", 1, 10]
    )
    assert items == [1, 0]
    assert next_ms <= now_ms + 30_000
    assert [task.id for task in await take] == ["a"]


async def test_a_grant_that_was_deleted_stays_deleted_as_surely_as_one_that_was_put(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A new grant, or its end, an intent and a new pair must not be lost: they are as firm as the
    store can make them.
    """
    n0 = await node()
    firm: list[str] = []

    def strongest_route(data: Any, key: str) -> tuple[Any, Any]:
        async def wait() -> None:
            firm.append(key)

        return data, wait

    async def answered(
        _shard: Shard, _link: Any, name: str, _args: Any
    ) -> tuple[int, int, int, str]:
        return 0, -1, 0, name

    monkeypatch.setattr(n0.queues.catalog.durability, "strongest_route", strongest_route)
    monkeypatch.setattr(Shard, "run_by", answered)
    for verb in ("put", "detail", "intent", "renew", "stored", "reseal", "delete", "get", "failed"):
        firm.clear()
        assert (
            await n0.queues.scripts.items_on(n0.link, f"tokens.{verb}", "_tokens:p:c", 0, ())
            == f"tokens.{verb}"
        )
        assert firm == ([] if verb in ("get", "failed") else ["{tw:_tokens:p:c:0}"])


async def test_settings_that_cannot_be_read_anew_stay_until_they_can(
    node: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"lease_ms": 123})
    await eventually(lambda: not background_tasks_of(n0.queues))
    transport_of(n0.link).pause_reading()
    asked = n0.link.calls
    n0.queues.catalog.forget("q")
    await eventually(lambda: n0.link.calls > asked)
    transport_of(n0.link).abort()
    await eventually(lambda: "could not be read anew" in caplog.text)
    assert settings_of(n0.queues)["q"].lease_ms == 123
    await eventually(lambda: not background_tasks_of(n0.queues))
    assert n0.link.calls > asked + 1


async def test_what_another_server_does_not_know_is_made_again(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A failover may lose the last writes: a queue that nobody sees is one that nobody sweeps."""
    n0 = await node("n0")
    await n0.queues.admin.configure("lost", {"lease_ms": 123})
    await n0.queues.put("kept", TaskSpec(id="a"))
    await n0.queues.put("topic", TaskSpec(id="a"))
    await n0.link.call("FLUSHALL")
    n1 = await node("n1")
    await n1.queues.admin.configure("kept", {"lease_ms": 456})
    await n1.queues.topics.link("topic", "kept")
    await n0.queues.catalog.recall()
    assert await n1.queues.catalog.names() == ["kept", "lost"]
    assert (await n1.queues.admin.settings("lost"))["lease_ms"] == 123
    assert (await n0.queues.admin.settings("kept"))["lease_ms"] == 456
    await n0.queues.put("lost", TaskSpec(id="b"))
    (task,) = await n0.queues.take(n0.queues.open_session(), ["lost"])
    seconds, micros = map(int, await n0.queues.catalog.time())
    assert task.lease_end_ms <= seconds * 1000 + micros // 1000 + 123
    assert "had lost the queue lost" in caplog.text


@pytest.mark.thorough
async def test_a_queue_is_cut_as_configured_from_the_first_put_on(node: Any) -> None:
    """The node hears of its own changes too, late, and must not go back to what was before them."""
    n0 = await node()
    for n in range(15):
        queue = f"q{n}"
        await n0.queues.admin.configure(queue, {"shards": 16})
        for task in range(20):
            await n0.queues.put(queue, TaskSpec(id=f"t{task}"))
            assert len(shards_of(n0.queues, queue)) == 16
        for task in range(20):
            assert (await n0.queues.admin.peek(queue, f"t{task}"))["state"] == "ready"


async def test_when_something_happens_in_each_shard_is_read_of_its_record(node: Any) -> None:
    n0 = await node()
    queues, call = n0.queues, n0.link.call
    await queues.admin.configure("q", {"shards": 4})
    assert await queues.scripts.delays("q") == [-1] * 4
    await queues.put("q", TaskSpec(id="late~0", delay_ms=60_000))
    await queues.put("q", TaskSpec(id="now~1"))
    (task,) = await queues.take(queues.open_session(), ["q"], lease_ms=20_000)
    assert task.id == "now~1"
    delays_ms = await queues.scripts.delays("q")
    assert 50_000 < delays_ms[0] <= 60_000
    assert 10_000 < delays_ms[1] <= 20_000
    await call("HSET", shards_of(queues, "q")[2].keys[0] + ":shard", "tick", "5")
    await call("HSET", shards_of(queues, "q")[3].keys[0] + ":shard", "alarm", "soon")
    assert (await queues.scripts.delays("q"))[2:] == [0, 0]
    await call("HDEL", shards_of(queues, "q")[2].keys[0] + ":shard", "tick")
    await call("HDEL", shards_of(queues, "q")[3].keys[0] + ":shard", "alarm")


async def test_which_shards_have_a_key_is_asked_for_many_at_a_time(node: Any) -> None:
    n0 = await node()
    queues, call = n0.queues, n0.link.call
    names = [f"q{n}" for n in range(20)]
    for name in names:
        await queues.admin.configure(name, {"shards": 16})
    assert await queues.scripts.having(names, "letters") == []
    for name, shard in (("q3", 0), ("q3", 15), ("q19", 7)):
        await call("SET", f"{shards_of(queues, name)[shard].keys[0]}:letters", "x")
    calls = n0.link.calls
    assert await queues.scripts.having(names, "letters") == [("q3", 0), ("q3", 15), ("q19", 7)]
    assert n0.link.calls - calls <= 320 / 64 + 2 * 64
    for name, shard in (("q3", 0), ("q3", 15), ("q19", 7)):
        await call("DEL", f"{shards_of(queues, name)[shard].keys[0]}:letters")

"""Many tasks at once: purge, release all, and the redrive of a dead-letter queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import awaited_of, link_of, shards_of

from tidewarden.errors import BadArg, Full, StoreDown
from tidewarden.queue import TaskSpec
from tidewarden.queue.task import STATES


async def filled(node: Any, shards: int = 2, each: int = 30, queue: str = "q") -> Any:
    """A queue with so many tasks in each state."""
    queues = (await node()).queues
    await queues.admin.configure(queue, {"shards": shards})
    session = queues.open_session()
    for state in ("buried", "leased"):
        await asyncio.gather(
            *(queues.put(queue, TaskSpec(state.encode(), id=f"{state}{n}")) for n in range(each))
        )
        tasks = await queues.take(session, [queue], count=1000)
        if state == "buried":
            await asyncio.gather(
                *(queues.bury(session, queue, task.id, task.lease, "bad") for task in tasks)
            )
    await asyncio.gather(
        *(
            queues.put(queue, TaskSpec(id=f"ready{n}", priority=n % 3, ttl_ms=600_000))
            for n in range(each)
        ),
        *(queues.put(queue, TaskSpec(id=f"delayed{n}", delay_ms=60_000)) for n in range(each)),
    )
    return queues, session


async def counts(queues: Any, queue: str = "q") -> dict[str, int]:
    stats = await queues.admin.stats(queue)
    return {state: stats[state] for state in STATES[:4]}


@pytest.mark.parametrize("state", STATES[:4])
async def test_purge_one_state(node: Any, state: str) -> None:
    queues, _ = await filled(node)
    assert await queues.bulk.purge("q", state) == 30
    assert await counts(queues) == {other: 0 if other == state else 30 for other in STATES[:4]}


@pytest.mark.thorough
async def test_purge_all(node: Any) -> None:
    queues, session = await filled(node, 1, 700)
    assert await queues.bulk.purge("q") == 2800
    assert (await queues.admin.stats("q"))["total"] == 0
    (name, (lease, *_)), *_ = session.held.items()
    assert await queues.ack(session, "q", [(name[1], lease)]) == [0]
    assert await queues.bulk.purge("q") == 0
    assert await queues.put("q", TaskSpec(id="buried1", if_exists="fail")) == "buried1"


async def test_who_waits_for_a_purged_task_hears_of_it(node: Any, eventually: Any) -> None:
    queues, _ = await filled(node, 1, 2)
    wait = asyncio.ensure_future(queues.wait("q", "ready1", 60_000))
    await eventually(lambda: awaited_of(queues))
    while not (await queues.scripts.run("queue.unwait", "q", 0, ["none"])) and not await link_of(
        queues
    ).call("HLEN", "{tw:q:0}:waits"):
        await asyncio.sleep(0.002)
    await queues.bulk.purge("q", "ready")
    assert await wait == ("deleted", b"")


@pytest.mark.thorough
async def test_release_all(node: Any) -> None:
    queues, session = await filled(node, 2, 600)
    assert await queues.bulk.release_all("q") == 600
    assert await counts(queues) == {"delayed": 600, "ready": 1200, "leased": 0, "buried": 600}
    (task,) = await queues.take(session, ["q"], task_id="leased1")
    assert task.attempt == 1, "a release gives the attempt back"
    assert await queues.bulk.release_all("none") == 0


async def test_move_buried_tasks(node: Any) -> None:
    queues, session = await filled(node, 2, 250)
    assert await queues.buried.move("q", "again", count=1) == 1
    assert await queues.buried.move("q", "again", count=10_000) == 249
    assert (await counts(queues))["buried"] == 0
    assert await counts(queues, "again") == {"delayed": 0, "ready": 250, "leased": 0, "buried": 0}
    task = (await queues.take(session, ["again"]))[0]
    assert (task.payload, task.attempt) == (b"buried", 1)
    assert await queues.buried.move("q", "again", count=1) == 0


async def test_a_moved_task_keeps_what_it_was_put_with(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put(
        "q", TaskSpec(b"x", "a", within_ms=9000, priority=3, lease_ms=700, attempts=4, backoff_ms=5)
    )
    (task,) = await queues.take(session, ["q"])
    await queues.bury(session, "q", "a", task.lease)
    before = await queues.admin.peek("q", "a")
    await queues.buried.move("q", "again", count=1)
    after = await queues.admin.peek("again", "a")
    for name in (
        "payload",
        "priority",
        "due_ms",
        "deadline_ms",
        "lease_ms",
        "attempts_max",
        "backoff_ms",
    ):
        assert after[name] == before[name], name
    assert (after["attempts"], after["state"]) == (0, "ready")


async def test_a_move_that_broke_off_is_finished_by_the_next(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put there, not yet removed here: the same move again removes it, and it runs once."""
    queues, session = await filled(node, 1, 5)
    (shard,) = shards_of(queues, "q")
    run = shard.run

    async def broken(name: str, *args: Any) -> Any:
        if name == "queue.delete_buried":
            raise StoreDown("cut off")
        return await run(name, *args)

    with monkeypatch.context() as patch:
        patch.setattr(shard, "run", broken)
        with pytest.raises(StoreDown):
            await queues.buried.move("q", "again", count=5)
    assert (await counts(queues))["buried"] == (await counts(queues, "again"))["ready"] == 5
    assert await queues.buried.move("q", "again", count=5) == 5
    assert (await counts(queues))["buried"] == 0
    assert len(await queues.take(session, ["again"], count=10)) == 5


async def test_an_id_that_another_task_has_there_stays(node: Any) -> None:
    queues, session = await filled(node, 1, 3)
    await queues.put("again", TaskSpec(b"another", id="buried1"))
    assert await queues.buried.move("q", "again", count=3) == 2
    assert (await queues.admin.peek("q", "buried1"))["payload"] == b"buried"
    await queues.put("again", TaskSpec(id="x"))
    for task in await queues.take(session, ["again"], count=10):
        assert await queues.ack(session, "again", [(task.id, task.lease)]) == [1]
    assert await queues.buried.move("q", "again", count=3) == 1, (
        "what was done there a moment ago does not swallow it"
    )
    assert (await queues.admin.peek("again", "buried1"))["payload"] == b"buried"


async def test_a_move_into_a_full_store_loses_nothing(node: Any) -> None:
    queues, _ = await filled(node, 1, 5)
    await queues.catalog.shard_count("again")
    await link_of(queues).call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Full):
            await queues.buried.move("q", "again", count=5)
    finally:
        await link_of(queues).call("CONFIG", "SET", "maxmemory", "0")
    assert (await counts(queues))["buried"] == 5
    assert await queues.buried.move("q", "again", count=5) == 5


async def test_what_is_refused(node: Any) -> None:
    queues = (await node()).queues
    for call in (
        queues.bulk.purge("q", "done"), queues.bulk.purge("no such name"), queues.bulk.release_all(""), queues.buried.move("q", "q", count=1),
        queues.buried.move("q", "a b", count=1), queues.buried.move("q", "again", count=0),
    ):  # fmt: skip
        with pytest.raises(BadArg):
            await call


def test_a_purge_and_a_release_of_all_get_through_a_full_store(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(6)))
    desk.take(3)
    desk.client.config_set("maxmemory", "1")
    try:
        assert desk.run("queue.release_all", 2) == 2
        assert desk.run("queue.purge", "leased", 10) == 1
        assert desk.run("queue.purge", "ready", 10, "t5", "none") == 1
        assert desk.run("queue.purge", "ready", 10) == 4
    finally:
        desk.client.config_set("maxmemory", "0")


def test_a_wait_for_an_id_of_ours(desk: Any) -> None:
    """Somebody waits: then its end is remembered, so that the wait finds it."""
    for dedup_ms in (60_000, 0):
        desk.configure(dedup_ms=dedup_ms)
        for name in (f"done{dedup_ms}", f"gone{dedup_ms}"):
            desk.put(name, own=True)
            assert desk.run("queue.wait", name, 1) == [[b"waits", b""]]
        assert desk.ack(desk.take_one(task_id=f"done{dedup_ms}")) == [1]
        assert desk.run("queue.delete", f"gone{dedup_ms}", 0, 0) == 1
        assert desk.run("queue.wait", f"done{dedup_ms}", 0, f"gone{dedup_ms}", 0) == [
            [b"done", b""],
            [b"deleted", b""],
        ]

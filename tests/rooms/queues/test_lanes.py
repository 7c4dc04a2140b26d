"""
Lanes as nodes see them: settings that change, shards, woken consumers, the verbs on many tasks.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from support.inspect import link_of, parked_in

from tidewarden.errors import BadArg, Full
from tidewarden.queue import TaskSpec


async def filled(node: Any, shards: int = 1, lanes: int = 3, each: int = 4, **settings: Any) -> Any:
    """Queues and a session, and a queue of lanes."""
    queues = (await node()).queues
    await queues.admin.configure("q", {"shards": shards, **settings})
    for lane in range(lanes):
        for n in range(each):
            await queues.put("q", TaskSpec(id=f"{lane}-{n}" * (shards == 1), lane=f"lane{lane}"))
    return queues, queues.open_session()


async def test_an_ack_wakes_a_consumer_that_waits_at_another_node_for_the_lane(
    node: Any, eventually: Any
) -> None:
    queues, session = await filled(node, lanes=1)
    other = (await node("n1")).queues
    (task,) = await queues.take(session, ["q"])
    assert await other.take(other.open_session(), ["q"]) == []
    waiting = other.take(other.open_session(), ["q"], wait_ms=60_000)
    await eventually(lambda: parked_in(other, "q"))
    await queues.ack(session, "q", [(task.id, task.lease)])
    assert [one.id for one in await waiting] == ["0-1"]


async def test_a_closed_connection_gives_its_lane_to_who_waits(node: Any, eventually: Any) -> None:
    queues, session = await filled(node, lanes=1)
    await queues.take(session, ["q"])
    waiting = queues.take(queues.open_session(), ["q"], wait_ms=60_000)
    await eventually(lambda: parked_in(queues, "q"))
    await queues.close_session(session)
    assert [one.id for one in await waiting] == ["0-0"]


async def test_a_rate_lets_the_next_through_at_its_time_without_a_leader(node: Any) -> None:
    queues, session = await filled(node, lanes=1, lane_limit=0, lane_rate="20", lane_burst=2)
    moments = []
    for _ in range(4):
        (task,) = await queues.take(session, ["q"], wait_ms=10_000)
        moments.append(task.lease_end_ms)
    assert moments[2] - moments[0] >= 50
    assert moments[3] - moments[0] >= 100


@pytest.mark.thorough
async def test_settings_are_felt_while_running(node: Any, eventually: Any) -> None:
    queues, session = await filled(node, lanes=300, each=2)
    assert len(await queues.take(session, ["q"], count=1000)) == 300
    waiting = queues.take(session, ["q"], wait_ms=60_000)
    await eventually(lambda: parked_in(queues, "q"))
    assert (await queues.admin.configure("q", {"lane_limit": 2}))["lane_limit"] == 2
    assert len(await waiting) == 1
    assert (await queues.admin.stats("q"))["ready"] == 299
    await queues.admin.configure("q", {"lane_limit": 1})
    stats = await queues.admin.stats("q")
    assert (stats["ready"], stats["waiting"], stats["leased"]) == (0, 299, 301)
    await queues.admin.configure("q", {"lane_limit": 0})
    assert len(await queues.take(session, ["q"], count=1000)) == 299


@pytest.mark.parametrize("value", ["-1", "0.0001", "1e3", "nan", "inf", "100000.5", "", ".5"])
async def test_a_rate_that_is_none_is_refused(node: Any, value: str) -> None:
    queues = (await node()).queues
    with pytest.raises(BadArg, match="lane_rate is"):
        await queues.admin.configure("q", {"lane_rate": value})


async def test_a_rate_may_be_a_fraction(node: Any) -> None:
    queues = (await node()).queues
    assert (await queues.admin.configure("q", {"lane_rate": "0.125"}))["lane_rate"] == 0.125
    assert await link_of(queues).call("HGET", "{tw:q:0}:shard", "lane_rate") == b"125"
    assert (await queues.admin.settings("q"))["lane_rate"] == 0.125


async def test_a_lane_lies_in_one_shard_and_its_ids_say_which(node: Any) -> None:
    queues, session = await filled(node, shards=4, lanes=5, each=3)
    ids: dict[str, list[str]] = {}
    while tasks := await queues.take(session, ["q"], count=100):
        for task in tasks:
            shown = await queues.admin.peek("q", task.id)
            ids.setdefault(shown["lane"], []).append(task.id)
            assert task.id.endswith(f"~{zlib.crc32(shown['lane'].encode()) % 4}")
        assert len({lane[-1] for lane in ids}) == 5
        assert await queues.ack(session, "q", [(task.id, task.lease) for task in tasks]) == [
            1
        ] * len(tasks)
    assert [len(found) for found in ids.values()] == [3] * 5


async def test_an_id_of_the_callers_gets_the_shard_of_its_lane(node: Any) -> None:
    queues, _ = await filled(node, shards=4, lanes=0)
    right = zlib.crc32(b"a") % 4
    task_id = await queues.put("q", TaskSpec(id="order", lane="a"))
    assert task_id == f"order~{right}"
    assert await queues.put("q", TaskSpec(id="order", lane="a")) == task_id
    assert await queues.put("q", TaskSpec(id=task_id, lane="a")) == task_id
    assert await queues.put_waiting("q", TaskSpec(id=task_id, lane="a"), 100) == task_id
    assert (await queues.admin.stats("q"))["total"] == 1
    with pytest.raises(BadArg, match="its lane lies in shard"):
        await queues.put("q", TaskSpec(id=f"order~{(right + 1) % 4}", lane="a"))
    with pytest.raises(BadArg, match="longer than 200 bytes"):
        await queues.put("q", TaskSpec(id="x" * 199, lane="a"))


@pytest.mark.thorough
async def test_a_purge_of_all_leaves_nothing_of_a_lane(node: Any) -> None:
    queues, session = await filled(node, lanes=20, each=60)
    await queues.take(session, ["q"], count=5)
    await queues.put("q", TaskSpec(lane="lane0", delay_ms=60_000))
    assert await queues.bulk.purge("q", "waiting") == 20 * 59
    for n in range(600):
        await queues.put("q", TaskSpec(lane=f"lane{n % 20}"))
    assert await queues.bulk.purge("q") == 20 + 1 + 600
    assert (await queues.admin.stats("q"))["total"] == 0
    assert (
        await link_of(queues).call(
            "EXISTS", *(f"{{tw:q:0}}:{name}" for name in ("lanes", "waiting", "running"))
        )
        == 0
    )


async def test_release_all_keeps_to_the_limit(node: Any) -> None:
    queues, session = await filled(node)
    assert len(await queues.take(session, ["q"], count=10)) == 3
    assert await queues.bulk.release_all("q") == 3
    stats = await queues.admin.stats("q")
    assert (stats["ready"], stats["waiting"]) == (3, 9)


async def test_a_move_keeps_the_lane(node: Any) -> None:
    queues, session = await filled(node, each=2)
    await queues.admin.configure("other", {"shards": 4})
    for task in await queues.take(session, ["q"], count=10):
        await queues.bury(session, "q", task.id, task.lease)
    assert await queues.buried.move("q", "other", count=2) == 2
    assert {shown["lane"] for shown in (await queues.admin.page("other", "ready"))[0]} == {
        "lane0",
        "lane1",
    }
    assert await queues.buried.move("q", "other", count=2) == 1
    for task in await queues.take(session, ["other"], count=10):
        await queues.bury(session, "other", task.id, task.lease)
    assert await queues.buried.move("other", "q", count=10) == 3
    assert (await queues.admin.stats("q"))["total"] == 6
    assert (await queues.admin.stats("other"))["total"] == 0


async def test_a_page_of_waiting_tasks_of_several_shards(node: Any) -> None:
    queues, _ = await filled(node, shards=4, lanes=10, each=3)
    seen, after = [], ""
    while True:
        rows, after = await queues.admin.page("q", "waiting", 3, after)
        seen += [row["id"] for row in rows]
        if not after:
            break
    assert len(seen) == len(set(seen)) == 20


async def test_a_full_queue_takes_no_more_of_a_lane_and_a_waiting_put_gets_its_place(
    node: Any,
) -> None:
    queues, session = await filled(node, lanes=1, capacity=4)
    with pytest.raises(Full):
        await queues.put("q", TaskSpec(lane="lane0"))
    waiting = asyncio.ensure_future(
        queues.put_waiting("q", TaskSpec(id="new", lane="lane0"), 60_000)
    )
    (task,) = await queues.take(session, ["q"])
    await queues.ack(session, "q", [(task.id, task.lease)])
    assert await waiting == "new"
    assert (await queues.admin.peek("q", "new"))["state"] == "waiting"

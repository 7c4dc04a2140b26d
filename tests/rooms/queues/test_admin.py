"""
Looking and mending, over all shards of a queue: kick, update, delete, peek, pages, pause, stats,
settings.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import parked_in

from tidewarden.errors import BadArg, NotFound, NotHeld, TooBig
from tidewarden.queue import Changes, TaskSpec
from tidewarden.queue.settings import CHOICES, LIMITS


async def wide(node: Any, shards: int = 4, **options: Any) -> Any:
    queues = (await node(**options)).queues
    await queues.admin.configure("q", {"shards": shards})
    return queues


async def buried(queues: Any, count: int, reason: str = "bad") -> list[str]:
    session = queues.open_session()
    names = [f"{reason.replace(' ', '')}{n}" for n in range(count)]
    await asyncio.gather(*(queues.put("q", TaskSpec(id=name)) for name in names))
    tasks = await queues.take(session, ["q"], count=1000)
    await asyncio.gather(
        *(queues.bury(session, "q", task.id, task.lease, reason) for task in tasks)
    )
    return names


async def test_kick_over_all_shards(node: Any) -> None:
    queues = await wide(node)
    await buried(queues, 30, "http 500")
    await buried(queues, 10, "gone")
    assert await queues.buried.kick("q", count=1000, reason_prefix="http") == 30
    assert await queues.buried.kick("q", count=3) == 3
    assert await queues.buried.kick("q", ids=["none"]) == 0
    left = {row["id"] for row in (await queues.admin.page("q", "buried"))[0]}
    assert len(left) == 7
    assert await queues.buried.kick("q", ids=[left.pop()]) == 1
    for options in ({"count": 0}, {"count": -1}, {}, {"ids": ["a b"]}, {"ids": ["a"], "count": 1}):
        with pytest.raises(BadArg):
            await queues.buried.kick("q", **options)


@pytest.mark.thorough
async def test_kick_more_than_a_script_moves(node: Any) -> None:
    queues = await wide(node, 1)
    for batch in ("a", "b", "c"):
        await buried(queues, 700, batch)
    assert await queues.buried.kick("q", count=2000, reason_prefix="c") == 700
    assert await queues.buried.kick("q", count=10_000) == 1400


async def test_update(node: Any) -> None:
    queues = await wide(node, flags={"limits.payload_bytes": "10"})
    await queues.put("q", TaskSpec(b"1", id="a"))
    await queues.admin.update("q", "a", Changes(payload=b"2", priority=3, delay_ms=60_000))
    shown = await queues.admin.peek("q", "a")
    assert (shown["payload"], shown["priority"], shown["state"]) == (b"2", 3, "delayed")
    with pytest.raises(NotFound, match="there is no task b in q"):
        await queues.admin.update("q", "b", Changes(priority=1))
    with pytest.raises(TooBig):
        await queues.admin.update("q", "a", Changes(payload=b"x" * 11))
    with pytest.raises(BadArg):
        await queues.admin.update("q", "a", Changes(lease=2**60))
    session = queues.open_session()
    (task,) = await queues.take(session, ["q"], task_id="a")
    with pytest.raises(NotHeld, match="LEASE has to be its current number"):
        await queues.admin.update("q", "a", Changes(priority=1))
    await queues.admin.update("q", "a", Changes(priority=1, lease=task.lease))


async def test_delete(node: Any) -> None:
    queues = await wide(node)
    await queues.put("q", TaskSpec(id="a"))
    assert [await queues.admin.delete("q", "a"), await queues.admin.delete("q", "a")] == [1, 0]
    await queues.put("q", TaskSpec(id="a"))
    session = queues.open_session()
    (task,) = await queues.take(session, ["q"])
    with pytest.raises(NotHeld, match="give its LEASE number, or FORCE"):
        await queues.admin.delete("q", "a")
    assert await queues.admin.delete("q", "a", lease=task.lease) == 1
    await queues.put("q", TaskSpec(id="b"))
    await queues.take(session, ["q"])
    assert await queues.admin.delete("q", "b", force=True) == 1
    with pytest.raises(BadArg):
        await queues.admin.delete("q", "")


async def test_peek(node: Any) -> None:
    queues = await wide(node)
    await queues.put("q", TaskSpec(b"\xff", id="ä", delay_ms=60_000))
    shown = await queues.admin.peek("q", "ä")
    assert (shown["id"], shown["queue"], shown["state"], shown["payload"]) == (
        "ä",
        "q",
        "delayed",
        b"\xff",
    )
    with pytest.raises(NotFound):
        await queues.admin.peek("q", "b")


@pytest.mark.parametrize("count", [1, 7, 1000])
async def test_pages_go_through_all_shards(node: Any, count: int) -> None:
    queues = await wide(node)
    await asyncio.gather(
        *(queues.put("q", TaskSpec(id=f"r{n}", priority=n % 3)) for n in range(20))
    )
    await asyncio.gather(
        *(queues.put("q", TaskSpec(id=f"d{n}", delay_ms=60_000)) for n in range(10))
    )
    await queues.take(queues.open_session(), ["q"], count=5)
    for state, total in (("ready", 15), ("delayed", 10), ("leased", 5), ("buried", 0)):
        seen, cursor = [], ""
        while True:
            rows, cursor = await queues.admin.page("q", state, count, cursor)
            seen += [row["id"] for row in rows]
            assert {row["state"] for row in rows} <= {state}
            if not cursor:
                break
            assert len(rows) == count
        assert len(seen) == len(set(seen)) == total


async def test_a_page_of_nothing_sensible(node: Any) -> None:
    queues = await wide(node)
    for state, count, after in (
        ("done", 1, ""), ("ready", 0, ""), ("ready", 1001, ""), ("ready", 1, "x"), ("ready", 1, "9:"), ("ready", 1, "-1:"),
        ("ready", 1, "0:rubbish"), ("ready", 1, ":"), ("ready", 1, "0:buried 5 a"),
        ("ready", 1, f"{'9' * 5000}:"),
    ):  # fmt: skip
        with pytest.raises(BadArg):
            await queues.admin.page("q", state, count, after)


async def test_pause_and_resume_all_shards(node: Any) -> None:
    queues = await wide(node)
    await asyncio.gather(*(queues.put("q", TaskSpec()) for _ in range(20)))
    await queues.admin.pause("q", 60_000)
    assert await queues.take(queues.open_session(), ["q"], count=20) == []
    assert (await queues.admin.stats("q"))["paused_until_ms"] > 0
    await queues.admin.resume("q")
    assert len(await queues.take(queues.open_session(), ["q"], count=20)) == 20
    assert (await queues.admin.stats("q"))["paused_until_ms"] == 0
    for ms in (0, -1, 2**42):
        with pytest.raises(BadArg):
            await queues.admin.pause("q", ms)


async def test_stats_add_up(node: Any, eventually: Any) -> None:
    queues = await wide(node)
    assert (await queues.admin.stats("q"))["total"] == 0
    await asyncio.gather(*(queues.put("q", TaskSpec(within_ms=1000 + n)) for n in range(20)))
    await asyncio.gather(*(queues.put("q", TaskSpec(delay_ms=10**6 + n)) for n in range(5)))
    session = queues.open_session()
    tasks = await queues.take(session, ["q"], count=8)
    await queues.ack(session, "q", [(task.id, task.lease) for task in tasks[:2]])
    await queues.bury(session, "q", tasks[2].id, tasks[2].lease)
    stats = await queues.admin.stats("q")
    assert [stats[name] for name in ("delayed", "ready", "leased", "buried", "total")] == [
        5,
        12,
        5,
        1,
        23,
    ]
    assert (
        stats["count_put"],
        stats["count_taken"],
        stats["count_acked"],
        stats["count_buried"],
    ) == (25, 8, 2, 1)
    assert stats["oldest_ready_deadline_ms"] > 0
    assert stats["next_ms"] > 0
    assert (stats["waiting_nodes"], stats["waiting_takes_here"]) == (0, 0)
    take = queues.take(session, ["other"], wait_ms=60_000)
    await eventually(lambda: parked_in(queues, "other"))
    stats = await queues.admin.stats("other")
    assert (stats["waiting_nodes"], stats["waiting_takes_here"]) == (1, 1)
    take.cancel()
    with pytest.raises(NotFound, match="there is no queue none"):
        await queues.admin.stats("none")


async def test_settings_take_effect_in_every_shard(node: Any) -> None:
    queues = await wide(node, 2)
    assert (await queues.admin.configure("q", {"lease_ms": 5000, "dedup_ms": "0"}))["dedup_ms"] == 0
    for name in ("a", "b", "c", "d"):
        await queues.put("q", TaskSpec(id=name))
    session = queues.open_session()
    for task in await queues.take(session, ["q"], count=4):
        assert task.lease_end_ms == pytest.approx(task.deadline_ms + 5000, abs=2000)
        await queues.ack(session, "q", [(task.id, task.lease)])
        assert await queues.put("q", TaskSpec(id=task.id, if_exists="fail")) == task.id
    assert (await queues.admin.settings("q"))["lease_ms"] == 5000


@pytest.mark.parametrize("name", [*sorted(LIMITS), *CHOICES, "none"])
async def test_a_bad_setting_changes_nothing(node: Any, name: str) -> None:
    queues = await wide(node, 2)
    before = await queues.admin.settings("q")
    for value in ("", "x", -1, 10**15, "quorum"):
        with pytest.raises(BadArg, match=name):
            await queues.admin.configure(
                "q", {"lease_ms": 77, name: value} if name != "lease_ms" else {name: value}
            )
    assert await queues.admin.settings("q") == before
    assert (await queues.scripts.run("queue.stats", "q", 0, []))[9] == []


async def test_what_is_fixed_while_the_queue_holds_tasks(node: Any) -> None:
    n0, n1 = await node("n0"), await node("n1")
    queues = n0.queues
    await queues.put("q", TaskSpec(id="a"))
    with pytest.raises(BadArg, match="shards of q can be changed only while it is empty"):
        await queues.admin.configure("q", {"shards": 2})
    with pytest.raises(BadArg, match="order of q can be changed only while it is empty"):
        await queues.admin.configure("q", {"order": "edf"})
    assert (await queues.admin.settings("q"))["order"] == "bands"
    assert await n1.queues.admin.settings("q") == await queues.admin.settings("q")
    await queues.admin.delete("q", "a")
    assert (await queues.admin.configure("q", {"order": "edf", "shards": 2}))["order"] == "edf"


async def test_two_nodes_change_different_settings(node: Any, eventually: Any) -> None:
    """A change is made to what is stored, not to what this node last heard of."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.admin.configure("q", {"lease_ms": 1000})
    await n1.queues.catalog.shard_count("q")
    await n1.ears.stop()  # it hears nothing from now on
    await n0.queues.admin.configure("q", {"lease_ms": 2000})
    now = await n1.queues.admin.configure("q", {"urgent_ms": 5})
    assert (now["lease_ms"], now["urgent_ms"]) == (2000, 5)


@pytest.mark.parametrize(
    "verb",
    [
        *[
            "update",
            "delete",
            "peek",
            "page",
            "pause",
            "resume",
            "stats",
            "settings",
            "configure",
        ]
    ],
)
async def test_a_name_that_is_none(node: Any, verb: str) -> None:
    queues = (await node()).queues
    args: tuple[Any, ...] = {
        "update": ("a", Changes()), "delete": ("a",), "peek": ("a",), "page": ("ready",), "configure": ({},),
    }.get(verb, ())  # fmt: skip
    with pytest.raises(BadArg, match="the queue name"):
        await getattr(queues.admin, verb)("no such name", *args)

"""The latest run of a schedule on a real store: what became of its task, and a run by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.queues.schedules_harness import (
    LEADER,
    HookedQueues,
    prefix,
    put_every,
    queues,
    raw,
    schedules,
    tasks,
)

from tidewarden.errors import BadArg, Full, NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec

__all__ = ["queues", "raw", "schedules"]  # fixtures
Last = Callable[[], Awaitable[dict[str, Any]]]


@pytest.fixture
def last(schedules: Schedules) -> Last:
    """What the schedule ``tick`` says of its latest run."""

    async def asked() -> dict[str, Any]:
        found: dict[str, Any] = (await schedules.get("tick"))["last"]
        assert [row["last"] for row in await schedules.list()] == [found]
        return found

    return asked


async def fired(schedules: Schedules, **options: Any) -> int:
    """A schedule that has fired once; its tick."""
    tick_ms = await put_every(schedules, **options)
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    return tick_ms


def open_runs(raw: Any, queue: str = "jobs", shard: int = 0) -> int:
    """How many runs the shard waits for the end of, as its record says, too."""
    at = prefix(queue, shard)
    count = int(raw.hlen(f"{at}:run_of"))
    assert int(raw.hget(f"{at}:shard", "runs") or 0) == count
    return count


async def test_the_end_of_its_task_is_told_long_after(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    """Also where the queue remembers no task that is done."""
    await queues.admin.configure("jobs", {"dedup_ms": 0})
    tick_ms = await put_every(schedules)
    assert "last" not in await schedules.get("tick"), "it has not run"
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    ready = await last()
    assert (ready["id"], ready["how"], ready["due_ms"]) == (f"tick:{tick_ms}", "tick", tick_ms)
    assert (ready["state"], ready["attempts"], "ended_ms" in ready) == ("ready", 0, False)
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    assert ((await last())["state"], (await last())["attempts"]) == ("leased", 1)
    await queues.ack(session, "jobs", [(task.id, task.lease)])
    done = await last()
    assert (done["state"], done["id"]) == ("done", task.id)
    assert abs(done["ended_ms"] - done["put_ms"]) < 60_000
    assert open_runs(raw) == 0
    assert not raw.keys(f"{prefix()}:done:*")


async def test_each_state_of_its_task_is_shown(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    await fired(schedules, delay_ms=3_600_000)
    assert (await last())["state"] == "delayed"
    await queues.admin.delete("jobs", (await last())["id"])
    deleted = await last()
    assert (deleted["state"], deleted["ended_ms"] > 0) == ("deleted", True)
    await schedules.delete("tick")
    await fired(schedules)
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    await queues.bury(session, "jobs", task.id, task.lease, "550 no such mailbox")
    buried = await last()
    assert (buried["state"], buried["reason"]) == ("buried", "550 no such mailbox")
    assert buried["ended_ms"] > 0
    assert await queues.buried.kick("jobs", ids=[task.id]) == 1
    assert (await last())["state"] == "ready", "a kick makes it open again"
    assert open_runs(raw) == 1
    (again,) = await queues.take(session, ["jobs"])
    await queues.ack(session, "jobs", [(again.id, again.lease)])
    assert (await last())["state"] == "done"


async def test_purged_with_all_others(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    await fired(schedules)
    await queues.bulk.purge("jobs")
    assert ((await last())["state"], open_runs(raw)) == ("deleted", 0)


async def test_one_that_is_moved_has_gone(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    await fired(schedules)
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    await queues.bury(session, "jobs", task.id, task.lease)
    assert await queues.buried.move("jobs", "mail", count=5) == 1
    assert ((await last())["state"], open_runs(raw)) == ("deleted", 0)


async def test_a_task_that_waits_for_its_lane(schedules: Schedules, last: Last) -> None:
    tick_ms = await put_every(schedules, catchup="all", lane="one at a time")
    await schedules.fire_due("jobs", 0, tick_ms + 1_000, 1, LEADER)
    assert ((await last())["due_ms"], (await last())["state"]) == (tick_ms + 1_000, "waiting")


async def test_an_end_that_nobody_noted_is_unknown(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    """As where a node of an older version acknowledged it; the next tick begins anew."""
    tick_ms = await fired(schedules)
    raw.hdel(f"{prefix()}:tasks", f"tick:{tick_ms}")
    raw.zrem(f"{prefix()}:ready:50", f"tick:{tick_ms}")
    raw.hset(f"{prefix()}:shard", mapping={"stored": 0})
    unknown = await last()
    assert (unknown["state"], "ended_ms" in unknown) == ("unknown", False)
    await schedules.fire_due("jobs", 0, tick_ms + 1_000, 1, LEADER)
    assert ((await last())["state"], open_runs(raw)) == ("ready", 1)


@pytest.mark.parametrize("run", ["x", "1 2", "a b tick c", "1 2 tick id odd 5x", ""])
async def test_a_run_that_nobody_can_read_hides_no_schedule(
    schedules: Schedules, queues: HookedQueues, raw: Any, run: str
) -> None:
    tick_ms = await fired(schedules)
    raw.hset(f"{prefix()}:runs", "tick", run)
    (shown,) = await schedules.list()
    assert shown.get("last", {"state": "unknown"})["state"] == "unknown"
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    assert await queues.ack(session, "jobs", [(task.id, task.lease)]) == [1]
    assert await schedules.fire_due("jobs", 0, tick_ms + 1_000, 1, LEADER) == tick_ms + 2_000
    assert (await schedules.get("tick"))["last"]["due_ms"] == tick_ms + 1_000


async def test_one_run_a_schedule_is_kept(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    """However often it ticks, and however many of its tasks nobody has taken."""
    tick_ms = await fired(schedules)
    for number in range(1, 40):
        await schedules.fire_due("jobs", 0, tick_ms + number * 1_000, 1, LEADER)
    assert (open_runs(raw), raw.hlen(f"{prefix()}:runs"), len(tasks(raw))) == (1, 1, 40)
    session = queues.open_session()
    held = await queues.take(session, ["jobs"], count=40)
    pairs = [(task.id, task.lease) for task in held]
    assert await queues.ack(session, "jobs", pairs[:-1]) == [1] * 39
    assert ((await last())["state"], open_runs(raw)) == ("leased", 1), "earlier runs are no matter"
    assert await queues.ack(session, "jobs", pairs[-1:]) == [1]
    assert ((await last())["state"], open_runs(raw)) == ("done", 0)
    await schedules.fire_due("jobs", 0, tick_ms + 40_000, 1, LEADER)
    await schedules.delete("tick")
    assert open_runs(raw) == raw.exists(f"{prefix()}:runs") == 0
    await put_every(schedules)
    assert "last" not in await schedules.get("tick"), "another of its name has not run"


async def test_a_tick_that_is_passed_over_is_no_run(schedules: Schedules) -> None:
    tick_ms = await put_every(schedules, catchup="none")
    await schedules.fire_due("jobs", 0, tick_ms + 60_000, 1, LEADER)
    assert "last" not in await schedules.get("tick")


async def test_a_full_store_notes_the_end(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    await fired(schedules)
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    raw.config_set("maxmemory", 1)
    try:
        assert await queues.ack(session, "jobs", [(task.id, task.lease)]) == [1]
        assert (await last())["state"] == "done"
    finally:
        raw.config_set("maxmemory", 0)


async def test_on_a_full_store_a_long_result_is_refused_behind_a_run_that_ends(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    """What notes the end writes: it must not open the store for what comes behind it."""
    await fired(schedules)
    await queues.put("jobs", TaskSpec(b"x", id="other"))
    session = queues.open_session()
    held = {task.id: task for task in await queues.take(session, ["jobs"], count=2)}
    other = held.pop("other")
    (run,) = held.values()
    words: list[str | int | bytes] = [run.id, run.lease, b"", "other", other.lease, b"y" * 10_000]
    raw.config_set("maxmemory", 1)
    try:
        assert await queues.scripts.run("queue.ack", "jobs", 0, words) == [1, -1]
        assert (await last())["state"] == "done"
    finally:
        raw.config_set("maxmemory", 0)


async def test_a_run_by_hand_is_the_latest_and_asked_twice_it_is_one(
    schedules: Schedules, queues: HookedQueues, raw: Any, last: Last
) -> None:
    await queues.admin.configure("jobs", {"dedup_ms": 0})
    await fired(schedules)
    ids = {await schedules.run("tick", "deploy-42") for _ in range(3)}
    assert ids == {"tick:run:deploy-42"}
    assert len(tasks(raw)) == 2
    by_hand = await last()
    assert (by_hand["id"], by_hand["how"]) == ("tick:run:deploy-42", "hand")
    assert by_hand["due_ms"] == by_hand["put_ms"]
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"], task_id="tick:run:deploy-42")
    await queues.ack(session, "jobs", [(task.id, task.lease)])
    assert await schedules.run("tick", "deploy-42") == task.id
    assert ((await last())["state"], len(tasks(raw))) == ("done", 1), "it was run already"
    assert await schedules.run("tick", "deploy-43") != task.id
    assert len({await schedules.run("tick") for _ in range(2)}) == 2
    assert open_runs(raw) == 1


async def test_a_run_is_known_by_its_id_while_the_queue_remembers_what_is_done(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    await put_every(schedules)
    task_id = await schedules.run("tick", "a")
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    await queues.ack(session, "jobs", [(task.id, task.lease)])
    await schedules.run("tick", "b")
    assert (await schedules.run("tick", "a"), len(tasks(raw))) == (task_id, 1)


async def test_in_a_sharded_queue_a_run_lies_with_its_schedule(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    for number in range(12):
        name = f"s{number}"
        await schedules.put(name, Spec.every(1_000), "wide", TaskSpec(b"x"))
        task_id = await schedules.run(name, "again")
        assert await schedules.run(name, "again") == task_id
        shard = queues.catalog.shard_of("wide", name)
        assert queues.catalog.shard_of("wide", task_id) == shard
        assert tasks(raw, "wide", shard).count(task_id) == 1
        assert (await schedules.get(name))["last"]["state"] == "ready"


async def test_what_a_run_is_refused_with(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    await put_every(schedules)
    for key in ("k" * 61, "a b", "ä" * 31, "\n"):
        with pytest.raises(BadArg, match=r"(?i)\bid\b"):
            await schedules.run("tick", key)
    for work in (schedules.run, schedules.get):
        with pytest.raises(NotFound, match="there is no schedule 'none'"):
            await work("none")
    await queues.admin.configure("jobs", {"capacity": 1})
    await schedules.run("tick", "first")
    with pytest.raises(Full, match="capacity"):
        await schedules.run("tick", "second")
    assert await schedules.run("tick", "first") == "tick:run:first"
    raw.hset(f"{prefix()}:schedules", "tick", b"\xc1")
    with pytest.raises(BadArg, match="newer format"):
        await schedules.run("tick", "third")
    assert tasks(raw) == ["tick:run:first"]


async def test_the_next_ticks_of_one_and_what_all_will_put(schedules: Schedules, raw: Any) -> None:
    hour_ms = 3_600_000
    first_ms = await put_every(schedules, "hourly", hour_ms)
    await put_every(schedules, "pulse", 1_000)
    await put_every(schedules, "rests", hour_ms)
    await schedules.pause("rests")
    shown = await schedules.get("hourly", 3)
    assert shown["next"] == [first_ms, first_ms + hour_ms, first_ms + 2 * hour_ms]
    assert ((await schedules.get("rests"))["next"], shown["state"]) == ([], "active")
    for count in (0, 101):
        with pytest.raises(BadArg, match="COUNT"):
            await schedules.get("hourly", count)
    found = await schedules.outlook(4 * hour_ms)
    assert [one["at_ms"] for one in found["ticks"]] == [
        first_ms + number * hour_ms for number in range(4)
    ]
    assert [(one["name"], one["per_day"]) for one in found["rates"]] == [("pulse", 86_400)]
    assert (found["resting"], found["more"]) == (1, False)
    assert found["until_ms"] - found["from_ms"] == 4 * hour_ms
    seen = await schedules.outlook(4 * hour_ms, lambda name: name == "rests")
    assert (seen["ticks"], seen["rates"], seen["resting"]) == ([], [], 1)
    for within_ms in (0, 32 * 24 * hour_ms):
        with pytest.raises(BadArg, match="MS is"):
            await schedules.outlook(within_ms)

"""Schedules on a real store: put, listed, deleted, refused."""

from __future__ import annotations

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

from tidewarden.errors import BadArg, Exists, Full, NotFound, TooBig
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler import schedules as module
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec
from tidewarden.user_limits import ACTING

__all__ = ["queues", "raw", "schedules"]  # fixtures


async def test_putting_the_same_again_changes_nothing(schedules: Schedules) -> None:
    """
    A service that puts its schedules on every start must not push an interval's tick away for ever.
    """
    tick_ms = await put_every(schedules)
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert await put_every(schedules) == tick_ms + 1_000
    assert await put_every(schedules, priority=3) != tick_ms + 1_000
    assert [row["priority"] for row in await schedules.list()] == [3]


async def test_list_shows_what_was_put(schedules: Schedules) -> None:
    spec = Spec.cron("30 2 * * 7", "Europe/Berlin", "none")
    next_ms = await schedules.put("b", spec, "wide", TaskSpec(b"y" * 1_000, within_ms=60_000))
    tick_ms = await put_every(schedules, "a")
    a, b = await schedules.list()
    assert (a["name"], a["queue"], a["kind"], a["every_ms"], a["next_ms"], a["state"]) == (
        "a",
        "jobs",
        "every",
        1_000,
        tick_ms,
        "active",
    )
    assert "within_ms" not in a
    assert (b["expr"], b["zone"], b["catchup"], b["next_ms"], b["within_ms"]) == (
        "30 2 * * 7",
        "Europe/Berlin",
        "none",
        next_ms,
        60_000,
    )
    assert (b["payload"], b["payload_bytes"]) == (b"y" * 256, 1_000)


async def test_many_schedules_are_listed_over_pages(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 5)
    names = [f"s{number:03}" for number in range(150)]
    for name in names:
        await put_every(schedules, name)
    assert [row["name"] for row in await schedules.list()] == names


async def test_in_a_sharded_queue_row_and_tasks_share_a_shard(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    for number in range(20):
        name = f"s{number}"
        tick_ms = await schedules.put(name, Spec.every(1_000), "wide", TaskSpec(b"x"))
        shard = queues.catalog.shard_of("wide", name)
        assert raw.hexists(f"{prefix('wide', shard)}:schedules", name)
        await schedules.fire_due("wide", shard, tick_ms, 1, LEADER)
        (task_id,) = [
            found for found in tasks(raw, "wide", shard) if found.startswith(f"{name}:{tick_ms}")
        ]
        assert queues.catalog.shard_of("wide", task_id) == shard
        assert await schedules.delete(name) is True


async def test_delete_keeps_the_tasks_and_forgets_the_name(schedules: Schedules, raw: Any) -> None:
    tick_ms = await put_every(schedules)
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert await schedules.delete("tick") is True
    assert await schedules.delete("tick") is False
    assert tasks(raw) == [f"tick:{tick_ms}"]
    assert (
        raw.keys(f"{prefix()}:schedules")
        == raw.keys(f"{prefix()}:ticks")
        == raw.keys(f"{prefix('_schedules')}:names")
        == []
    )
    assert await schedules.fire_due("jobs", 0, tick_ms + 60_000, 1, LEADER) == -1


async def test_a_name_belongs_to_one_queue(schedules: Schedules) -> None:
    await put_every(schedules)
    with pytest.raises(Exists, match="'jobs'"):
        await schedules.put("tick", Spec.every(1_000), "mail", TaskSpec(b""))
    await schedules.delete("tick")
    await schedules.put("tick", Spec.every(1_000), "mail", TaskSpec(b""))


async def test_a_crash_between_directory_and_row_blocks_nothing(
    schedules: Schedules, queues: HookedQueues
) -> None:
    """The directory names a queue in which there is no row: another queue may have the name."""

    async def crash() -> None:
        raise ConnectionError

    queues.hooks["scheduler.put"] = crash
    with pytest.raises(ConnectionError):
        await put_every(schedules)
    assert await schedules.list() == []
    await schedules.put("tick", Spec.every(1_000), "mail", TaskSpec(b""))
    assert [row["queue"] for row in await schedules.list()] == ["mail"]


async def test_a_row_that_the_directory_lost_is_listed_and_deleted(
    schedules: Schedules, raw: Any
) -> None:
    await put_every(schedules)
    raw.delete(f"{prefix('_schedules')}:names")
    assert [row["name"] for row in await schedules.list()] == ["tick"]
    assert await schedules.delete("tick") is True
    assert await schedules.list() == []


async def test_a_delete_in_the_middle_of_a_put_leaves_a_row_that_is_found(
    schedules: Schedules, queues: HookedQueues
) -> None:
    async def delete() -> None:
        await schedules.delete("tick")

    queues.hooks["scheduler.put"] = delete
    await put_every(schedules)
    assert await schedules.delete("tick") is True
    assert await schedules.list() == []


async def test_two_puts_of_one_name_into_two_queues_leave_one(
    schedules: Schedules, queues: HookedQueues
) -> None:
    """The second claims the name between the first's claim and its row."""

    async def second() -> None:
        await schedules.put("tick", Spec.every(1_000), "mail", TaskSpec(b""))

    queues.hooks["scheduler.put"] = second
    with pytest.raises(Exists):
        await put_every(schedules)
    assert [row["queue"] for row in await schedules.list()] == ["mail"]


async def test_a_payload_of_any_bytes_survives(schedules: Schedules, raw: Any) -> None:
    payload = bytes(range(256)) * 300
    tick_ms = await schedules.put("bin", Spec.every(1_000), "jobs", TaskSpec(payload))
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert raw.hget(f"{prefix()}:tasks", f"bin:{tick_ms}").endswith(payload)


@pytest.mark.parametrize(
    ("name", "queue", "task", "message"),
    [
        ("", "jobs", TaskSpec(), "name"),
        ("a b", "jobs", TaskSpec(), "name"),
        ("x" * 129, "jobs", TaskSpec(), "128"),
        ("ok", "a b", TaskSpec(), "queue"),
        ("ok", "jobs", TaskSpec(id="mine"), "ID"),
        ("ok", "jobs", TaskSpec(at_ms=1), "AT"),
        ("ok", "jobs", TaskSpec(deadline_ms=1), "DEADLINE"),
        ("ok", "jobs", TaskSpec(if_exists="replace"), "IFEXISTS"),
        ("ok", "jobs", TaskSpec(priority=100), "PRIORITY"),
    ],
)
async def test_wrong_input_is_refused(
    schedules: Schedules, name: str, queue: str, task: TaskSpec, message: str
) -> None:
    with pytest.raises(BadArg, match=message):
        await schedules.put(name, Spec.every(1_000), queue, task)
    assert await schedules.list() == []


async def test_refusals_that_need_the_store(
    schedules: Schedules, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A tick that never comes, a payload over the limit, and one schedule too many leave nothing
    behind.
    """
    for spec in (Spec.at(1_000), Spec.cron("0 0 31 2 *")):
        with pytest.raises(BadArg):
            await schedules.put("never", spec, "jobs", TaskSpec(b""))
    with pytest.raises(TooBig):
        await schedules.put("big", Spec.every(1_000), "jobs", TaskSpec(b"x" * 2_000_000))
    monkeypatch.setattr(module, "SCHEDULES_MAX", 1)
    await put_every(schedules)
    with pytest.raises(Full, match="1 schedules"):
        await put_every(schedules, "another")
    assert [row["name"] for row in await schedules.list()] == ["tick"]


async def test_a_user_has_its_share_of_schedules_and_no_more(queues: HookedQueues) -> None:
    schedules = Schedules(queues, schedules_max=5)
    queues.user_limits.follow(["eve", "bob"])
    token = ACTING.set("eve")
    try:
        for n in range(4):
            await put_every(schedules, f"eve{n}")
        with pytest.raises(Full, match=r"eve has made 4 schedules.*limits\.schedules_max.*share"):
            await put_every(schedules, "eve4")
        await put_every(schedules, "eve3", 2_000)  # one that is there is put anew
        ACTING.set("bob")
        await put_every(schedules, "bob0")
        with pytest.raises(Full, match=r"the cluster has 5 schedules, the most"):
            await put_every(schedules, "bob1")
        # what goes, or becomes another's, counts no more
        await put_every(schedules, "eve3", 3_000)
        assert await schedules.delete("eve0")
        ACTING.set("eve")
        await put_every(schedules, "eve0")
        with pytest.raises(Full):
            await put_every(schedules, "eve4")
    finally:
        ACTING.reset(token)


async def test_a_schedule_that_is_over_counts_no_more(queues: HookedQueues, raw: Any) -> None:
    schedules = Schedules(queues, schedules_max=5)
    token = ACTING.set("eve")
    try:
        tick_ms = await schedules.put("once", Spec.at(4_000_000_000_000), "jobs", TaskSpec(b"x"))
    finally:
        ACTING.reset(token)
    makers = f"{prefix('_schedules')}:makers"
    assert raw.hgetall(makers) == {b"eve": b"1"}
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert raw.hgetall(makers) == {}


async def claimed_in_a_dropped_queue(schedules: Schedules, queues: HookedQueues) -> None:
    """A name is claimed for a queue that is dropped before the schedule's row is there."""
    queues.hooks["scheduler.put"] = lambda: queues.dropped.drop("jobs", force=True)
    with pytest.raises(NotFound, match="the queue jobs was dropped"):
        await put_every(schedules, "tick")


async def test_a_name_that_was_claimed_for_a_dropped_queue_is_free(
    schedules: Schedules, queues: HookedQueues
) -> None:
    await claimed_in_a_dropped_queue(schedules, queues)
    for work in (schedules.pause, schedules.resume, schedules.run):
        with pytest.raises(NotFound, match="no schedule 'tick'"):
            await work("tick")
    await schedules.put("tick", Spec.every(1_000, "one"), "wide", TaskSpec(b"x"))
    assert [row["queue"] for row in await schedules.list()] == ["wide"]
    assert await schedules.delete("tick")


async def test_a_name_that_was_claimed_for_a_dropped_queue_is_forgotten(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    await claimed_in_a_dropped_queue(schedules, queues)
    assert raw.hlen(f"{prefix('_schedules')}:names") == 1
    assert not await schedules.delete("tick")
    assert not raw.exists(f"{prefix('_schedules')}:names")

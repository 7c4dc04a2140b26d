"""
Schedules that stand still on a real store: nothing is put meanwhile, and what was missed is made up
for.
"""

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

from tidewarden.errors import NotFound
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec

__all__ = ["queues", "raw", "schedules"]  # fixtures


async def states(schedules: Schedules) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["state"], row["next_ms"]) for row in await schedules.list()}


@pytest.mark.parametrize(
    ("catchup", "missed"), [("one", [0]), ("none", []), ("all", list(range(11)))]
)
async def test_a_paused_schedule_puts_nothing_and_makes_up_for_it(
    schedules: Schedules, raw: Any, catchup: str, missed: list[int]
) -> None:
    tick_ms = await put_every(schedules, catchup=catchup)
    for _ in range(2):
        await schedules.pause("tick")
    assert await states(schedules) == {"tick": ("paused", tick_ms)}
    later_ms = tick_ms + 10_000
    assert await schedules.fire_due("jobs", 0, later_ms, 1, LEADER) == -1, (
        "nothing wakes the leader for it"
    )
    assert tasks(raw) == []
    assert [await schedules.resume("tick") for _ in range(2)] == [tick_ms, tick_ms]
    assert await schedules.fire_due("jobs", 0, later_ms, 1, LEADER) == later_ms + 1_000
    assert tasks(raw) == sorted(f"tick:{tick_ms + number * 1_000}" for number in missed)
    assert await states(schedules) == {"tick": ("active", later_ms + 1_000)}
    assert not raw.exists(f"{prefix()}:paused")


async def test_the_others_tick_on(schedules: Schedules, raw: Any) -> None:
    tick_ms = await put_every(schedules)
    await put_every(schedules, "other")
    await schedules.pause("tick")
    following_ms = await schedules.fire_due("jobs", 0, tick_ms + 2_000, 1, LEADER)
    assert {name.partition(":")[0] for name in tasks(raw)} == {"other"}
    assert following_ms > tick_ms


async def test_whatever_is_put_under_its_name_it_stays_paused(
    schedules: Schedules, raw: Any
) -> None:
    """
    A service puts its schedules at each start; what an operator has paused is not begun by that.
    """
    tick_ms = await put_every(schedules)
    await schedules.pause("tick")
    assert await put_every(schedules) == tick_ms
    other_ms = await put_every(schedules, every_ms=60_000)
    assert await states(schedules) == {"tick": ("paused", other_ms)}
    assert await schedules.fire_due("jobs", 0, other_ms, 1, LEADER) == -1
    assert await schedules.resume("tick") == other_ms
    assert await schedules.delete("tick")
    assert not raw.keys(f"{prefix()}:ticks")
    # And a new one of that name has never been paused.
    await put_every(schedules)
    await schedules.pause("tick")
    await schedules.delete("tick")
    await put_every(schedules)
    assert [state for state, _ in (await states(schedules)).values()] == ["active"]


async def test_one_that_is_paused_while_it_fires_puts_nothing_more(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    tick_ms = await put_every(schedules)

    async def pause() -> None:
        await Schedules(queues).pause("tick")

    queues.hooks["scheduler.fire"] = pause
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == -1
    assert tasks(raw) == []
    assert await schedules.resume("tick") == tick_ms
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]


async def test_one_that_was_to_tick_once(schedules: Schedules, raw: Any) -> None:
    for name, catchup in (("late", "one"), ("never", "none")):
        await schedules.put(name, Spec.at(4_000_000_000_000, catchup), "jobs", TaskSpec(b"x"))
        await schedules.pause(name)
    for name in ("late", "never"):
        assert await schedules.resume(name) == 4_000_000_000_000
    assert await schedules.fire_due("jobs", 0, 4_000_000_060_000, 1, LEADER) == -1
    assert tasks(raw) == ["late:4000000000000"]
    assert await schedules.list() == []


async def test_it_is_found_wherever_it_lies(schedules: Schedules, raw: Any) -> None:
    names = [f"s{number}" for number in range(4)]
    for name in names:
        await schedules.put(name, Spec.every(1_000), "wide", TaskSpec(b"x"))
    for key in raw.keys("*names"):  # the directory is lost
        raw.delete(key)
    for name in names:
        await schedules.pause(name)
    assert {state for state, _ in (await states(schedules)).values()} == {"paused"}
    for verb in (schedules.pause, schedules.resume):
        with pytest.raises(NotFound, match="there is no schedule 'other'"):
            await verb("other")


async def test_its_task_is_put_at_once_and_its_ticks_stay(
    schedules: Schedules, queues: HookedQueues
) -> None:
    task = TaskSpec(b"now", within_ms=60_000, priority=7, attempts=3)
    tick_ms = await schedules.put("tick", Spec.every(10_000_000), "jobs", task)
    await schedules.pause("tick")
    ids = [await schedules.run("tick") for _ in range(2)]
    assert len(set(ids)) == 2
    assert all(one.startswith("tick:run:") for one in ids)
    found = await queues.admin.peek("jobs", ids[0])
    assert (found["payload"], found["priority"], found["attempts_max"]) == (b"now", 7, 3)
    assert found["deadline_ms"] - found["due_ms"] == 60_000
    assert await states(schedules) == {"tick": ("paused", tick_ms)}
    with pytest.raises(NotFound, match="there is no schedule 'none'"):
        await schedules.run("none")

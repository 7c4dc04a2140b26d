"""Schedules on a real store: each tick put once, whoever fires it and whatever comes between."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import msgspec
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

from tidewarden import clock
from tidewarden.errors import BadArg, Stale
from tidewarden.queue.task import TaskSpec
from tidewarden.scheduler import schedules as module
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec

__all__ = ["queues", "raw", "schedules"]  # fixtures


async def test_a_tick_puts_one_task_named_by_it(schedules: Schedules, raw: Any) -> None:
    tick_ms = await put_every(schedules)
    assert await schedules.fire_due("jobs", 0, tick_ms - 1, 1, LEADER) == tick_ms
    assert tasks(raw) == []
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]
    assert raw.hget(f"{prefix()}:shard", "tick") == str(tick_ms + 1_000).encode()
    assert raw.zscore(f"{prefix()}:ready:50", f"tick:{tick_ms}") == tick_ms


async def test_others_have_their_turn_while_many_ticks_are_named(
    schedules: Schedules, queues: HookedQueues, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a queue of many shards an id that lies with its schedule is one of hundreds."""
    monkeypatch.setattr(clock, "TURN_S", -1.0)  # each piece takes longer
    turns, ticks = 0, 100
    tick_ms = await put_every(schedules, catchup="all")

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def first(*_: Any) -> int:
        turns_then.append(turns)
        return 0

    turns_then: list[int] = []
    monkeypatch.setattr(queues.catalog, "shard_of", first)
    beside = asyncio.create_task(other())
    await schedules.fire_due("jobs", 0, tick_ms + (ticks - 1) * 1_000, 1, LEADER)
    beside.cancel()
    assert len(turns_then) == len(tasks(raw)) == ticks
    assert turns_then[-1] - turns_then[0] > ticks / 5


async def test_the_task_has_its_options_counted_from_the_tick(
    schedules: Schedules, raw: Any, queues: HookedQueues
) -> None:
    options = {
        "delay_ms": 5_000,
        "within_ms": 9_000,
        "priority": 7,
        "lease_ms": 1_234,
        "attempts": 3,
        "backoff_ms": 77,
    }
    tick_ms = await put_every(schedules, **options)
    await schedules.fire_due("jobs", 0, tick_ms + 40, 1, LEADER)
    task_id = f"tick:{tick_ms}"
    assert raw.zscore(f"{prefix()}:delayed", task_id) == tick_ms + 5_000
    raw_task = raw.hget(f"{prefix()}:tasks", task_id)
    for number in (tick_ms + 5_000, tick_ms + 9_000, 1_234, 77):
        assert number.to_bytes(6, "big") in raw_task
    assert (raw_task[1], raw_task[-1:]) == (7, b"x")


async def test_a_tick_is_put_once_whoever_fires(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    """
    Two leaders in a row, or at once, read the same due tick: the second one's script finds it gone.
    """
    tick_ms = await put_every(schedules)

    async def newer_leader() -> None:
        await Schedules(queues).fire_due("jobs", 0, tick_ms, 1, LEADER)
        raw.hdel(f"{prefix()}:tasks", f"tick:{tick_ms}")
        raw.zrem(f"{prefix()}:ready:50", f"tick:{tick_ms}")

    queues.hooks["scheduler.fire"] = newer_leader
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == []


async def test_a_tick_whose_task_is_there_already_puts_nothing_over_it(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    """As where a store was restored to before the tick, and its task was put by hand since."""
    tick_ms = await put_every(schedules)
    task_id = f"tick:{tick_ms}"
    await queues.put("jobs", TaskSpec(b"by hand", id=task_id))
    session = queues.open_session()
    (task,) = await queues.take(session, ["jobs"])
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert await queues.take(session, ["jobs"]) == []
    assert (await queues.admin.peek("jobs", task_id))["payload"] == b"by hand"
    assert await queues.ack(session, "jobs", [(task_id, task.lease)]) == [1]


async def test_an_older_leader_is_refused(schedules: Schedules, raw: Any) -> None:
    tick_ms = await put_every(schedules)
    assert await schedules.fire_due("jobs", 0, tick_ms, 5, "n1.4") == tick_ms + 1_000
    for epoch, holder in ((4, "n1.4"), (5, "n2.4")):
        with pytest.raises(Stale):
            await schedules.fire_due("jobs", 0, tick_ms + 1_000, epoch, holder)
    assert tasks(raw) == [f"tick:{tick_ms}"]


async def test_a_row_replaced_between_reading_and_firing_keeps_its_own_ticks(
    schedules: Schedules, queues: HookedQueues, raw: Any
) -> None:
    """
    The next tick that the leader computed belongs to the old row; it must not land in the new one.
    """
    tick_ms = await put_every(schedules)

    async def replace() -> None:
        await schedules.put("tick", Spec.every(60_000), "jobs", TaskSpec(b"new"))
        raw.zadd(f"{prefix()}:ticks", {"tick": tick_ms})

    queues.hooks["scheduler.fire"] = replace
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms
    assert tasks(raw) == []


async def test_missed_ticks_follow_catchup(schedules: Schedules, raw: Any) -> None:
    first = {
        kind: await put_every(schedules, kind, 1_000, catchup=kind)
        for kind in ("none", "one", "all")
    }
    now_ms = max(first.values()) + 10_000
    assert await schedules.fire_due("jobs", 0, now_ms, 1, LEADER) > now_ms
    found = tasks(raw)
    assert [name for name in found if name.startswith("none")] == []
    assert [name for name in found if name.startswith("one")] == [f"one:{first['one']}"]
    assert [name for name in found if name.startswith("all")] == [
        f"all:{tick}" for tick in range(first["all"], now_ms + 1, 1_000)
    ]


async def test_a_long_outage_is_caught_up_in_bounded_steps(
    schedules: Schedules, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICKS_MAX", 4)
    tick_ms = await put_every(schedules, catchup="all")
    now_ms = tick_ms + 9_000
    assert await schedules.fire_due("jobs", 0, now_ms, 1, LEADER) == tick_ms + 4_000
    assert len(tasks(raw)) == 4
    assert await schedules.fire_due("jobs", 0, now_ms, 1, LEADER) == tick_ms + 8_000
    assert await schedules.fire_due("jobs", 0, now_ms, 1, LEADER) == tick_ms + 10_000
    assert len(tasks(raw)) == 10


async def test_many_schedules_due_at_once_are_fired_in_bounded_steps(
    schedules: Schedules, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRE_MAX", 3)
    last_ms = max([await put_every(schedules, f"s{number}", 60_000) for number in range(7)])
    steps = 0
    while await schedules.fire_due("jobs", 0, last_ms, 1, LEADER) <= last_ms:
        steps += 1
    assert (steps, len(tasks(raw))) == (2, 7)


async def test_a_single_time_is_gone_after_its_tick(schedules: Schedules, raw: Any) -> None:
    at_ms = await put_every(schedules, "other", 60_000)
    await schedules.delete("other")
    assert await schedules.put("once", Spec.at(at_ms), "jobs", TaskSpec(b"")) == at_ms
    assert await schedules.fire_due("jobs", 0, at_ms, 1, LEADER) == -1
    assert tasks(raw) == [f"once:{at_ms}"]
    assert await schedules.list() == []
    assert raw.hgetall(f"{prefix('_schedules')}:names") == {}
    assert await schedules.delete("once") is False


async def test_ticks_of_a_lane_run_one_at_a_time(
    schedules: Schedules, raw: Any, queues: HookedQueues
) -> None:
    spec = Spec.every(1_000, "all")
    tick_ms = await schedules.put("tick", spec, "jobs", TaskSpec(b"x", lane="nightly"))
    await schedules.fire_due("jobs", 0, tick_ms + 2_000, 1, LEADER)
    stats = await queues.admin.stats("jobs")
    assert stats["total"] == 3
    assert (await queues.admin.peek("jobs", f"tick:{tick_ms}"))["lane"] == "nightly"
    assert [shown["lane"] for shown in await schedules.list()] == ["nightly"]
    with pytest.raises(BadArg, match="queue of one shard"):
        await schedules.put("other", spec, "wide", TaskSpec(b"x", lane="nightly"))


async def test_what_cannot_be_computed_waits_and_holds_nothing_up(
    schedules: Schedules, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A zone that this node's database lacks: the others fire, it shows as stuck, and its tick is not
    lost.
    """
    tick_ms = await schedules.put("odd", Spec.every(1_000), "jobs", TaskSpec(b"x"))
    good_ms = await put_every(schedules, "good", 5_000)
    key = f"{prefix()}:schedules"
    whole = raw.hget(key, "odd")
    spec = msgspec.msgpack.encode(
        {"kind": "cron", "expr": "* * * * *", "zone": "Mars/Phobos", "catchup": "one"}
    )
    change = "local row = cmsgpack.unpack(ARGV[1]) row[4] = ARGV[2] return cmsgpack.pack(row)"
    raw.hset(key, "odd", raw.eval(change, 0, whole, spec))
    with caplog.at_level(logging.ERROR):
        assert await schedules.fire_due("jobs", 0, good_ms, 1, LEADER) == good_ms + 5_000
        assert (
            await schedules.fire_due("jobs", 0, good_ms + module.STUCK_RETRY_MS, 1, LEADER)
            > good_ms
        )
    assert [record.getMessage().count("Mars/Phobos") for record in caplog.records] == [1]
    assert [
        (row["name"], row["state"], row["next_ms"])
        for row in await schedules.list()
        if row["name"] == "odd"
    ] == [("odd", "stuck", tick_ms)]
    raw.hset(key, "odd", whole)
    await schedules.fire_due("jobs", 0, good_ms + 3 * module.STUCK_RETRY_MS, 1, LEADER)
    assert f"odd:{tick_ms}" in tasks(raw)
    assert [row["state"] for row in await schedules.list()] == ["active", "active"]


async def test_a_row_of_a_newer_version_waits_and_holds_nothing_up(
    schedules: Schedules, raw: Any
) -> None:
    tick_ms = await put_every(schedules)
    for name, row in (("newer", msgspec.msgpack.encode([2, "?"])), ("damaged", b"\xc1")):
        raw.hset(f"{prefix()}:schedules", name, row)
        raw.zadd(f"{prefix()}:ticks", {name: 1})
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]
    shown = {row["name"]: row["state"] for row in await schedules.list()}
    assert shown == {"newer": "unreadable", "damaged": "unreadable", "tick": "active"}
    assert await schedules.delete("newer") is True


async def test_a_full_store_keeps_the_tick_due(
    schedules: Schedules, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tick_ms = await put_every(schedules)
    raw.config_set("maxmemory", 1)
    try:
        assert (
            await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
            == tick_ms + module.FULL_RETRY_MS
        )
        assert (
            await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
            == tick_ms + module.FULL_RETRY_MS
        )
    finally:
        raw.config_set("maxmemory", 0)
    assert len(caplog.records) == 1
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]


async def test_fire_due_without_schedules(schedules: Schedules) -> None:
    assert await asyncio.wait_for(schedules.fire_due("jobs", 0, 0, 1, LEADER), 10) == -1


async def test_a_put_tells_this_nodes_own_sweep(schedules: Schedules, queues: HookedQueues) -> None:
    """
    The store tells other nodes only; a leader that puts a schedule itself would sleep past its
    tick.
    """
    told: list[tuple[str, int, int]] = []
    queues.catalog.on_next = lambda queue, shard, delay_ms: told.append((queue, shard, delay_ms))
    await put_every(schedules, every_ms=5_000)
    assert told[-1][:2] == ("jobs", 0)
    assert 4_000 <= told[-1][2] <= 5_000


async def test_a_task_of_a_schedule_is_taken_and_acknowledged(
    schedules: Schedules, queues: HookedQueues
) -> None:
    for queue in ("jobs", "wide"):
        name = f"s-{queue}"
        tick_ms = await schedules.put(name, Spec.every(1_000), queue, TaskSpec(b"hello"))
        shard = queues.catalog.shard_of(queue, name)
        await schedules.fire_due(queue, shard, tick_ms, 1, LEADER)
        session = queues.open_session()
        (task,) = await queues.take(session, [queue], wait_ms=10_000)
        assert (task.payload, task.id.split(":")[:2]) == (b"hello", [name, str(tick_ms)])
        assert await queues.ack(session, queue, [(task.id, task.lease)]) == [1]


TASK = {
    "delay_ms": 0,
    "within_ms": -1,
    "priority": 50,
    "lease_ms": 0,
    "attempts": 0,
    "backoff_ms": 0,
}
PACKED = msgspec.msgpack.encode(TASK)
PACK = """local row = {}
for i = 1, #ARGV, 2 do row[#row + 1] = ARGV[i] == 'int' and tonumber(ARGV[i + 1]) or ARGV[i + 1] end
return cmsgpack.pack(row)"""
ROWS: dict[str, bytes | list[Any]] = {
    "empty": b"",
    "one byte": b"x",
    "cut short": [1],
    "no task": [1, "s", 5, "spec", b"\xc1", b""],
    "an anchor that is none": [1, "s", "5", "spec", PACKED, b""],
    "half a task": [1, "s", 5, "spec", msgspec.msgpack.encode({"delay_ms": 1}), b""],
    "a priority that there is not": [
        1,
        "s",
        5,
        "spec",
        msgspec.msgpack.encode(TASK | {"priority": 200}),
        b"",
    ],
    "a newer version's": [2, "s", 5, "spec", PACKED, b""],
    **{
        f"{name} {value!r:.9}": [
            1,
            "s",
            5,
            "spec",
            msgspec.msgpack.encode(TASK | {name: value}),
            b"",
        ]
        for name, value in (
            ("ttl_ms", "x"),
            ("lane", 5),
            ("lane", "l" * 300),
            ("delay_ms", math.nan),
            ("lease_ms", -5),
            ("priority", 1.5),
        )
    },
}


@pytest.mark.parametrize("value", ["x", "", "1.5", "-7", "nan"])
@pytest.mark.parametrize("place", ["stuck", "paused", "ticks"])
async def test_a_tick_that_nobody_can_read_keeps_no_other_schedule(
    desk: Any, place: str, value: str
) -> None:
    """Whatever stands beside a schedule or in the order of ticks; it goes on itself."""
    at_ms, names = desk.now, (b"before", b"it", b"after")
    for name in names:
        desk.run("scheduler.put", name, at_ms, "s", 5, b"spec", PACKED, b"x", 10)
    key = f"{desk.prefix}:{place}"
    if place != "ticks":
        desk.client.hset(key, "it", value)
    elif value in ("1.5", "-7"):
        desk.client.zadd(key, {"it": value})
    _, _, rows = desk.run("scheduler.due", 10)
    assert {row[0] for row in rows} == set(names)
    assert {len(row) for row in rows} == {6}
    assert all(0 <= row[2] <= desk.now for row in rows)
    rounds = [
        w
        for row in rows
        for w in (row[0], row[3], row[1], at_ms + 1000, 0, 1, row[2], f"{row[0].decode()}:1")
    ]
    assert desk.run("scheduler.fire", 1, "n0.1", *rounds)[1:] == [1, 1, 1]
    assert sorted(desk.ids()) == ["after:1", "before:1", "it:1"]
    if place == "paused":
        assert desk.run("scheduler.pause", "it", 0)[1] >= at_ms
    _, shown = desk.run("scheduler.list", "0", 10, 10)
    assert {len(row) for row in shown} == {9}
    desk.now += 1000
    assert len(desk.run("scheduler.due", 10)[2]) == 3


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_that_nobody_can_read_keeps_no_other_tick(desk: Any, row: Any) -> None:
    """Neither where the leader asks what is due nor where it has the ticks put, all in one call."""
    at_ms, names = desk.now, ("before", "it", "after")
    for name in names:
        desk.run("scheduler.put", name, at_ms, "s", 5, b"spec", PACKED, b"x", 10)
    if not isinstance(row, bytes):
        row = desk.client.eval(
            PACK, 0, *(word for value in row for word in (type(value).__name__, value))
        )
    desk.client.hset(f"{desk.prefix}:schedules", "it", row)
    rounds = [
        w for name in names for w in (name, "s", at_ms, at_ms + 1000, 0, 1, at_ms, f"{name}:1")
    ]
    assert desk.run("scheduler.fire", 1, "n0.1", *rounds)[1:] == [1, -1, 1]
    assert sorted(desk.ids()) == ["after:1", "before:1"]
    desk.now += 1000
    _, _, rows = desk.run("scheduler.due", 10)
    assert {one[0]: one[5] for one in rows} == {b"before": b"spec", b"it": b"", b"after": b"spec"}
    assert desk.run("scheduler.delete", "it", "") == 1

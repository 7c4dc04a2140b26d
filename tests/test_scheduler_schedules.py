"""Schedules on a real store: put, list, delete, and firing each tick once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
import redis

from tidewarden.clock import SystemClock
from tidewarden.config import load
from tidewarden.errors import BadArg, Exists, Full, Stale, TooBig
from tidewarden.queue.queues import Queues
from tidewarden.queue.task import NewTask
from tidewarden.scheduler import schedules as module
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.trigger import Spec
from tidewarden.store import Link, Scripts

LEADER = "n0.1"
CLUSTER = "tw"


class HookedQueues(Queues):
    """Real queues. ``hooks`` run once each before a script of that name; ``told`` is what the sweep would hear."""

    hooks: dict[str, Callable[[], Awaitable[object]]]

    async def script(self, name: str, queue: str, shard: int, args: Any, *, now_ms: int = 0) -> Any:
        hook = self.hooks.pop(name, None)
        if hook is not None:
            await hook()
        return await super().script(name, queue, shard, args, now_ms=now_ms)


@pytest.fixture
async def queues(valkey: Any, queue_scripts: Scripts) -> AsyncIterator[HookedQueues]:
    config = load(None, {}, {"cluster.name": CLUSTER})
    scripts = queue_scripts
    link = Link(valkey.url, "test", SystemClock(), on_up=scripts.load_commands)
    await link.start()
    queues = HookedQueues(config, link, scripts, SystemClock(), views=False)
    queues.hooks = {}
    queues.holder = LEADER
    await queues.configure("wide", {"shards": 16})
    yield queues
    await link.stop()


@pytest.fixture
def raw(valkey: Any) -> Any:
    with redis.Redis(unix_socket_path=valkey.path) as client:
        yield client


@pytest.fixture
def schedules(queues: HookedQueues) -> Schedules:
    return Schedules(queues)


def prefix(queue: str = "jobs", shard: int = 0) -> str:
    return f"{{{CLUSTER}:{queue}:{shard}}}"


def tasks(raw: Any, queue: str = "jobs", shard: int = 0) -> list[str]:
    return sorted(name.decode() for name in raw.hkeys(f"{prefix(queue, shard)}:tasks"))


async def put_every(schedules: Schedules, name: str = "tick", every_ms: int = 1_000, **options: Any) -> int:
    return await schedules.put(
        name, Spec.every(every_ms, options.pop("catchup", "one")), "jobs", NewTask(b"x", **options)
    )


async def test_a_tick_puts_one_task_named_by_it(schedules: Schedules, raw: Any) -> None:
    tick_ms = await put_every(schedules)
    assert await schedules.fire_due("jobs", 0, tick_ms - 1, 1, LEADER) == tick_ms
    assert tasks(raw) == []
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]
    assert raw.hget(f"{prefix()}:shard", "tick") == str(tick_ms + 1_000).encode()
    assert raw.zscore(f"{prefix()}:ready:50", f"tick:{tick_ms}") == tick_ms


async def test_the_task_has_its_options_counted_from_the_tick(
    schedules: Schedules, raw: Any, queues: HookedQueues
) -> None:
    options = {"delay_ms": 5_000, "within_ms": 9_000, "priority": 7, "lease_ms": 1_234, "attempts": 3, "backoff_ms": 77}
    tick_ms = await put_every(schedules, **options)
    await schedules.fire_due("jobs", 0, tick_ms + 40, 1, LEADER)
    task_id = f"tick:{tick_ms}"
    assert raw.zscore(f"{prefix()}:delayed", task_id) == tick_ms + 5_000
    raw_task = raw.hget(f"{prefix()}:tasks", task_id)
    for number in (tick_ms + 5_000, tick_ms + 9_000, 1_234, 77):
        assert number.to_bytes(6, "big") in raw_task
    assert (raw_task[1], raw_task[-1:]) == (7, b"x")


async def test_a_tick_is_put_once_whoever_fires(schedules: Schedules, queues: HookedQueues, raw: Any) -> None:
    """Two leaders in a row, or at once, read the same due tick: the second one's script finds it gone."""
    tick_ms = await put_every(schedules)

    async def newer_leader() -> None:
        await Schedules(queues).fire_due("jobs", 0, tick_ms, 1, LEADER)
        raw.hdel(f"{prefix()}:tasks", f"tick:{tick_ms}")
        raw.zrem(f"{prefix()}:ready:50", f"tick:{tick_ms}")

    queues.hooks["scheduler.fire"] = newer_leader
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == []


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
    """The next tick that the leader computed belongs to the old row; it must not land in the new one."""
    tick_ms = await put_every(schedules)

    async def replace() -> None:
        await schedules.put("tick", Spec.every(60_000), "jobs", NewTask(b"new"))
        raw.zadd(f"{prefix()}:ticks", {"tick": tick_ms})

    queues.hooks["scheduler.fire"] = replace
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms
    assert tasks(raw) == []


async def test_missed_ticks_follow_catchup(schedules: Schedules, raw: Any) -> None:
    first = {kind: await put_every(schedules, kind, 1_000, catchup=kind) for kind in ("none", "one", "all")}
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
    assert await schedules.put("once", Spec.at(at_ms), "jobs", NewTask(b"")) == at_ms
    assert await schedules.fire_due("jobs", 0, at_ms, 1, LEADER) == -1
    assert tasks(raw) == [f"once:{at_ms}"]
    assert await schedules.list() == []
    assert raw.hgetall(f"{prefix('_schedules')}:names") == {}
    assert await schedules.delete("once") is False


async def test_putting_the_same_again_changes_nothing(schedules: Schedules) -> None:
    """A service that puts its schedules on every start must not push an interval's tick away for ever."""
    tick_ms = await put_every(schedules)
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert await put_every(schedules) == tick_ms + 1_000
    assert await put_every(schedules, priority=3) != tick_ms + 1_000
    assert [row["priority"] for row in await schedules.list()] == [3]


async def test_ticks_of_a_lane_run_one_at_a_time(schedules: Schedules, raw: Any, queues: HookedQueues) -> None:
    spec = Spec.every(1_000, "all")
    tick_ms = await schedules.put("tick", spec, "jobs", NewTask(b"x", lane="nightly"))
    await schedules.fire_due("jobs", 0, tick_ms + 2_000, 1, LEADER)
    stats = await queues.stats("jobs")
    assert stats["total"] == 3
    assert (await queues.peek("jobs", f"tick:{tick_ms}"))["lane"] == "nightly"
    assert [shown["lane"] for shown in await schedules.list()] == ["nightly"]
    with pytest.raises(BadArg, match="queue of one shard"):
        await schedules.put("other", spec, "wide", NewTask(b"x", lane="nightly"))


async def test_list_shows_what_was_put(schedules: Schedules) -> None:
    spec = Spec.cron("30 2 * * 7", "Europe/Berlin", "none")
    next_ms = await schedules.put("b", spec, "wide", NewTask(b"y" * 1_000, within_ms=60_000))
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


async def test_many_schedules_are_listed_over_pages(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
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
        tick_ms = await schedules.put(name, Spec.every(1_000), "wide", NewTask(b"x"))
        shard = queues.shard_of("wide", name)
        assert raw.hexists(f"{prefix('wide', shard)}:schedules", name)
        await schedules.fire_due("wide", shard, tick_ms, 1, LEADER)
        (task_id,) = [found for found in tasks(raw, "wide", shard) if found.startswith(f"{name}:{tick_ms}")]
        assert queues.shard_of("wide", task_id) == shard
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
        await schedules.put("tick", Spec.every(1_000), "mail", NewTask(b""))
    await schedules.delete("tick")
    await schedules.put("tick", Spec.every(1_000), "mail", NewTask(b""))


async def test_a_crash_between_directory_and_row_blocks_nothing(schedules: Schedules, queues: HookedQueues) -> None:
    """The directory names a queue in which there is no row: another queue may have the name."""

    async def crash() -> None:
        raise ConnectionError

    queues.hooks["scheduler.put"] = crash
    with pytest.raises(ConnectionError):
        await put_every(schedules)
    assert await schedules.list() == []
    await schedules.put("tick", Spec.every(1_000), "mail", NewTask(b""))
    assert [row["queue"] for row in await schedules.list()] == ["mail"]


async def test_a_row_that_the_directory_lost_is_listed_and_deleted(schedules: Schedules, raw: Any) -> None:
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


async def test_two_puts_of_one_name_into_two_queues_leave_one(schedules: Schedules, queues: HookedQueues) -> None:
    """The second claims the name between the first's claim and its row."""

    async def second() -> None:
        await schedules.put("tick", Spec.every(1_000), "mail", NewTask(b""))

    queues.hooks["scheduler.put"] = second
    with pytest.raises(Exists):
        await put_every(schedules)
    assert [row["queue"] for row in await schedules.list()] == ["mail"]


async def test_what_cannot_be_computed_waits_and_holds_nothing_up(
    schedules: Schedules, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A zone that this node's database lacks: the others fire, it shows as stuck, and its tick is not lost."""
    tick_ms = await schedules.put("odd", Spec.every(1_000), "jobs", NewTask(b"x"))
    good_ms = await put_every(schedules, "good", 5_000)
    key = f"{prefix()}:schedules"
    whole = raw.hget(key, "odd")
    spec = msgspec.msgpack.encode({"kind": "cron", "expr": "* * * * *", "zone": "Mars/Phobos", "catchup": "one"})
    change = "local row = cmsgpack.unpack(ARGV[1]) row[4] = ARGV[2] return cmsgpack.pack(row)"
    raw.hset(key, "odd", raw.eval(change, 0, whole, spec))
    with caplog.at_level(logging.ERROR):
        assert await schedules.fire_due("jobs", 0, good_ms, 1, LEADER) == good_ms + 5_000
        assert await schedules.fire_due("jobs", 0, good_ms + module.STUCK_RETRY_MS, 1, LEADER) > good_ms
    assert [record.getMessage().count("Mars/Phobos") for record in caplog.records] == [1]
    assert [(row["name"], row["state"], row["next_ms"]) for row in await schedules.list() if row["name"] == "odd"] == [
        ("odd", "stuck", tick_ms)
    ]
    raw.hset(key, "odd", whole)
    await schedules.fire_due("jobs", 0, good_ms + 3 * module.STUCK_RETRY_MS, 1, LEADER)
    assert f"odd:{tick_ms}" in tasks(raw)
    assert [row["state"] for row in await schedules.list()] == ["active", "active"]


async def test_a_row_of_a_newer_version_waits_and_holds_nothing_up(schedules: Schedules, raw: Any) -> None:
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
        assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + module.FULL_RETRY_MS
        assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + module.FULL_RETRY_MS
    finally:
        raw.config_set("maxmemory", 0)
    assert len(caplog.records) == 1
    assert await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER) == tick_ms + 1_000
    assert tasks(raw) == [f"tick:{tick_ms}"]


async def test_a_payload_of_any_bytes_survives(schedules: Schedules, raw: Any) -> None:
    payload = bytes(range(256)) * 300
    tick_ms = await schedules.put("bin", Spec.every(1_000), "jobs", NewTask(payload))
    await schedules.fire_due("jobs", 0, tick_ms, 1, LEADER)
    assert raw.hget(f"{prefix()}:tasks", f"bin:{tick_ms}").endswith(payload)


@pytest.mark.parametrize(
    ("name", "queue", "task", "message"),
    [
        ("", "jobs", NewTask(), "name"),
        ("a b", "jobs", NewTask(), "name"),
        ("x" * 129, "jobs", NewTask(), "128"),
        ("ok", "a b", NewTask(), "queue"),
        ("ok", "jobs", NewTask(id="mine"), "ID"),
        ("ok", "jobs", NewTask(at_ms=1), "AT"),
        ("ok", "jobs", NewTask(deadline_ms=1), "DEADLINE"),
        ("ok", "jobs", NewTask(if_exists="replace"), "IFEXISTS"),
        ("ok", "jobs", NewTask(priority=100), "PRIORITY"),
    ],
)
async def test_wrong_input_is_refused(schedules: Schedules, name: str, queue: str, task: NewTask, message: str) -> None:
    with pytest.raises(BadArg, match=message):
        await schedules.put(name, Spec.every(1_000), queue, task)
    assert await schedules.list() == []


async def test_refusals_that_need_the_store(schedules: Schedules, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that never comes, a payload over the limit, and one schedule too many leave nothing behind."""
    for spec in (Spec.at(1_000), Spec.cron("0 0 31 2 *")):
        with pytest.raises(BadArg):
            await schedules.put("never", spec, "jobs", NewTask(b""))
    with pytest.raises(TooBig):
        await schedules.put("big", Spec.every(1_000), "jobs", NewTask(b"x" * 2_000_000))
    monkeypatch.setattr(module, "SCHEDULES_MAX", 1)
    await put_every(schedules)
    with pytest.raises(Full, match="1 schedules"):
        await put_every(schedules, "another")
    assert [row["name"] for row in await schedules.list()] == ["tick"]


async def test_fire_due_without_schedules(schedules: Schedules) -> None:
    assert await asyncio.wait_for(schedules.fire_due("jobs", 0, 0, 1, LEADER), 10) == -1


async def test_a_put_tells_this_nodes_own_sweep(schedules: Schedules, queues: HookedQueues) -> None:
    """The store tells other nodes only; a leader that puts a schedule itself would sleep past its tick."""
    told: list[tuple[str, int, int]] = []
    queues.on_next = lambda queue, shard, delay_ms: told.append((queue, shard, delay_ms))
    await put_every(schedules, every_ms=5_000)
    assert told[-1][:2] == ("jobs", 0)
    assert 4_000 <= told[-1][2] <= 5_000


async def test_a_task_of_a_schedule_is_taken_and_acknowledged(schedules: Schedules, queues: HookedQueues) -> None:
    for queue in ("jobs", "wide"):
        name = f"s-{queue}"
        tick_ms = await schedules.put(name, Spec.every(1_000), queue, NewTask(b"hello"))
        shard = queues.shard_of(queue, name)
        await schedules.fire_due(queue, shard, tick_ms, 1, LEADER)
        session = queues.open_session()
        (task,) = await queues.take(session, [queue], wait_ms=10_000)
        assert (task.payload, task.id.split(":")[:2]) == (b"hello", [name, str(tick_ms)])
        assert await queues.ack(session, queue, [(task.id, task.lease)]) == [1]

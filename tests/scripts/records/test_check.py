"""The doctor: every kind of damage done to the keys by hand is found, and mended when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tidewarden.errors import BadArg
from tidewarden.queue import TaskSpec

P = "{tw:q:0}"
Damage = Callable[[Any], Any]


async def full_house(n: Any) -> Any:
    """A task in every state, with a TTL where it waits."""
    queues = n.queues
    session = queues.open_session()
    for name in ("leased", "buried", "spare"):
        await queues.put("q", TaskSpec(id=name))
        (task,) = await queues.take(session, ["q"])
        if name != "leased":
            await queues.bury(session, "q", name, task.lease, "bad")
    await queues.put("q", TaskSpec(id="ready", priority=7, ttl_ms=600_000))
    await queues.put("q", TaskSpec(id="delayed", delay_ms=60_000, ttl_ms=600_000))
    return session


DAMAGES: dict[str, tuple[str, Damage, str]] = {
    "a ready one lost": ("task without an index entry", lambda call: call("ZREM", f"{P}:ready:7", "ready"), "ready"),
    "a delayed one lost": ("task without an index entry", lambda call: call("ZREM", f"{P}:delayed", "delayed"), "delayed"),
    "a leased one lost": ("task without an index entry", lambda call: call("ZREM", f"{P}:leased:n0.1", "leased"), "ready"),
    "a buried one lost": ("task without an index entry", lambda call: call("ZREM", f"{P}:buried", "buried"), "ready"),
    "ready and delayed": ("task in two places", lambda call: call("ZADD", f"{P}:delayed", 5, "ready"), "ready"),
    "ready and leased": ("task in two places", lambda call: call("ZADD", f"{P}:leased:n0.1", 5, "ready"), "ready"),
    "leased and buried": ("task in two places", lambda call: call("ZADD", f"{P}:buried", 5, "leased"), "ready"),
    "leased by nobody": ("task in the wrong place", lambda call: call("HDEL", f"{P}:tries", "leased"), "ready"),
    "a stray in delayed": ("index entry without a task", lambda call: call("ZADD", f"{P}:delayed", 5, "x"), ""),
    "a stray in ready": ("index entry without a task", lambda call: call("ZADD", f"{P}:ready:7", 5, "x"), ""),
    "a stray in leased": ("index entry without a task", lambda call: call("ZADD", f"{P}:leased:n0.1", 5, "x"), ""),
    "a stray in buried": ("index entry without a task", lambda call: call("ZADD", f"{P}:buried", 5, "x"), ""),
    "a stray that expires": ("index entry without a task", lambda call: call("ZADD", f"{P}:expiring", 5, "x"), ""),
    "a body lost": ("index entry without a task", lambda call: call("HDEL", f"{P}:tasks", "spare"), ""),
    "tries of no task": ("tries without a task", lambda call: call("HSET", f"{P}:tries", "x", "y"), ""),
    "tries of rubbish": ("unreadable record of tries", lambda call: call("HSET", f"{P}:tries", "ready", "y"), "ready"),
    "no TTL entry": ("TTL index", lambda call: call("ZREM", f"{P}:expiring", "ready"), "ready"),
    "a wrong TTL entry": ("TTL index", lambda call: call("ZADD", f"{P}:expiring", 5, "buried"), "buried"),
    "buried without a record": ("buried without a record", lambda call: call("HDEL", f"{P}:tries", "buried"), "buried"),
    "a priority forgotten": ("priority not in the record", lambda call: call("HSET", f"{P}:shard", "pris", ""), "ready"),
    "a holder forgotten": ("holder not in the record", lambda call: call("HSET", f"{P}:shard", "holders", ""), "leased"),
    "TTLs forgotten": ("TTLs not in the record", lambda call: call("HSET", f"{P}:shard", "ttls", "0"), "ready"),
    "the alarm too late": ("late alarm", lambda call: call("HDEL", f"{P}:shard", "alarm"), "delayed"),
    "waits miscounted": ("count of waits", lambda call: call("HSET", f"{P}:shard", "awaited", "3"), "ready"),
    "runs miscounted": ("count of runs", lambda call: call("HSET", f"{P}:shard", "runs", "3"), "ready"),
    "a wait for no task": ("wait without a task", lambda call: call("HSET", f"{P}:waits", "x", "n0.1"), ""),
}  # fmt: skip


@pytest.mark.parametrize("damage", sorted(DAMAGES))
async def test_damage_is_found_and_mended(node: Any, audit: Any, valkey: Any, damage: str) -> None:
    n0 = await node("n0")
    await full_house(n0)
    kind, hurt, state = DAMAGES[damage]
    name = (
        damage.split()[1]
        if damage.split()[1] in ("ready", "delayed", "leased", "buried")
        else damage.split()[0]
    )
    await hurt(n0.link.call)
    report = await n0.queues.consistency.check("q")
    assert kind in report["found"]
    assert (report["repaired"], report["examples"] != []) == (0, True)
    assert await n0.queues.consistency.check("q") == report, "a look changes nothing"
    mended = await n0.queues.consistency.check("q", repair=True)
    assert mended["repaired"] == mended["problems"] >= 1
    after = await n0.queues.consistency.check("q")
    assert after["problems"] == 0, after
    audit(valkey)
    if state and name in ("ready", "delayed", "leased", "buried"):
        assert (await n0.queues.admin.peek("q", name))["state"] == state


async def test_a_healthy_queue_of_many_pieces(node: Any) -> None:
    n0 = await node("n0")
    await n0.queues.admin.configure("q", {"shards": 2})
    for n in range(1500):
        n0.queues.put("q", TaskSpec(id=f"t{n}", delay_ms=n % 2 * 60_000, ttl_ms=90_000 * (n % 3)))
    await n0.queues.take(n0.queues.open_session(), ["q"], count=100)
    report = await n0.queues.consistency.check("q", repair=True)
    assert (report["tasks"], report["problems"], report["shards"]) == (1500, 0, 2)


async def test_a_task_that_nobody_can_read_is_set_aside(node: Any) -> None:
    n0 = await node("n0")
    await full_house(n0)
    await n0.link.call("HSET", f"{P}:tasks", "x", "y")
    await n0.link.call("HINCRBY", f"{P}:shard", "stored", 1)
    report = await n0.queues.consistency.check("q", repair=True)
    assert (report["problems"], report["repaired"], report["found"]) == (
        1,
        1,
        {"unreadable task": 1},
    )
    shown = await n0.queues.admin.peek("q", "x")
    assert (shown["state"], shown["reason"]) == ("buried", "unreadable")
    assert (await n0.queues.admin.stats("q"))["count_unreadable"] == 1
    again = await n0.queues.consistency.check("q", repair=True)
    assert (again["repaired"], again["found"]) == (
        0,
        {"unreadable task, set aside": 1},
    ), "until somebody deletes it"
    assert await n0.queues.admin.delete("q", "x")
    assert (await n0.queues.consistency.check("q"))["problems"] == 0


async def test_much_damage_is_counted_and_some_of_it_shown(node: Any) -> None:
    n0 = await node("n0")
    await n0.queues.catalog.shard_count("q")
    await n0.link.call("ZADD", f"{P}:buried", *(word for n in range(500) for word in (n, f"x{n}")))
    report = await n0.queues.consistency.check("q", repair=True)
    assert (report["problems"], report["repaired"], len(report["examples"])) == (500, 500, 100)
    with pytest.raises(BadArg):
        await n0.queues.consistency.check("no such name")


def look(desk: Any, *, repair: bool = False) -> Counter[str]:
    """
    The kinds of problems that the scripts find in a shard, part by part as :meth:`Queues.check`
    does.
    """
    problems, parts = desk.run("queue.check_record", int(repair))
    for part in (name.decode() for name in parts):
        cursor, ended = "0", False
        while not ended:
            cursor, _, more = desk.run("queue.check", part, cursor, 200, int(repair))
            problems += more
            ended = cursor == b"0"
    return Counter(row[0].decode() for row in problems)


def spread(desk: Any, scripts: Any) -> list[str]:
    """Tasks in many hashes and pieces, the first half delayed, the others ready; their ids."""
    desk.use(scripts)
    ids = [f"t{n:02}" for n in range(24)]
    desk.put_all(*((name, b"", {"delay_ms": max(0, 13 - n) * 1000}) for n, name in enumerate(ids)))
    assert int(desk.record("buckets")) > 4
    return ids


@pytest.mark.parametrize("field", ["", "buckets", "stored", "cut", "later"])
def test_a_record_that_is_lost_costs_no_task(desk: Any, scripts_in_pieces: Any, field: str) -> None:
    ids = spread(desk, scripts_in_pieces)
    if field:
        desk.client.hdel(f"{desk.prefix}:shard", field)
    else:
        desk.client.delete(f"{desk.prefix}:shard")
    assert look(desk) != {}
    look(desk, repair=True)
    assert look(desk) == {}
    desk.audit()
    desk.now += 60_000
    assert sorted(desk.ids()) == ids


def test_how_the_former_version_counted_its_pieces_is_no_problem(
    desk: Any, scripts_in_pieces: Any
) -> None:
    spread(desk, scripts_in_pieces)
    desk.client.hset(f"{desk.prefix}:shard", mapping={"cut": 7, "format": 1})
    assert look(desk) == {}


def test_a_step_back_of_the_stores_clock_is_no_problem(desk: Any) -> None:
    desk.put("a")
    desk.take_one(lease_ms=1000)
    desk.now += 5_000 - 50_000
    desk.stamp = "~0~1~-50000"
    desk.put("b")
    desk.stamp = ""
    assert look(desk) == {}
    assert sorted(desk.ids()) == ["a", "b"]


def hash_of(desk: Any, name: str) -> bytes:
    """The key of the hash in which a task's record lies."""
    return next(
        key for key in desk.client.keys(f"{desk.prefix}:tasks*") if desk.client.hexists(key, name)
    )


def test_a_record_in_the_wrong_hash_is_moved_or_dropped(desk: Any, scripts_in_pieces: Any) -> None:
    ids = spread(desk, scripts_in_pieces)
    for name in ("t02", "t20"):  # one moved, one there twice
        right = hash_of(desk, name)
        wrong = next(key for key in desk.client.keys(f"{desk.prefix}:tasks:*") if key != right)
        desk.client.hset(wrong, name, desk.client.hget(right, name))
        if name == "t02":
            desk.client.hdel(right, name)
    assert look(desk, repair=True)["record where nobody looks for it"] == 2
    assert look(desk) == {}
    desk.audit()
    desk.now += 60_000
    assert sorted(desk.ids()) == ids


def test_a_piece_that_a_repair_empties_holds_up_none_behind_it(
    desk: Any, scripts_in_pieces: Any
) -> None:
    spread(desk, scripts_in_pieces)
    second = (
        f"{desk.prefix}:delayed:{desk.client.zrange(f'{desk.prefix}:pieces', 1, 1)[0].decode()}"
    )
    gone = desk.client.zrange(second, 0, -1)
    for name in gone:
        desk.client.hdel(hash_of(desk, name), name)
    assert look(desk, repair=True)["index entry without a task"] == len(gone)
    assert look(desk) == {}
    desk.audit()
    desk.now += 60_000
    assert len(desk.ids()) == 24 - len(gone)


def test_a_piece_that_is_lost_holds_up_none_behind_it(desk: Any, scripts_in_pieces: Any) -> None:
    spread(desk, scripts_in_pieces)
    second = (
        f"{desk.prefix}:delayed:{desk.client.zrange(f'{desk.prefix}:pieces', 1, 1)[0].decode()}"
    )
    gone = desk.client.zrange(second, 0, -1)
    for name in gone:
        desk.client.hdel(hash_of(desk, name), name)
    desk.client.delete(second)
    desk.client.zrem(f"{desk.prefix}:pieces", "0")
    assert {"piece without entries", "first piece not among the pieces"} <= look(desk).keys()
    look(desk, repair=True)
    assert look(desk) == {}
    desk.audit()
    desk.now += 60_000
    assert len(desk.ids()) == 24 - len(gone)


def test_what_nobody_can_read_hides_nothing_else(desk: Any) -> None:
    for name, fields in (
        ("later", {"delay_ms": 5}),
        ("head", {"lane": "l"}),
        ("waiting", {"lane": "l"}),
        ("leased", {"lane": "m"}),
    ):
        desk.put(name, **fields)
    desk.take_one(task_id="leased")
    desk.put("lost")
    desk.client.zrem(f"{desk.prefix}:ready:50", "lost")
    for name in ("later", "waiting", "leased"):
        desk.client.hset(hash_of(desk, name), name, b"x")
    desk.client.hset(f"{desk.prefix}:tries", "leased", b"x")
    for repair in (False, True):
        found = look(desk, repair=repair)
        assert (found["unreadable task"], found["task without an index entry"]) == (3, 1), found
    assert desk.state("lost") == "ready"
    desk.client.flushall()


def test_a_repair_gets_through_a_full_store(desk: Any) -> None:
    desk.put("a")
    desk.client.zrem(f"{desk.prefix}:ready:50", "a")
    desk.client.config_set("maxmemory", "1")
    try:
        _, _, found = desk.run("queue.check", "tasks", 0, 100, 1)
    finally:
        desk.client.config_set("maxmemory", "0")
    assert [row[0] for row in found] == [b"task without an index entry"]
    assert desk.ids() == ["a"]

"""A full store refuses what grows and lets everything through that drains it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.inspect import link_of

from tidewarden.errors import Full
from tidewarden.queue import TaskSpec


@pytest.fixture
def full(desk: Any) -> Iterator[Any]:
    """The desk; ``full.fill()`` makes its store full."""

    def fill() -> None:
        desk.client.config_set("maxmemory", "1")

    desk.fill = fill
    desk.client.config_set("maxmemory-policy", "noeviction")
    yield desk
    desk.client.config_set("maxmemory", "0")


def test_a_put_is_refused_and_changes_nothing(full: Any) -> None:
    full.put("a")
    full.put("later", delay_ms=5000)
    full.fill()
    before = full.digest()
    for fields in ({}, {"delay_ms": 5}, {"priority": 1}):
        with pytest.raises(Full):
            full.put("b", b"x", **fields)
    with pytest.raises(Full):
        full.put_all(("c", b"", {}), ("d", b"", {"delay_ms": 1}))
    assert full.put("a", b"kept") == 0, "what puts nothing needs no room"
    assert full.put("a", if_exists="fail") == b"EXISTS"
    assert full.digest() == before


def test_a_full_queue_is_drained(full: Any) -> None:
    full.put_all(*((f"t{n:02}", b"x" * 100, {"delay_ms": 10 * (n % 2)}) for n in range(40)))
    full.fill()
    full.now += 10
    seen = set()
    while rows := full.take(3):
        seen |= {row.id for row in rows}
        assert full.ack(*rows) == [1] * len(rows)
    assert len(seen) == 40
    assert full.take(wait=True, holder="n1.1") == [], "waiting is noted too"
    assert full.record("waiting") == "n1.1"
    with pytest.raises(Full):
        full.put("new")
    full.client.config_set("maxmemory", "0")
    assert full.put("new") == 1


def test_every_other_verb_gets_through(full: Any) -> None:
    full.put_all(*((f"t{n}", b"", {"backoff_ms": 1000}) for n in range(10)))
    full.put("later", delay_ms=100)
    full.fill()
    rows = full.take(8, lease_ms=1000)
    assert full.touch(rows[0], 5000) == full.now + 5000
    assert full.touch(rows[0]) == full.now + 5000
    assert (
        full.end(rows[1], "release") == full.end(rows[2], "fail") == full.end(rows[3], "loss") == 1
    )
    assert full.end(rows[4], "bury", reason="full") == full.end(rows[5], "release", delay_ms=7) == 1
    assert full.run("queue.kick", 1, "", "full", 0) == [1, -1]
    assert full.run("queue.delete", rows[6].id, rows[6].lease, 0) == 1
    assert full.take(task_id="later") != []
    assert full.run("queue.sweep", 1, 100, holder="n9.1") == [0, -1]
    full.now += 1000
    moved, _ = full.run("queue.sweep", 1, 100, holder="n9.1")
    assert moved >= 2
    assert full.run("queue.reap", 1, "n0", 1, 100, holder="n9.1")[1] == 0
    assert full.run("queue.pause", 5000) == full.run("queue.pause", 0) == 1
    assert full.configure(lease_ms=700) == 1
    assert full.state("t9") == "ready"
    assert full.run("queue.stats")[1] > 0


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "buried"])
def test_an_update_gets_through_in_every_state(full: Any, state: str) -> None:
    full.put("a", b"12345", delay_ms=1000 if state == "delayed" else 0)
    lease = 0
    if state in ("leased", "buried"):
        row = full.take_one()
        lease = row.lease if state == "leased" else 0
        if state == "buried":
            full.end(row, "bury")
    full.fill()
    assert full.run("queue.update", "a", 1, b"1", 0, 0, 0, 0, -1, lease) == 1
    assert (full.state(row_id := "a"), full.peek(row_id)["payload"]) == (state, b"1")


def test_an_update_that_grows_is_refused_and_changes_nothing(full: Any) -> None:
    """Else the smallest tasks become the longest, one by one, far past the store's limit."""
    full.put("a", b"12345")
    full.put("later", b"12345", delay_ms=1000)
    full.fill()
    before = full.digest()
    for task_id in ("a", "later"):
        with pytest.raises(Full):
            full.run("queue.update", task_id, 1, b"123456", 0, 0, 0, 0, 3, 0)
    assert full.digest() == before
    assert full.run("queue.update", "a", 1, b"54321", 0, 0, 0, 0, 3, 0) == 1
    assert full.run("queue.update", "a", 0, b"", 0, 0, 0, 0, 4, 0) == 1


def test_a_full_queue_of_lanes_is_drained(full: Any) -> None:
    full.configure(lane_rate=100_000, lane_burst=5)
    tasks = (
        (f"t{n:02}", b"x" * 100, {"lane": f"lane{n % 4}", "delay_ms": 10 * (n % 2)})
        for n in range(40)
    )
    full.put_all(*tasks)
    full.fill()
    before = full.client.hgetall(f"{full.prefix}:shard")
    with pytest.raises(Full):
        full.put("new", lane="lane1")
    with pytest.raises(Full):
        full.put("new", lane="another", delay_ms=100)
    assert full.client.hgetall(f"{full.prefix}:shard") == before
    assert sum(full.counts().values()) == 40
    seen = set()
    for _ in range(200):
        full.now += 10
        rows = full.take(3)
        seen |= {row.id for row in rows}
        assert rows == [] or full.ack(*rows) == [1] * len(rows)
    assert len(seen) == 40
    assert full.configure(lane_limit=2) == 2, "its lanes are to be looked at"
    assert (
        full.run("queue.lanes", "heads", "", 10)
        == full.run("queue.lanes", "waiting", "", 10)
        == b""
    )


def test_a_node_lives_on_and_a_leader_claims(full: Any) -> None:
    full.fill()
    register, beat, claim = (
        full.scripts[f"cluster.{name}"] for name in ("register", "beat", "claim")
    )
    boot = full.client.eval(register.source, 1, "{tw}:nodes", full.now, "n0", 1, "h:1", "", 2000)
    assert full.client.eval(beat.source, 1, "{tw}:nodes", full.now, "n0", boot)[0] == full.now
    assert full.client.eval(claim.source, 1, "{tw}:fence", 3, "n0.1") == 1


def used(full: Any) -> int:
    return int(full.client.info("memory")["used_memory"])


def test_results_do_not_grow_a_full_store(full: Any) -> None:
    """
    Whoever may take could grow it without bound: an ack begins with a removal, so that the store
    lets its result through.
    """
    full.put_all(*((f"t{n:03}", b"x" * 100, {}) for n in range(100)))
    rows = full.take(100)
    full.fill()
    before = used(full)
    answers = [full.run("queue.ack", row.id, row.lease, b"y" * 100_000)[0] for row in rows]
    assert answers == [-1] * 100
    assert used(full) < before + 500_000
    assert full.counts()["leased"] == 100, "nothing was done"
    assert full.ack(*rows) == [1] * 100


def test_a_result_no_longer_than_its_task_is_kept_in_a_full_store(full: Any) -> None:
    full.put_all(("short", b"x" * 100, {}), ("long", b"x" * 100, {}), ("none", b"x", {}), own=True)
    rows = {row.id: row for row in full.take(3)}
    short, long, none = rows["short"], rows["long"], rows["none"]
    full.fill()
    before = full.digest()
    assert full.run("queue.ack", long.id, long.lease, b"y" * 300) == [-1]
    assert full.digest() == before
    answers = full.run(
        "queue.ack",
        short.id,
        short.lease,
        b"y" * 90,
        long.id,
        long.lease,
        b"y" * 300,
        none.id,
        none.lease,
        b"",
    )
    assert answers == [1, -1, 1]
    assert full.run("queue.wait", "short", 0) == [[b"done", b"y" * 90]]
    assert full.run("queue.ack", "short", short.lease, b"y" * 300) == [1], (
        "it was acknowledged before"
    )
    assert full.run("queue.ack", "long", 1, b"y" * 300) == [0], "that lease is nobody's"
    full.client.config_set("maxmemory", "0")
    assert full.run("queue.ack", long.id, long.lease, b"y" * 300) == [1]
    assert full.run("queue.wait", "long", 0) == [[b"done", b"y" * 300]]


def test_a_result_that_nobody_keeps_needs_no_room(full: Any) -> None:
    full.configure(dedup_ms=0)
    full.put("a")
    row = full.take_one()
    full.fill()
    assert full.run("queue.ack", row.id, row.lease, b"y" * 1000) == [1]


def test_results_in_a_batch_are_refused_as_well(full: Any) -> None:
    full.put_all(("a", b"", {}), ("b", b"", {}), ("c", b"", {}))
    a, b = full.take(2)
    full.fill()
    parts = (
        ("put", "new", "", b"x"),
        ("ack", a.id, a.lease, b"y" * 1000, b.id, b.lease, b""),
        ("take", 200, 1, 0, 0, ""),
    )
    args = [word for verb, *rest in parts for word in (verb, len(rest), *rest)]
    refused, acked, ((taken,),) = full.run("queue.batch", *args)
    assert "used memory" in str(refused)
    assert acked == [-1, 1]
    assert taken[0] == b"c"


async def test_who_acknowledges_with_a_result_is_told(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a", payload=b"x" * 50))
    (task,) = await queues.take(session, ["q"])
    await link_of(queues).call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Full, match="longer than its task"):
            await queues.ack(session, "q", [("a", task.lease)], b"y" * 1000)
        assert session.held, "it is this consumer's still"
        assert await queues.touch(session, "q", "a", task.lease) > 0
        assert await queues.ack(session, "q", [("a", task.lease)], b"short") == [1]
    finally:
        await link_of(queues).call("CONFIG", "SET", "maxmemory", "0")
    assert await queues.wait("q", "a", 0) == ("done", b"short")


async def test_a_node_says_full(node: Any) -> None:
    queues = (await node()).queues
    session = queues.open_session()
    await queues.put("q", TaskSpec(id="a"))
    link = link_of(queues)
    await link.call("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Full, match="take and acknowledge tasks"):
            await queues.put("q", TaskSpec())
        with pytest.raises(Full):
            await queues.put("never-used", TaskSpec())
        (task,) = await queues.take(session, ["q"], wait_ms=1000)
        await queues.close_session(session)
        (task,) = await queues.take(session, ["q"])
        assert await queues.ack(session, "q", [("a", task.lease)]) == [1]
    finally:
        await link.call("CONFIG", "SET", "maxmemory", "0")
    await queues.put("q", TaskSpec(id="b"))

"""Leases that end by their time alone, leaders of the past, and what becomes of the dead."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import BadArg, Stale

# --- sticky leases: an open intent to refresh


def intend(desk: Any, row: Any) -> None:
    """Make a lease sticky as intent.lua does, by the record's flag."""
    raw = bytearray(desk.client.hget(f"{desk.prefix}:tries", row.id))
    raw[12] |= 1
    desk.client.hset(f"{desk.prefix}:tries", row.id, bytes(raw))


def test_a_sticky_lease_ends_only_by_its_time(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one(lease_ms=1000)
    intend(desk, row)
    assert desk.end(row, "loss") == 0
    assert desk.run("queue.reap", 1, "n0", 1, 100) == [0, 0]
    assert desk.state("a") == "leased"
    desk.now += 1000
    assert desk.run("queue.sweep", 1, 100, holder="n0.1") == [1, -1]
    assert (desk.state("a"), desk.peek("a")["attempts"]) == ("ready", 1)
    assert desk.end(desk.take_one(holder="n1.1"), "loss") == 1  # the next lease is not sticky


def test_a_sticky_lease_is_released_failed_and_acked_by_its_number(desk: Any) -> None:
    for how in ("release", "fail"):
        desk.put("a")
        row = desk.take_one()
        intend(desk, row)
        assert desk.end(row, how) == 1
    row = desk.take_one()
    intend(desk, row)
    assert desk.touch(row, 5000) == desk.now + 5000
    assert desk.end(row, "loss") == 0, "touched, and still sticky"
    assert desk.ack(row) == [1]


# --- the fence and the dead


def test_an_older_leader_is_refused_and_changes_nothing(desk: Any) -> None:
    desk.put("a", delay_ms=1)
    desk.run("queue.sweep", 5, 10, holder="n1.1")
    desk.now += 5
    before = desk.digest()
    for epoch, holder in ((4, "n1.1"), (5, "n2.1"), (1, "n0.1")):
        with pytest.raises(Stale, match=r"epoch 5 held by n1\.1"):
            desk.run("queue.sweep", epoch, 10, holder=holder)
        with pytest.raises(Stale):
            desk.run("queue.reap", epoch, "n0", 1, 10, holder=holder)
    assert desk.digest() == before
    assert desk.run("queue.sweep", 5, 10, holder="n1.1") == [1, -1]


def test_a_newer_leader_is_adopted(desk: Any) -> None:
    desk.run("queue.sweep", 5, 10, holder="n1.1")
    desk.run("queue.reap", 6, "n9", 1, 10, holder="n2.1")
    assert (desk.record("epoch"), desk.record("sweeper")) == ("6", "n2.1")
    with pytest.raises(Stale):
        desk.run("queue.sweep", 5, 10, holder="n1.1")


def test_a_dead_boot_loses_its_leases_and_takes_no_more(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(7)))
    desk.take(5, holder="n1.3")
    other = desk.take_one(holder="n2.3")
    assert desk.run("queue.reap", 1, "n1", 3, 3) == [3, 1]
    assert desk.run("queue.reap", 1, "n1", 3, 3) == [2, 0]
    assert desk.woke
    assert desk.run("queue.reap", 1, "n1", 3, 3) == [0, 0]
    assert desk.counts() == {"delayed": 0, "ready": 6, "leased": 1, "buried": 0}
    assert desk.peek("t0")["reason"] == b"node n1.3 died"
    assert desk.peek("t0")["losses"] == 1
    for boot in (1, 3):
        with pytest.raises(Stale, match="has to register again"):
            desk.take(holder=f"n1.{boot}")
    assert len(desk.take(holder="n1.4")) == 1
    assert desk.ack(other) == [1]


def test_an_older_death_does_not_undo_a_newer(desk: Any) -> None:
    desk.run("queue.reap", 1, "n1", 5, 10)
    desk.run("queue.reap", 1, "n1", 3, 10)
    desk.run("queue.reap", 1, "n2", 1, 10)
    assert sorted(desk.record("dead").split()) == ["n1.5", "n2.1"]
    with pytest.raises(Stale):
        desk.take(holder="n1.4")


def test_nobody_wakes_the_dead(desk: Any) -> None:
    """Nodes of ever new names come and go, and an idle queue's record must not grow with them."""
    for holder in ("n1.3", "n1.4", "n11.3", "n2.1"):
        desk.take(wait=True, holder=holder)
    assert desk.record("waiting") == "n1.3 n1.4 n11.3 n2.1"
    desk.run("queue.reap", 1, "n1", 3, 10)
    assert desk.record("waiting") == "n1.4 n11.3 n2.1"
    for number in range(300):
        desk.run("queue.reap", 1, f"worker-{number}", 1, 10)
    dead = desk.record("dead").split()
    assert dead == [f"worker-{number}.1" for number in range(300 - 128, 300)], "the latest"


def test_names_that_begin_alike_are_not_confused(desk: Any) -> None:
    desk.put_all(*((f"t{n}", b"", {}) for n in range(3)))
    for holder in ("n1.1", "n11.1", "n1.11"):
        desk.take_one(holder=holder)
    assert desk.run("queue.reap", 1, "n1", 1, 10) == [1, 0]
    assert desk.counts()["leased"] == 2


@pytest.mark.parametrize("node", ["7", "0x1f"])
def test_a_node_whose_name_is_a_number(desk: Any, node: str) -> None:
    """Its holder, alone in a list of the record, reads as one, too."""
    desk.holder = holder = f"{node}.1795255260000"
    for _ in range(2):
        assert desk.run("queue.sweep", 1, 10) == [0, -1]
    assert (desk.take(wait=True), desk.put("a")) == ([], 1)
    assert desk.record("waiting") == ""
    desk.take_one(lease_ms=1000)
    assert desk.run("queue.take", 200, 1, 0, 1, "", holder="n0.1") == [[]]
    assert (desk.record("holders"), desk.record("waiting")) == (holder, "n0.1")
    desk.audit()
    desk.now += 1000
    assert desk.run("queue.sweep", 1, 10) == [1, -1]
    assert desk.run("queue.reap", 1, node, 1795255260000, 10) == [0, 0]
    with pytest.raises(Stale, match="declared dead"):
        desk.take()
    desk.holder = f"{node}.1795255260001"
    assert desk.ids() == ["a"]


def test_holders_that_hold_nothing_leave_the_record(desk: Any) -> None:
    for boot in range(5):
        desk.put("a")
        desk.ack(desk.take_one(lease_ms=10, holder=f"n1.{boot + 1}"))
        desk.client.delete(f"{desk.prefix}:done:a")
    desk.now += 10
    desk.run("queue.sweep", 1, 10)
    assert desk.record("holders") == ""


def test_a_holder_that_is_none(desk: Any) -> None:
    with pytest.raises(BadArg, match=r"is not node\.boot"):
        desk.take(holder="-")


def test_what_a_dead_node_waited_for_is_forgotten(desk: Any) -> None:
    """
    An id that never ends would collect one word a restart, and every ack of the shard look for it.
    """
    for name in ("a", "b", "c", "d"):
        desk.put(name)
        for boot in (1, 2, 3):
            desk.run("queue.wait", name, 1, holder=f"n1.{boot}")
    desk.run("queue.wait", "b", 1, holder="n2.1")
    desk.run("queue.wait", "c", 1, holder="n1.9")
    assert int(desk.record("awaited")) == 4
    rounds = [desk.run("queue.reap", 1, "n1", 3, 3), desk.run("queue.reap", 1, "n1", 3, 3)]
    assert rounds[-1] == [0, 0]
    waits = desk.client.hgetall(f"{desk.prefix}:waits")
    assert waits == {b"b": b"n2.1", b"c": b"n1.9"}
    assert int(desk.record("awaited")) == 2
    desk.run("queue.reap", 1, "n2", 1, 3)
    desk.run("queue.reap", 1, "n1", 9, 3)
    assert int(desk.record("awaited")) == 0
    assert not desk.client.exists(f"{desk.prefix}:waits")

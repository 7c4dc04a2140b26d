"""What the scripts do for the beanstalkd door: looks, tallies, kicks, and takes in any state."""

from __future__ import annotations

from typing import Any

import pytest

FIRST_MS = 2**42 - 2**32  # the deadline of a job of priority 0


def tube(desk: Any) -> Any:
    """The shard as it is made for a tube."""
    assert desk.configure(order="edf", losses_max=0, dedup_ms=0, tube=1) == 1
    return desk


def put(desk: Any, number: int, priority: int = 0, **fields: Any) -> str:
    task_id = f"{number:019d}"
    assert desk.put(task_id, b"x", deadline_ms=FIRST_MS + priority, **fields) == 1
    return task_id


@pytest.mark.parametrize("order", ["edf", "bands"])
def test_the_order_is_that_of_priority_and_number(desk: Any, order: str) -> None:
    assert desk.configure(order=order) == 1
    priorities = [7, 2**32 - 1, 0, 7, 1, 0, 2**32 - 2]
    put_ids = [(priority, put(desk, n, priority)) for n, priority in enumerate(priorities)]
    assert desk.ids() == [task_id for _, task_id in sorted(put_ids)]


def test_a_tally_counts_what_happened(desk: Any) -> None:
    tube(desk)
    it = put(desk, 1, delay_ms=5000, lease_ms=1000)
    assert desk.run("queue.tally", it) == [5, 5, 0, 0, 0, 0, 0]
    desk.now += 5000
    assert desk.end(desk.take_one(), "release", 3000) == 1
    assert desk.run("queue.tally", it) == [5, 3, 1, 0, 1, 0, 0]
    desk.now += 3000
    row = desk.take_one()
    desk.now += 1000
    again = desk.take_one()
    assert (again.id, desk.end(again, "release", 0)) == (row.id, 1)
    assert desk.run("queue.tally", it) == [5, 0, 3, 1, 2, 0, 0]
    assert desk.end(desk.take_one(), "loss") == 1
    assert desk.end(desk.take_one(), "bury", -1, "r") == 1
    assert desk.run("queue.kick", 1, it, "", 0) == [1, -1]
    assert desk.run("queue.tally", it) == [5, 0, 5, 1, 2, 1, 1]
    assert desk.ack(desk.take_one()) == [1]
    assert not desk.client.exists(f"{desk.prefix}:tally")


def test_a_queue_that_is_no_tube_has_no_tallies(desk: Any) -> None:
    desk.put("a", delay_ms=10)
    desk.now += 10
    desk.end(desk.take_one(), "release", 0)
    assert desk.run("queue.tally", "a") == [0] * 7
    assert not desk.client.exists(f"{desk.prefix}:tally")


@pytest.mark.parametrize("how", ["delete", "purge"])
def test_a_tally_goes_with_its_task(desk: Any, how: str) -> None:
    tube(desk)
    it = put(desk, 1, delay_ms=50)
    assert desk.client.hkeys(f"{desk.prefix}:tally") == [it.encode()]
    if how == "delete":
        assert desk.run("queue.delete", it, 0, 0) == 1
    else:
        assert desk.run("queue.purge", "delayed", 10) == 1
    assert not desk.client.exists(f"{desk.prefix}:tally")


def test_the_doctor_finds_a_tally_without_a_task(desk: Any) -> None:
    tube(desk)
    desk.client.hset(f"{desk.prefix}:tally", "gone", b"x")
    _, _, found = desk.run("queue.check", "tally", "0", 100, 1)
    assert found[0][:2] == [b"tally without a task", b"gone"]
    assert not desk.client.exists(f"{desk.prefix}:tally")


def test_a_look_says_what_is_next_of_each_state(desk: Any) -> None:
    tube(desk)
    first, second, third = put(desk, 1, 5), put(desk, 2, 5), put(desk, 3, 1024)
    later, soon = put(desk, 4, delay_ms=500), put(desk, 5, delay_ms=300)
    desk.put("other", b"", priority=60)

    def look() -> Any:
        return desk.run("queue.tube", FIRST_MS + 1024, 100)

    counts, paused, ready, delayed, buried, counters = look()
    assert counts == [2, 4, 0, 0, 2]
    assert paused == [0, 0]
    assert ready == [50, FIRST_MS + 5, first.encode()]
    assert delayed == [desk.now + 300, soon.encode()]
    assert buried == []
    assert dict(zip(counters[::2], counters[1::2], strict=True))[b"put"] == b"6"
    desk.end(desk.take_one(), "bury", -1, "r")
    assert desk.run("queue.pause", 2000) == 1
    desk.now += 400
    counts, paused, ready, delayed, buried, _ = look()
    assert counts == [1, 4, 0, 1, 2]
    assert paused == [desk.now + 1600, 2000]
    # what is due was moved
    assert (ready[2], delayed[1], buried[1]) == (soon.encode(), later.encode(), first.encode())
    assert desk.run("queue.pause", 0) == 1
    assert desk.ids() == [soon, second, third, "other"]


def test_delayed_tasks_are_kicked_in_the_order_of_their_times(desk: Any) -> None:
    tube(desk)
    ids = [put(desk, n, delay_ms=1000 - n) for n in range(4)]
    desk.now += 1
    assert desk.run("queue.kick_delayed", 2, "") == 2
    assert desk.woke
    assert [desk.state(task_id) for task_id in ids] == ["delayed", "delayed", "ready", "ready"]
    assert desk.run("queue.kick_delayed", 1, ids[0]) == 1
    assert desk.run("queue.kick_delayed", 1, ids[0]) == 0
    assert desk.run("queue.kick_delayed", 1, "nobody") == 0
    row = desk.take_one()
    assert row.id == ids[0]
    assert desk.end(row, "release", 700) == 1
    assert desk.run("queue.kick_delayed", 1, ids[0]) == 1
    assert desk.ids() == [ids[0], ids[2], ids[3]]
    desk.audit()


def test_a_named_take_in_any_state(desk: Any) -> None:
    def take(task_id: str, word: str = "4") -> Any:
        return desk.run("queue.take", 200, 1, 0, word, task_id)[0]

    for name in ("buried", "ready", "delayed"):
        desk.put(name, delay_ms=1000 if name == "delayed" else None)
    (row,) = take("buried")
    assert take("buried") == []  # somebody has it
    assert desk.end((b"buried", row[1]), "bury", -1, "r") == 1
    desk.run("queue.pause", -1)
    for name in ("buried", "ready", "delayed"):
        assert take(name, "0") == []
        assert take(name)[0][0] == name.encode()
        assert desk.state(name) == "leased"
    assert take("nobody") == []
    desk.audit()

"""
Lanes: few of one lane at a time and no faster than its rate, in turn with the others, at a price
that does not grow.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tidewarden.errors import BadArg


def fill(desk: Any, lane: str, count: int, **fields: Any) -> None:
    """``count`` tasks of a lane, named after it and numbered."""
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        desk.put_all(*((f"{lane[0]}{n}", b"", {"lane": lane, **fields}) for n in numbers))


def drain(desk: Any, takes: int, ms: int = 1) -> list[str]:
    """One consumer takes and acknowledges, ``ms`` for each; the ids."""
    ids = []
    for _ in range(takes):
        rows = desk.take()
        if not rows:
            break
        ids.append(rows[0].id)
        desk.now += ms
        assert desk.ack(rows[0]) == [1]
    return ids


def test_one_task_of_a_lane_at_a_time_in_the_order_of_the_puts(desk: Any) -> None:
    for name in ("t10", "t9", "t8"):
        desk.put(name, lane="a")
    assert [desk.state(name) for name in ("t10", "t9", "t8")] == ["ready", "waiting", "waiting"]
    row = desk.take_one()
    assert row.id == "t10"
    assert desk.take() == []
    assert desk.woke is False
    desk.ack(row)
    assert desk.woke
    assert drain(desk, 5) == ["t9", "t8"]
    assert desk.client.keys(f"{desk.prefix}:[lwrs][aul][nios]*") in (
        [],
        [f"{desk.prefix}:slots".encode()],
    )
    assert desk.record("lanes") == "0"


@pytest.mark.parametrize("how", ["release", "fail", "loss", "bury"])
def test_whatever_ends_a_lease_brings_up_the_next(desk: Any, how: str) -> None:
    fill(desk, "a", 2)
    row = desk.take_one()
    desk.end(row, how)
    again = "a1" if how == "bury" else "a0"
    assert desk.take_one().id == again


def test_a_failed_task_with_backoff_lets_others_of_its_lane_go_on(desk: Any) -> None:
    desk.put("a", lane="x", backoff_ms=1000)
    desk.put("b", lane="x")
    desk.end(desk.take_one(), "fail")
    assert desk.state("a") == "delayed"
    assert drain(desk, 3) == ["b"]
    desk.now += 2000
    assert drain(desk, 3) == ["a"]


def test_a_lease_that_runs_out_brings_up_the_next(desk: Any) -> None:
    fill(desk, "a", 2, attempts=1)
    desk.take_one(lease_ms=50)
    desk.now += 50
    assert desk.take_one().id == "a1"


def test_a_dead_node_frees_its_lanes(desk: Any) -> None:
    fill(desk, "a", 2)
    desk.take_one(holder="n1.1")
    assert desk.take() == []
    desk.run("queue.reap", 1, "n1", 1, 100)
    assert desk.take_one().id == "a0"


def test_delayed_tasks_enter_their_lane_when_they_are_due(desk: Any) -> None:
    desk.put("late", lane="a", delay_ms=100)
    desk.put("now", lane="a")
    row = desk.take_one()
    desk.now += 100
    assert desk.take() == []
    assert desk.state("late") == "waiting"
    desk.ack(row)
    assert desk.take_one().id == "late"


def test_a_more_urgent_task_goes_before_the_head_of_its_lane(desk: Any) -> None:
    desk.put("slow", lane="a", priority=50)
    desk.put("fast", lane="a", priority=10)
    assert (desk.state("slow"), desk.state("fast")) == ("waiting", "ready")
    assert drain(desk, 3) == ["fast", "slow"]


@pytest.mark.thorough
def test_a_noisy_lane_of_ten_thousand_starves_nobody(desk: Any) -> None:
    fill(desk, "noisy", 10_000)
    desk.now += 1000
    fill(desk, "quiet", 3)
    ids = drain(desk, 8)
    assert [name[0] for name in ids] == list("nqnqnqnn"), "in turn"
    desk.run("queue.purge", "waiting", 1000)


def test_lanes_take_turns_with_each_other_and_with_tasks_of_none(desk: Any) -> None:
    fill(desk, "a", 4)
    fill(desk, "b", 4)
    desk.now += 1
    desk.put("plain")
    assert drain(desk, 3) == ["a0", "b0", "plain"], "a lane queues up again behind whoever is there"
    assert drain(desk, 7, ms=0) == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_a_batch_takes_turns_too_and_keeps_priorities_strict(desk: Any) -> None:
    desk.configure(lane_limit=3)
    fill(desk, "a", 3)
    fill(desk, "b", 3)
    desk.put("plain", priority=60)
    assert desk.ids(5) == ["a0", "b0", "a1", "b1", "a2"]
    assert desk.ids(5) == ["b2", "plain"]


def test_heads_with_a_deadline_to_come_go_by_it(desk: Any) -> None:
    fill(desk, "a", 2, within_ms=30_000)
    desk.put("b0", lane="b", within_ms=20_000)
    fill(desk, "c", 1)
    assert drain(desk, 4) == ["b0", "a0", "a1", "c0"]


def test_the_limit_of_a_lane_is_a_setting(desk: Any) -> None:
    desk.configure(lane_limit=2)
    fill(desk, "a", 5)
    assert len(desk.take(10)) == 2
    desk.configure(lane_limit=0)
    assert desk.run("queue.lanes", "waiting", "", 100) == b""
    assert len(desk.take(10)) == 3


def test_a_higher_limit_brings_up_heads_and_a_lower_one_takes_them_down(desk: Any) -> None:
    for lane in ("a", "b", "c"):
        fill(desk, lane, 3)
    assert len(desk.take(10)) == 3
    desk.configure(lane_limit=2)
    cursor = desk.run("queue.lanes", "waiting", "", 2)
    assert cursor == b"b"
    assert desk.counts()["ready"] == 2
    assert desk.run("queue.lanes", "waiting", cursor, 2) == b""
    assert desk.counts()["ready"] == 3
    desk.configure(lane_limit=1)
    cursor = b""
    while (cursor := desk.run("queue.lanes", "heads", cursor, 1)) != b"":
        pass
    assert desk.counts()["ready"] == 0


def test_a_rate_is_kept_and_its_burst_comes_after_a_rest(desk: Any) -> None:
    desk.configure(lane_limit=0, lane_rate=2000, lane_burst=3)
    fill(desk, "a", 10)
    assert len(desk.take(10)) == 3
    assert desk.next_ms == desk.now + 500
    taken = []
    for _ in range(200):
        desk.now += 10
        taken += [desk.now] * len(desk.take(10))
    assert [b - a for a, b in itertools.pairwise(taken)] == [500] * (len(taken) - 1)
    assert len(taken) == 4
    desk.now += 10_000
    assert len(desk.take(10)) == 3


def test_a_rate_below_one_a_second_and_a_lane_that_waits_for_its_slot(desk: Any) -> None:
    desk.configure(lane_rate=500)
    fill(desk, "a", 2)
    row = desk.take_one()
    desk.now += 10
    desk.ack(row)
    assert desk.state("a1") == "waiting"
    assert desk.next_ms == desk.now + 1990
    assert desk.take(task_id="a1") == []
    desk.now += 1989
    assert desk.take() == []
    desk.now += 1
    assert desk.take_one().id == "a1"


def test_a_rate_that_rose_is_felt_at_once(desk: Any) -> None:
    desk.configure(lane_rate=1)  # one in a thousand seconds
    fill(desk, "a", 2)
    desk.ack(desk.take_one())
    assert desk.take() == []
    desk.configure(lane_rate=10_000)
    desk.run("queue.lanes", "waiting", "", 100)
    desk.now += 100
    assert desk.take_one().id == "a1"


def test_a_lane_is_forgotten_when_its_rate_has_nothing_to_remember(desk: Any) -> None:
    desk.configure(lane_rate=1000)
    for n in range(50):
        desk.put(f"t{n}", lane=f"lane{n}")
    for row in desk.take(50):
        desk.ack(row)
    assert desk.client.hlen(f"{desk.prefix}:lanes") == 50
    desk.now = desk.next_ms
    desk.run("queue.sweep", 1, 100, holder="n9.1")
    assert (
        desk.client.exists(
            *(f"{desk.prefix}:{name}" for name in ("lanes", "slots", "waiting", "running"))
        )
        == 0
    )


def test_take_by_id_of_a_waiting_task_only_when_its_lane_may_run(desk: Any) -> None:
    fill(desk, "a", 3)
    row = desk.take_one(task_id="a2")
    assert row.id == "a2"
    assert desk.state("a0") == "waiting"
    assert desk.take(task_id="a1") == []
    assert desk.take() == []
    desk.ack(row)
    assert drain(desk, 3) == ["a0", "a1"]


def test_a_waiting_task_is_shown_counted_paged_and_purged(desk: Any) -> None:
    fill(desk, "a", 4)
    fill(desk, "b\xff ~", 3)
    shown = desk.peek("a2")
    assert (shown["state"], shown["lane"]) == (b"waiting", b"a")
    assert desk.counts() == {"delayed": 0, "ready": 2, "leased": 0, "buried": 0, "waiting": 5}
    seen, cursor = [], b""
    while True:
        rows, cursor = desk.run("queue.peek", "waiting", 2, cursor)
        seen += [row[0].decode() for row in rows]
        if not cursor:
            break
    assert seen == ["a1", "a2", "a3", "b1", "b2"]
    with pytest.raises(BadArg, match="cursor"):
        desk.run("queue.peek", "waiting", 2, "waiting 0 a")
    assert desk.run("queue.purge", "waiting", 2) == 2
    assert desk.run("queue.purge", "waiting", 1000) == 3
    assert desk.counts()["ready"] == 2


def test_pages_of_heads_go_on_behind_one_that_has_gone(desk: Any) -> None:
    for n in range(6):
        desk.put(f"t{n}", lane=f"lane{n}")
    rows, cursor = desk.run("queue.peek", "ready", 2, "")
    desk.run("queue.delete", "t1", 0, 0)
    seen = [row[0] for row in rows]
    while cursor:
        rows, cursor = desk.run("queue.peek", "ready", 2, cursor)
        seen += [row[0] for row in rows]
    assert seen == [b"t0", b"t1", b"t2", b"t3", b"t4", b"t5"]


@pytest.mark.parametrize("state", ["ready", "leased"])
def test_a_purge_of_heads_brings_up_others(desk: Any, state: str) -> None:
    fill(desk, "a", 2)
    if state == "leased":
        desk.take_one()
    assert desk.run("queue.purge", state, 1) == 1
    assert desk.take_one().id == "a1"


def test_update_places_anew_and_keeps_the_lane(desk: Any) -> None:
    fill(desk, "a", 3)
    desk.run("queue.update", "a2", 1, b"new", 0, 0, 0, 0, 10, 0)
    assert [desk.state(name) for name in ("a0", "a1", "a2")] == ["waiting", "waiting", "ready"]
    desk.run("queue.update", "a2", 0, "", 1, 500, 0, 0, -1, 0)
    assert [desk.state(name) for name in ("a0", "a1", "a2")] == ["ready", "waiting", "delayed"]
    assert desk.peek("a2")["lane"] == b"a"
    desk.run("queue.delete", "a0", 0, 0)
    assert desk.state("a1") == "ready"


def test_replace_may_change_the_lane(desk: Any) -> None:
    fill(desk, "a", 2)
    assert desk.put("a0", b"x", lane="b", if_exists="replace") == 1
    assert [desk.state("a0"), desk.state("a1")] == ["ready", "ready"]
    assert desk.put("a1", if_exists="replace") == 1
    assert desk.peek("a1")["lane"] == b""
    assert sorted(desk.ids()) == ["a0", "a1"]


@pytest.mark.parametrize("together", [True, False])
def test_two_heads_of_a_lane_whose_record_was_lost_run_one_at_a_time(
    desk: Any, together: bool
) -> None:
    fill(desk, "a", 3)
    desk.client.hdel(f"{desk.prefix}:lanes", "a")
    desk.put("last", lane="a")  # what comes to the lane brings up another head beside the first
    assert [desk.state(f"a{n}") for n in range(3)] == ["ready", "ready", "waiting"]
    (row,) = desk.take(3 if together else 1)
    assert [desk.state(f"a{n}") for n in range(3)] == ["leased", "waiting", "waiting"]
    desk.audit()
    assert desk.ack(row) == [1]
    assert drain(desk, 5) == ["a1", "a2", "last"]


def test_a_kicked_task_goes_to_its_lane(desk: Any) -> None:
    fill(desk, "a", 2)
    desk.end(desk.take_one(), "bury")
    desk.take_one()
    desk.run("queue.kick", 1, "a0", "", 0)
    assert desk.state("a0") == "waiting"


def test_a_waiting_task_outlives_its_ttl_and_counts_for_the_capacity(desk: Any) -> None:
    desk.configure(capacity=3)
    fill(desk, "a", 2, ttl_ms=100)
    desk.put("a2", lane="a")
    assert desk.put("a3", lane="a") == b"FULL"
    desk.now += 100
    assert desk.take_one().id == "a2"
    assert desk.counts() == {"delayed": 0, "ready": 0, "leased": 1, "buried": 2}


def test_more_expired_heads_than_one_script_buries_free_their_lanes_all_the_same(desk: Any) -> None:
    for n in range(300):
        desk.put(f"t{n}", lane=f"lane{n}", ttl_ms=50)
    desk.now += 50
    assert desk.take(500) == []
    assert desk.counts() == {"delayed": 0, "ready": 0, "leased": 0, "buried": 300}


def test_a_put_that_does_not_parse_is_refused(desk: Any) -> None:
    for options in (
        "0 0 0 0 50 0 0 0 0 keep x",
        "0 0 0 0 50 0 0 0 0 keep@",
        f"0 0 0 0 50 0 0 0 0 keep@{'x' * 201}",
    ):
        with pytest.raises(BadArg):
            desk.run("queue.put", "a", options, b"")
    for lane in ("", "x" * 201, "\ud800"):
        with pytest.raises(BadArg, match="LANE is"):
            desk.put("a", lane=lane)

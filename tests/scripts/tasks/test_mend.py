"""Scripts that mend tasks and queues: kick, update, delete, pause, stats, configure."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.errors import Internal
from tidewarden.queue.settings import QueueSettings


def bury(desk: Any, *names: str, reason: str = "bad") -> None:
    for name in names:
        desk.put(name)
        desk.end(desk.take_one(task_id=name), "bury", reason=reason)
        desk.now += 1


# --- kick


def test_kick_one_by_id(desk: Any) -> None:
    bury(desk, "a", "b")
    desk.put("c")
    assert desk.run("queue.kick", 1, "b", "", 0) == [1, -1]
    assert desk.run("queue.kick", 1, "b", "", 0) == desk.run("queue.kick", 1, "c", "", 0) == [0, -1]
    assert desk.woke is False
    assert (desk.state("a"), desk.state("b")) == ("buried", "ready")


def test_kick_forgets_attempts_and_losses(desk: Any) -> None:
    desk.put("a", attempts=1)
    desk.end(desk.take_one(), "fail")
    assert desk.state("a") == "buried"
    desk.run("queue.kick", 1, "", "", 0)
    assert desk.woke
    shown = desk.peek("a")
    assert (shown["state"], shown["attempts"], shown["losses"], shown["reason"]) == (
        b"ready",
        0,
        0,
        b"",
    )
    assert desk.take_one().attempt == 1


def test_kick_so_many_oldest_first(desk: Any) -> None:
    bury(desk, "c", "a", "b")
    assert desk.run("queue.kick", 2, "", "", 0) == [2, 0]
    assert desk.state("b") == "buried"
    assert desk.run("queue.kick", 0, "", "", 0) == [0, 0]


def test_kick_by_the_reasons_prefix(desk: Any) -> None:
    bury(desk, "a", "c", reason="http 500")
    bury(desk, "b", reason="http 404")
    bury(desk, "d", reason="%d+ ^h")  # not a pattern
    assert desk.run("queue.kick", 10, "", "http 5", 0) == [2, -1]
    assert desk.run("queue.kick", 10, "", "%d+ ^", 0) == [1, -1]
    assert desk.run("queue.kick", 10, "", "http", 0) == [1, -1]


@pytest.mark.thorough
def test_kick_by_prefix_goes_on_through_a_long_list(desk: Any) -> None:
    desk.put_all(*((f"t{n:04}", b"", {}) for n in range(2400)))
    rows = [row for _ in range(3) for row in desk.take(800)]
    for start in range(0, 2400, 800):
        desk.run(
            "queue.end",
            *(
                x
                for n, row in enumerate(rows[start : start + 800], start)
                for x in (row.id, row.lease, "bury", -1, f"r{n % 2}")
            ),
        )
    rank, moved = 0, 0
    while rank >= 0:
        more, rank = desk.run("queue.kick", 1000, "", "r1", rank)
        moved += more
    assert moved == 1200
    assert desk.counts() == {"delayed": 0, "ready": 1200, "leased": 0, "buried": 1200}


# --- update


def update(
    desk: Any,
    task_id: str,
    *,
    payload: Any = None,
    due: Any = (0, 0),
    limit: Any = (0, 0),
    priority: int = -1,
    lease: int = 0,
) -> Any:
    return desk.run(
        "queue.update",
        task_id,
        int(payload is not None),
        payload or b"",
        *due,
        *limit,
        priority,
        lease,
    )


def test_update_a_ready_task(desk: Any) -> None:
    desk.put("a", b"1", within_ms=100)
    desk.put("b", b"1", within_ms=90)
    assert update(desk, "a", payload=b"2", limit=(2, 50), priority=7) == 1
    shown = desk.peek("a")
    assert (shown["payload"], shown["deadline_ms"], shown["priority"]) == (b"2", desk.now + 50, 7)
    assert desk.ids() == ["a", "b"]


def test_update_moves_a_task_in_time_and_back(desk: Any) -> None:
    desk.put("a")
    assert update(desk, "a", due=(1, 1000)) == 1
    assert (desk.state("a"), desk.peek("a")["deadline_ms"]) == ("delayed", desk.now + 1000)
    assert desk.next_ms == desk.now + 1000
    assert update(desk, "a", due=(2, desk.now + 50), limit=(1, desk.now + 60)) == 1
    assert desk.next_ms == desk.now + 50
    assert update(desk, "a", due=(1, 0)) == 1
    assert desk.woke
    assert (desk.state("a"), desk.peek("a")["deadline_ms"]) == ("ready", desk.now + 60), (
        "a deadline of its own stays"
    )


def test_update_keeps_the_backoff_of_a_retry(desk: Any) -> None:
    desk.put("a", b"1", backoff_ms=10_000)
    desk.end(desk.take_one(), "fail")
    stands = desk.peek("a")["at_ms"]
    assert update(desk, "a", payload=b"2", priority=3, limit=(2, 5)) == 1
    shown = desk.peek("a")
    assert (shown["state"], shown["at_ms"], shown["payload"], shown["attempts"]) == (
        b"delayed",
        stands,
        b"2",
        1,
    )
    desk.now = stands
    assert desk.take_one().attempt == 2


def test_update_does_not_take_back_what_was_released_before_it_is_due(desk: Any) -> None:
    desk.put("a", delay_ms=60_000)
    desk.end(desk.take_one(task_id="a"), "release")
    assert desk.state("a") == "ready"
    assert update(desk, "a", payload=b"2", priority=1) == 1
    assert (desk.state("a"), desk.peek("a")["priority"]) == ("ready", 1)


def test_update_a_leased_task_by_its_lease_alone(desk: Any) -> None:
    desk.put("a", b"1")
    row = desk.take_one()
    assert (
        update(desk, "a", payload=b"2")
        == update(desk, "a", payload=b"2", lease=row.lease + 1)
        == b"NOTHELD"
    )
    assert update(desk, "a", payload=b"2", priority=1, lease=row.lease) == 1
    assert (desk.state("a"), desk.peek("a")["payload"]) == ("leased", b"2")
    desk.end(row, "release")
    assert desk.take_one().payload == b"2"


def test_update_a_buried_task(desk: Any) -> None:
    bury(desk, "a")
    assert update(desk, "a", payload=b"2", priority=1) == 1
    assert (desk.state("a"), desk.peek("a")["reason"]) == ("buried", b"bad")
    desk.run("queue.kick", 1, "a", "", 0)
    assert desk.take_one().payload == b"2"


def test_update_what_is_not_there_or_not_leased(desk: Any) -> None:
    assert update(desk, "none", payload=b"") == b"NOTFOUND"
    desk.put("a")
    assert update(desk, "a", payload=b"2", lease=5) == b"NOTHELD"
    assert desk.peek("a")["payload"] == b""


# --- delete


@pytest.mark.parametrize("state", ["delayed", "ready", "buried", "leased"])
def test_delete_in_every_state(desk: Any, state: str) -> None:
    desk.put("a", delay_ms=1000 if state == "delayed" else 0)
    row = desk.take_one() if state in ("buried", "leased") else None
    if state == "buried":
        desk.end(row, "bury")
    assert desk.state("a") == state
    if state == "leased":
        assert (
            desk.run("queue.delete", "a", 0, 0)
            == desk.run("queue.delete", "a", row.lease - 1, 0)
            == b"NOTHELD"
        )
        assert desk.run("queue.delete", "a", row.lease, 0) == 1
        assert desk.ack(row) == [0]
    else:
        assert desk.run("queue.delete", "a", 0, 0) == 1
    assert desk.run("queue.delete", "a", 0, 0) == 0
    assert desk.put("a", if_exists="fail") == 1, "deleting leaves no tombstone"


def test_delete_by_force_voids_the_lease(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    assert desk.run("queue.delete", "a", 0, 1) == 1
    assert desk.ack(row) == [0]
    assert desk.counts() == {"delayed": 0, "ready": 0, "leased": 0, "buried": 0}


def test_delete_by_a_lease_that_is_over(desk: Any) -> None:
    desk.put("a")
    row = desk.take_one()
    desk.end(row, "release")
    assert desk.run("queue.delete", "a", row.lease, 0) == b"NOTHELD"
    assert desk.state("a") == "ready"


# --- pause


def test_pause_stops_takes_and_resume_lets_them_go_on(desk: Any) -> None:
    desk.put("a")
    desk.run("queue.pause", -1)
    desk.put("b")
    assert desk.take(5) == desk.take(task_id="a") == []
    assert desk.next_ms == -1
    desk.now += 10**9
    assert desk.take() == []
    desk.run("queue.pause", 0)
    assert desk.woke
    assert desk.ids() == ["a", "b"]


def test_a_pause_ends_by_its_time(desk: Any) -> None:
    desk.put("a")
    desk.run("queue.pause", 1000)
    assert desk.next_ms == desk.now + 1000
    desk.now += 999
    assert desk.take() == []
    assert desk.next_ms == desk.now + 1
    desk.now += 1
    assert desk.ids() == ["a"]


def test_a_longer_pause_replaces_a_shorter_and_the_reverse(desk: Any) -> None:
    desk.put("a")
    desk.run("queue.pause", 1000)
    desk.run("queue.pause", 5000)
    desk.now += 1000
    assert desk.take() == []
    assert desk.next_ms == desk.now + 4000
    desk.run("queue.pause", 10)
    desk.now += 10
    assert desk.ids() == ["a"]


def test_leases_end_and_tasks_are_acked_in_a_paused_queue(desk: Any) -> None:
    desk.put("a")
    desk.put("b")
    one, _ = desk.take(2, lease_ms=100)
    desk.run("queue.pause", -1)
    assert desk.ack(one) == [1]
    desk.now += 100
    desk.run("queue.sweep", 1, 10)
    assert desk.counts() == {"delayed": 0, "ready": 1, "leased": 0, "buried": 0}


# --- stats, settings, format


def test_stats_count_by_state_and_since_the_beginning(desk: Any) -> None:
    for n, name in enumerate("abcdef"):
        desk.put(name, priority=n % 3, delay_ms=100 if name == "f" else 0, within_ms=1000 - n)
    rows = desk.take(4)
    desk.ack(rows[0])
    desk.end(rows[1], "bury")
    desk.end(rows[2], "fail")
    row = desk.run("queue.stats")
    assert row[:4] == [1, 2, 1, 1]
    assert row[6] == desk.now + 1000 - 5 + 0 or row[6] > desk.now
    counters = {
        name.decode(): int(value) for name, value in zip(row[9][::2], row[9][1::2], strict=True)
    }
    assert counters == {"put": 6, "taken": 4, "acked": 1, "buried": 1, "fail": 1}


def test_looking_changes_nothing(desk: Any) -> None:
    desk.put("a")
    desk.put("b", delay_ms=5)
    before = desk.digest()
    desk.now += 1_000_000
    desk.run("queue.stats")
    desk.peek("a")
    desk.run("queue.peek", "delayed", 10, "")
    assert desk.digest() == before


def test_a_newer_format_is_refused_with_the_way_out(desk: Any) -> None:
    desk.put("a")
    desk.client.hset(f"{desk.prefix}:shard", "format", 3)
    before = desk.digest()
    for name, args in (
        ("put", ("b", "", "")),
        ("take", (200, 1, 0, 0, "")),
        ("stats", ()),
        ("sweep", (1, 1)),
    ):
        with pytest.raises(Internal, match="format 3; this version reads 2 and older: upgrade"):
            desk.run(f"queue.{name}", *args)
    assert desk.digest() == before
    desk.client.hset(f"{desk.prefix}:shard", "format", 2)


def test_a_queue_that_nobody_configured_has_the_documented_settings(desk: Any) -> None:
    """Its shards' records are empty, so the scripts know the defaults themselves."""
    desk.put("a", backoff_ms=3_000_000)
    for _ in range(10):
        assert desk.state("a") == "ready"
        desk.end(desk.take_one(), "loss")
    assert desk.state("a") == "buried"
    desk.run("queue.kick", 1, "a", "", 0)
    for _ in range(2):
        row = desk.take_one(task_id="a")
        assert row.lease_end_ms == desk.now + 30_000
        desk.end(row, "fail")
    assert 3_600_000 <= desk.peek("a")["at_ms"] - desk.now <= 3_600_000 * 5 / 4
    assert QueueSettings() == QueueSettings(
        shards=1,
        durability="one",
        order="bands",
        lease_ms=30_000,
        urgent_ms=60_000,
        late_share=8,
        early_share=16,
        dedup_ms=60_000,
        losses_max=10,
        backoff_cap_ms=3_600_000,
    )

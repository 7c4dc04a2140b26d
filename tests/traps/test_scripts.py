"""
The traps into which other queues fell, and how to see that this one does not: here those of the
store, script by script.

Those of several nodes are in ``test_nodes.py``, those of connections in ``test_doors.py``,
``test_half_closed.py`` and ``test_sessions.py``. Three more have their tests elsewhere: what a node
held that was started again (tarantool/queue#66, #49) in ``rooms/cluster/test_reaper.py``, writes
whose answer was lost in ``live/store/test_crash.py``, and damage that has happened all the same in
``scripts/records/test_check.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

HOUR_MS = 3_600_000
LEASE_MS = 1_000
LEADER = "n9.1"
# How a lease can end so that the task comes again.
ENDS = ["release", "fail", "disconnect", "lease end", "node death", "bury and kick"]


def come_back(desk: Any, rows: list[Any], how: str) -> None:
    """The leases end, and whatever pause follows is over."""
    if how == "lease end":
        desk.now += LEASE_MS
        desk.run("queue.sweep", 1, 1000, holder=LEADER)
    elif how == "node death":
        boot = int(desk.holder.partition(".")[2])
        desk.run("queue.reap", 1, "n0", boot, 1000, holder=LEADER)
        desk.holder = f"n0.{boot + 1}"
    else:
        for row in rows:
            assert desk.end(row, {"disconnect": "loss", "bury and kick": "bury"}.get(how, how))
        if how == "bury and kick":
            assert desk.run("queue.kick", 1000, "", "", 0)[0] == len(rows)
    if how in ("lease end", "fail"):
        desk.now += 1000  # longer than any backoff here
        desk.run("queue.sweep", 1, 1000, holder=LEADER)


@pytest.mark.parametrize("how", ENDS)
def test_trap_stranded_ids(desk: Any, how: str) -> None:
    """
    Netflix/dyno-queues#31 and #98, conductor#714: a pop does not return what a peek shows, for its
    id is among the taken still.

    However its lease ended, and however often: what lies ready is handed out.
    """
    names = [f"t{n}" for n in range(5)]
    desk.configure(losses_max=0)
    for name in names:
        desk.put(name, b"x", lease_ms=LEASE_MS)
    for _ in range(4):
        rows = desk.take(5)
        come_back(desk, rows, how)
        shown, _ = desk.run("queue.peek", "ready", 100, "")
        assert sorted(row[0].decode() for row in shown) == names
        assert sorted(row.id for row in rows) == names
    assert sorted(desk.ids()) == names


def test_trap_stranded_ids_of_a_task_put_again(desk: Any) -> None:
    """
    As above: done, deleted or replaced under its consumer, and put anew under the same id while the
    old lease runs.
    """
    desk.configure(dedup_ms=0)
    for n in range(12):
        desk.put("a", b"%d" % n, if_exists="replace")
        assert desk.state("a") == "ready"
        row = desk.take_one()
        assert row.payload == b"%d" % n
        if n % 3 == 0:
            assert desk.ack(row) == [1]
        elif n % 3 == 1:
            assert desk.run("queue.delete", "a", 0, 1) == 1
        else:
            assert desk.end(row, "release")
    assert desk.ids() == ["a"]


@pytest.mark.parametrize("how", ENDS)
def test_trap_lost_priority_on_redelivery(desk: Any, how: str) -> None:
    """
    dyno-queues gives a task back with the end of its lease for a score: what was urgent comes last
    from then on.
    """
    for priority in (50, 10, 90):
        for name, hours in (("a", 7), ("z", 3), ("m", 5)):
            desk.put(
                f"{name}{priority}",
                priority=priority,
                within_ms=hours * HOUR_MS,
                lease_ms=LEASE_MS,
                backoff_ms=1,
            )
    rows = desk.take(9)
    order = [row.id for row in rows]
    assert order == [f"{name}{priority}" for priority in (10, 50, 90) for name in "zma"]
    for _ in range(3):
        come_back(desk, rows[::-1], how)
        rows = desk.take(9)
        assert [row.id for row in rows] == order


def test_trap_priority_when_delays_end_together(desk: Any) -> None:
    """
    beanstalkd/beanstalkd#400: of delayed jobs whose time comes at once, the priority is not looked
    at.
    """
    for n in range(60):
        desk.put(f"{n:02}", priority=59 - n, delay_ms=1000 + n)
    desk.now += 5000
    assert desk.ids() == [f"{n:02}" for n in range(59, -1, -1)]


def lose_bodies(desk: Any, *ids: str) -> None:
    """The damage: tasks whose index entries stay."""
    for key in desk.client.scan_iter(f"{desk.prefix}:tasks*"):
        desk.client.hdel(key, *ids)


def test_trap_batch_pop_losing_some(desk: Any) -> None:
    """
    dyno-queues' bulk pop moves ids to the taken one by one, and answers nothing when it meets one
    that has no payload.

    The others of the batch stay lost until their leases end. Here they arrive.
    """
    for n in range(30):
        desk.put(f"t{n:02}", b"x", priority=n // 10)
    gone = ["t00", "t07", "t10", "t29"]
    lose_bodies(desk, *gone)
    desk.client.hincrby(f"{desk.prefix}:shard", "stored", -len(gone))
    taken = [row.id for _ in range(4) for row in desk.take(9)]
    assert sorted([*taken, *gone]) == [f"t{n:02}" for n in range(30)]
    assert desk.counts()["leased"] == 26
    assert desk.client.zcard(f"{desk.prefix}:leased:n0.1") == 26, (
        "nothing is leased that nobody got"
    )
    assert desk.take(9) == []


@pytest.mark.parametrize("place", ["delayed", "ready", "leased", "buried", "expiring"])
def test_trap_entries_with_no_payload(desk: Any, place: str) -> None:
    """
    Netflix/dyno-queues PR 90: ids in the queue that have no payload, "root cause unknown", at which
    every pop fails.
    """
    for name in ("bad", "good"):
        desk.put(
            name,
            delay_ms=100 * (place == "delayed"),
            lease_ms=LEASE_MS,
            ttl_ms=5000 * (place == "expiring"),
        )
    if place in ("leased", "buried"):
        for row in desk.take(2):
            if place == "buried":
                desk.end(row, "bury")
    lose_bodies(desk, "bad")
    desk.now += 100 if place == "delayed" else LEASE_MS
    if place == "expiring":
        desk.now += 5000
        desk.run("queue.sweep", 1, 100)
        assert desk.state("good") == "buried"
    if place in ("buried", "expiring"):
        desk.run("queue.kick", 10, "", "", 0)
    assert desk.ids() == ["good"]
    for verb, args in (
        ("sweep", (1, 100)),
        ("release_all", (100,)),
        ("purge", ("ready", 100)),
        ("reap", (1, "n0", 1, 100)),
    ):
        desk.run(f"queue.{verb}", *args)
    for state in ("delayed", "ready", "leased", "buried"):
        desk.run("queue.peek", state, 100, "")
        desk.run("queue.purge", state, 100)
    desk.client.flushall()  # the damage


REMOVALS = [
    "ready",
    "delayed",
    "leased",
    "buried",
    "retried",
    "acked",
    "purged",
    "replaced",
    "expired",
]


@pytest.mark.parametrize("how", REMOVALS)
def test_trap_remove_leaks_the_payload(desk: Any, how: str) -> None:
    """
    Netflix/dyno-queues PR 109: remove() takes the id out of the queue and leaves the payload in the
    store, for ever.
    """
    secret = os.urandom(40)
    desk.configure(dedup_ms=0)
    desk.put("a", secret, delay_ms=500 * (how == "delayed"), ttl_ms=900 * (how == "expired"))
    if how in ("leased", "buried", "retried", "acked"):
        row = desk.take_one()
        if how == "buried":
            desk.end(row, "bury", reason="bad")
        elif how == "retried":
            desk.end(row, "fail", delay_ms=50)
        elif how == "acked":
            assert desk.ack(row) == [1]
    if how == "expired":
        desk.now += 1000
        desk.run("queue.sweep", 1, 10)
        assert desk.state("a") == "buried"
    if how == "purged":
        assert desk.run("queue.purge", "ready", 10)
    elif how == "replaced":
        desk.put("a", b"other", if_exists="replace")
        assert desk.take_one().payload == b"other"
    elif how != "acked":
        assert desk.run("queue.delete", "a", 0, 1) == 1
    everything = desk.digest()
    assert not [key for key, value in everything.items() if secret in value]
    if how != "replaced":
        names = {key.decode().rpartition(":")[2] for key in everything} - {"view"}
        assert names <= {"shard", "counts"}, "nothing is left but the queue's own record"


def test_trap_the_same_id_twice_in_a_batch(desk: Any) -> None:
    """Netflix/dyno-queues#84: an id was fetched ahead twice, and so handed out twice."""
    for n in range(50):
        desk.put(f"t{n:02}", priority=n % 3, delay_ms=n % 2)
        desk.put(f"t{n:02}", priority=n % 5)  # the same again, which changes nothing
    desk.now += 5
    first = desk.run("queue.take", 200, *(1, 0, 0, "t49"), *(7, 0, 0, "") * 4, *(1, 0, 0, "t48"))
    rest = desk.run("queue.take", 200, *(1, 0, 0, "t49"), *(7, 0, 0, "") * 4)
    ids = Counter(row[0] for rows in (*first, *rest) for row in rows)
    assert len(ids) == 50
    assert set(ids.values()) == {1}


def test_trap_a_delay_longer_than_the_lease(desk: Any) -> None:
    """
    celery/celery#2599 #4400, Bogdanp/dramatiq#431: what is to be done later than the visibility
    timeout is done several times.

    There a worker holds the task until its time comes; here nobody holds it.
    """
    desk.put("a", delay_ms=10 * HOUR_MS, lease_ms=LEASE_MS)
    handed: list[Any] = []
    for _ in range(25):
        desk.run("queue.sweep", 1, 100)
        handed += desk.take(5, holder="n1.1")
        if handed:
            assert desk.ack(*handed) == [1]
            break
        desk.now += HOUR_MS // 2
    assert [(row.id, row.attempt) for row in handed] == [("a", 1)]
    assert desk.take(5) == []


def calls_of(desk: Any, action: Any) -> int:
    """How many commands the store runs for it."""
    desk.client.config_resetstat()
    action()
    return sum(
        row["calls"]
        for name, row in desk.client.info("commandstats").items()
        if name != "cmdstat_config|resetstat"
    )


@pytest.mark.parametrize(
    "kind", ["delayed", "buried", "leased", "of lower priority", "of another deadline"]
)
def test_trap_takes_that_cost_what_lies_beside(desk: Any, kind: str) -> None:
    """
    tarantool/queue#63 #98 #105: a take walks over all that cannot be taken; with most tasks delayed
    it takes an hour of CPU.
    """
    costs = []
    for n in range(3):
        size = (10, 10, 600)[n]
        for m in range(0, size, 300):
            batch = range(m, min(m + 300, size))
            fields = {
                "delayed": {"delay_ms": HOUR_MS},
                "of lower priority": {"priority": 99},
                "of another deadline": {"within_ms": 2 * HOUR_MS},
            }.get(kind, {"lease_ms": HOUR_MS})
            desk.put_all(*((f"{n}-{number}", b"", fields) for number in batch))
            if kind in ("leased", "buried"):
                rows = desk.take(500, holder="n1.1")
                if kind == "buried":
                    desk.run(
                        "queue.end",
                        *(value for row in rows for value in (row.id, row.lease, "bury", -1, "")),
                    )
        desk.put(f"mine{n}", b"x", priority=1)

        def cycle(n: int = n) -> None:
            row = desk.take_one()
            assert row.id == f"mine{n}"
            assert desk.ack(row) == [1]

        costs.append(calls_of(desk, cycle))
    assert costs[2] <= costs[1] + 3, "a band of the order more or less, by whose turn it is"


def test_trap_clock_stepped_back(desk: Any) -> None:
    """
    An hour back, as by an administrator: leases go on, numbers still grow, what was ready is handed
    out, nothing is done early.
    """
    for name in ("held", "later", "waits"):
        desk.put(
            name,
            lease_ms=LEASE_MS,
            delay_ms=500 * (name == "later"),
            priority=10 if name == "held" else 50,
        )
    held = desk.take_one()
    desk.now -= HOUR_MS
    desk.run("queue.sweep", 1, 100)
    waits = desk.take_one()
    assert (held.id, waits.id) == ("held", "waits")
    assert waits.lease > held.lease
    desk.put("new")
    new = desk.take_one()
    assert new.id == "new"
    assert new.lease > waits.lease
    assert desk.take(5) == [], "one is not due, the others are held"
    assert desk.touch(held, LEASE_MS) == desk.now + LEASE_MS
    assert desk.ack(waits, new) == [1, 1]
    desk.now += LEASE_MS
    desk.run("queue.sweep", 1, 100)
    again = desk.take_one()
    assert again.id == "held"
    assert again.lease > new.lease
    assert desk.ack(held, again) == [0, 1]
    desk.now += HOUR_MS
    assert desk.ids() == ["later"]


def test_trap_clock_stepped_forward(desk: Any) -> None:
    """
    An hour on: every lease is over at once. Who still works is told so by the number, and nothing
    counts twice.
    """
    for n in range(20):
        desk.put(f"t{n:02}", lease_ms=LEASE_MS)
    first = desk.take(20)
    desk.now += HOUR_MS
    second = desk.take(20, lease_ms=HOUR_MS, holder="n1.1")
    assert [row.id for row in second] == [row.id for row in first]
    assert min(row.lease for row in second) > max(row.lease for row in first)
    assert desk.ack(*first) == [0] * 20
    desk.now -= HOUR_MS  # and put right again
    assert desk.ack(*second[:10]) == [1] * 10
    third = desk.take(20)
    assert third == [], "the leases of the second go on"
    desk.now += 2 * HOUR_MS
    assert sorted(desk.ids()) == [f"t{n:02}" for n in range(10, 20)]


def test_trap_ack_racing_the_lease_end(desk: Any) -> None:
    """
    Netflix/conductor#756: an ack that comes with the timer. Either it counts, or the task goes on;
    never both, never neither.
    """
    for late_ms in range(-2, 3):
        for swept in (False, True):
            name = f"{late_ms}-{swept}"
            desk.put(name, lease_ms=LEASE_MS)
            row = desk.take_one()
            desk.now += LEASE_MS + late_ms
            if swept:
                desk.run("queue.sweep", 1, 100)
            counted = desk.ack(row)
            assert counted == [int(not swept or late_ms < 0)]
            again = desk.take(2)
            assert [r.id for r in again] == [name] * (1 - counted[0])
            assert desk.ack(row) == counted, "the same answer when it is asked again"
            for other in again:
                assert other.lease > row.lease
                assert desk.ack(other) == [1]

"""
The traps into which other queues fell, and how to see that this one does not: here those of the store.

Those of connections are in ``test_traps_door.py``. Three more have their tests elsewhere: what a node held that was started
again (tarantool/queue#66, #49) in ``test_cluster_reaper.py``, writes whose answer was lost in ``test_queue_crash.py``, and
damage that has happened all the same in ``test_queue_check.py``.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from tidewarden.clock import SystemClock
from tidewarden.errors import NotHeld
from tidewarden.queue import NewTask

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
    Netflix/dyno-queues#31 and #98, conductor#714: a pop does not return what a peek shows, for its id is among the taken still.

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
    """As above: done, deleted or replaced under its consumer, and put anew under the same id while the old lease runs."""
    desk.configure(dedup_ms=0)
    for n in range(12):
        desk.put("a", b"%d" % n, if_exists="replace")
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
    """dyno-queues gives a task back with the end of its lease for a score: what was urgent comes last from then on."""
    for priority in (50, 10, 90):
        for deadline in (7, 3, 5):
            name = f"{priority}-{deadline}"
            desk.put(name, priority=priority, within_ms=deadline * HOUR_MS, lease_ms=LEASE_MS, backoff_ms=1)
    rows = desk.take(9)
    order = [row.id for row in rows]
    assert order == [f"{priority}-{deadline}" for priority in (10, 50, 90) for deadline in (3, 5, 7)]
    for _ in range(3):
        come_back(desk, rows[::-1], how)
        rows = desk.take(9)
        assert [row.id for row in rows] == order


def test_trap_priority_when_delays_end_together(desk: Any) -> None:
    """beanstalkd/beanstalkd#400: of delayed jobs whose time comes at once, the priority is not looked at."""
    for n in range(60):
        desk.put(f"{n:02}", priority=59 - n, delay_ms=1000 + n)
    desk.now += 5000
    assert desk.ids() == [f"{n:02}" for n in range(59, -1, -1)]


def test_trap_batch_pop_losing_some(desk: Any) -> None:
    """
    dyno-queues' bulk pop moves ids to the taken one by one, and answers nothing when it meets one that has no payload.

    The others of the batch stay lost until their leases end. Here they arrive.
    """
    for n in range(30):
        desk.put(f"t{n:02}", b"x", priority=n // 10)
    gone = ["t00", "t07", "t10", "t29"]
    desk.client.hdel(f"{desk.prefix}:tasks", *gone)
    taken = [row.id for _ in range(4) for row in desk.take(9)]
    assert sorted([*taken, *gone]) == [f"t{n:02}" for n in range(30)]
    assert desk.counts()["leased"] == 26
    assert desk.client.zcard(f"{desk.prefix}:leased:n0.1") == 26, "nothing is leased that nobody got"
    assert desk.take(9) == []


@pytest.mark.parametrize("place", ["delayed", "ready", "leased", "buried", "expiring"])
def test_trap_entries_with_no_payload(desk: Any, place: str) -> None:
    """Netflix/dyno-queues PR 90: ids in the queue that have no payload, "root cause unknown", at which every pop fails."""
    for name in ("bad", "good"):
        desk.put(name, delay_ms=100 * (place == "delayed"), lease_ms=LEASE_MS, ttl_ms=5000 * (place == "expiring"))
    if place in ("leased", "buried"):
        for row in desk.take(2):
            if place == "buried":
                desk.end(row, "bury")
    desk.client.hdel(f"{desk.prefix}:tasks", "bad")
    desk.now += 100 if place == "delayed" else LEASE_MS
    if place == "expiring":
        desk.now += 5000
        desk.run("queue.sweep", 1, 100)
        assert desk.state("good") == "buried"
    if place in ("buried", "expiring"):
        desk.run("queue.kick", 10, "", "", 0)
    assert desk.ids() == ["good"]
    for verb, args in (("sweep", (1, 100)), ("free", (100,)), ("purge", ("ready", 100)), ("reap", (1, "n0", 1, 100))):
        desk.run(f"queue.{verb}", *args)
    for state in ("delayed", "ready", "leased", "buried"):
        desk.run("queue.peek", state, 100, "")
        desk.run("queue.purge", state, 100)
    desk.client.flushall()  # the damage


REMOVALS = ["ready", "delayed", "leased", "buried", "retried", "acked", "purged", "replaced", "expired"]


@pytest.mark.parametrize("how", REMOVALS)
def test_trap_remove_leaks_the_payload(desk: Any, how: str) -> None:
    """Netflix/dyno-queues PR 109: remove() takes the id out of the queue and leaves the payload in the store, for ever."""
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
        assert names == {"shard", "counts"}, "nothing is left but the queue's own record"


def test_trap_the_same_id_twice_in_a_batch(desk: Any) -> None:
    """Netflix/dyno-queues#84: an id was fetched ahead twice, and so handed out twice."""
    for n in range(50):
        desk.put(f"t{n:02}", priority=n % 3, delay_ms=n % 2)
        desk.put(f"t{n:02}", priority=n % 5)  # the same again, which changes nothing
    desk.now += 5
    many = desk.run("queue.take", 200, *(7, 0, 0, "") * 5, *(1, 0, 0, "t49"), *(50, 0, 0, ""))
    ids = Counter(row[0] for rows in many for row in rows)
    assert len(ids) == 50
    assert set(ids.values()) == {1}


def test_trap_a_delay_longer_than_the_lease(desk: Any) -> None:
    """
    celery/celery#2599 #4400, Bogdanp/dramatiq#431: what is to be done later than the visibility timeout is done several times.

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
    return sum(row["calls"] for name, row in desk.client.info("commandstats").items() if name != "cmdstat_config|resetstat")


@pytest.mark.parametrize("kind", ["delayed", "buried", "leased", "of lower priority", "of another deadline"])
def test_trap_takes_that_cost_what_lies_beside(desk: Any, kind: str) -> None:
    """tarantool/queue#63 #98 #105: a take walks over all that cannot be taken; with most tasks delayed it takes an hour of CPU."""
    costs = []
    for n in range(3):
        size = (10, 10, 3000)[n]
        for m in range(0, size, 500):
            batch = range(m, min(m + 500, size))
            fields = {
                "delayed": {"delay_ms": HOUR_MS},
                "of lower priority": {"priority": 99},
                "of another deadline": {"within_ms": 2 * HOUR_MS},
            }.get(kind, {"lease_ms": HOUR_MS})
            desk.put_all(*((f"{n}-{number}", b"", fields) for number in batch))
            if kind in ("leased", "buried"):
                rows = desk.take(500, holder="n1.1")
                if kind == "buried":
                    desk.run("queue.end", *(value for row in rows for value in (row.id, row.lease, "bury", -1, "")))
        desk.put(f"mine{n}", b"x", priority=1)

        def cycle(n: int = n) -> None:
            row = desk.take_one()
            assert row.id == f"mine{n}"
            assert desk.ack(row) == [1]

        costs.append(calls_of(desk, cycle))
    assert costs[2] <= costs[1] + 3, "a band of the order more or less, by whose turn it is"


def test_trap_clock_stepped_back(desk: Any) -> None:
    """An hour back, as by an administrator: leases go on, numbers still grow, what was ready is handed out, nothing is done early."""
    for name in ("held", "later", "waits"):
        desk.put(name, lease_ms=LEASE_MS, delay_ms=500 * (name == "later"), priority=10 if name == "held" else 50)
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
    """An hour on: every lease is over at once. Who still works is told so by the number, and nothing counts twice."""
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


class WrongClock(SystemClock):
    """The clock of a host that is five hours ahead."""

    def unix_ms(self) -> int:
        return super().unix_ms() + 5 * HOUR_MS


async def test_trap_nodes_whose_clocks_differ(node: Any) -> None:
    """dyno-queues compares the times of its clients' clocks; here every time is the store's."""
    right, wrong = await node("n0"), await node("n1", clock=WrongClock())
    await wrong.queues.put("q", NewTask(id="a", delay_ms=80, ttl_ms=60_000))
    await right.queues.put("q", NewTask(id="b", delay_ms=80, ttl_ms=60_000))
    assert await wrong.queues.take(wrong.queues.open_session(), ["q"]) == []
    for n, expected in ((right, "a"), (wrong, "b")):
        (task,) = await n.queues.take(n.queues.open_session(), ["q"], wait_ms=60_000, lease_ms=HOUR_MS)
        assert task.id == expected
    assert await right.queues.take(right.queues.open_session(), ["q"]) == [], "the lease of the other goes on"


async def test_trap_ensure_not_atomic(node: Any, eventually: Any) -> None:
    """
    dyno-queues' ensure() looks whether the message is there and then pushes it: of two that do so at once, both push.

    Many puts of one id through two nodes, while a consumer takes and acknowledges: it is there once, and is done once.
    """
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.configure("q", {"shards": 4})
    await n1.queues.shards("q")
    await eventually(lambda: len(n1.queues._shards["q"]) == 4)
    done: list[str] = []
    stop = asyncio.Event()

    async def consume(n: Any) -> None:
        session = n.queues.open_session()
        while not stop.is_set():
            for task in await n.queues.take(session, ["q"], count=3, wait_ms=50):
                done.append(task.id)
                assert await n.queues.ack(session, "q", [(task.id, task.lease)]) == [1]

    consumers = [asyncio.ensure_future(consume(n)) for n in (n0, n1)]
    for round_number in range(10):
        puts = [n.queues.put("q", NewTask(id=f"t{round_number}")) for _ in range(10) for n in (n0, n1)]
        assert set(await asyncio.gather(*puts)) == {f"t{round_number}"}
    while len(set(done)) < 10:
        await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*consumers)
    assert sorted(done) == [f"t{n}" for n in range(10)]
    assert (await n0.queues.stats("q"))["count_put"] == 10


async def test_trap_the_same_id_in_several_shards(node: Any, eventually: Any) -> None:
    """dyno-queues' default strategy, by its own test: an id pushed three times is popped once by shard."""
    n0, n1 = await node("n0"), await node("n1")
    await n0.queues.configure("q", {"shards": 8})
    await n1.queues.shards("q")
    await eventually(lambda: len(n1.queues._shards["q"]) == 8)
    for n in (n0, n1, n0):
        await n.queues.put("q", NewTask(id="a"))
    taken = await n1.queues.take(n1.queues.open_session(), ["q"], count=10)
    assert [task.id for task in taken] == ["a"]
    assert await n0.queues.take(n0.queues.open_session(), ["q"], count=10) == []


def test_trap_ack_racing_the_lease_end(desk: Any) -> None:
    """Netflix/conductor#756: an ack that comes with the timer. Either it counts, or the task goes on; never both, never neither."""
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


async def test_trap_duplicate_delivery_after_batch_pop(node: Any) -> None:
    """
    Netflix/conductor#756: a pop of a hundred races the timer that gives back what was not acknowledged in time.

    Takes in batches under leases about as long as the work, two sweeps at once: a lease that has ended counts for nothing,
    each task counts once, each number is given once.
    """
    n0, n1 = await node("n0"), await node("n1")
    total, counted, numbers = 300, Counter[str](), list[int]()
    await asyncio.gather(*(n0.queues.put("q", NewTask(id=f"t{n:03}")) for n in range(total)))

    async def consume(n: Any, work_s: float) -> None:
        session = n.queues.open_session()
        while sum(counted.values()) < total:
            tasks = await n.queues.take(session, ["q"], count=100, wait_ms=100, lease_ms=30)
            numbers.extend(task.lease for task in tasks)
            await asyncio.sleep(work_s)
            if tasks:
                answers = await n.queues.ack(session, "q", [(task.id, task.lease) for task in tasks])
                counted.update(task.id for task, answer in zip(tasks, answers, strict=True) if answer)

    async def sweep(n: Any) -> None:
        while sum(counted.values()) < total:
            await n.queues.script("queue.sweep", "q", 0, [1, 100])

    n1.queues.holder = n0.queues.holder  # two that believe in one epoch
    async with asyncio.timeout(60):
        await asyncio.gather(
            *(consume(n, work_s) for n in (n0, n1) for work_s in (0.0, 0.028, 0.03, 0.032)), sweep(n0), sweep(n1)
        )
    assert set(counted.values()) == {1}
    assert len(counted) == total
    assert len(numbers) == len(set(numbers))
    assert (await n0.queues.stats("q"))["total"] == 0


async def test_trap_an_orphan_is_rescued_and_runs_twice(node: Any) -> None:
    """
    oban-bg/oban#603 #424: a job that runs for long is taken for an orphan and started anew, and both runs are recorded.

    Who touches keeps it; who did not cannot finish, fail, touch or put aside what somebody else holds now.
    """
    n0, n1 = await node("n0"), await node("n1")
    slow, other = n0.queues.open_session(), n1.queues.open_session()
    await n0.queues.put("q", NewTask(id="a"))
    (task,) = await n0.queues.take(slow, ["q"], lease_ms=60)
    end_ms = await n0.queues.touch(slow, "q", "a", task.lease, 5_000)
    assert end_ms > task.lease_end_ms
    assert await n1.queues.take(other, ["q"], wait_ms=150) == [], "it was prolonged"
    await n0.queues.touch(slow, "q", "a", task.lease, 1)
    (again,) = await n1.queues.take(other, ["q"], wait_ms=60_000)
    assert again.lease > task.lease
    assert await n0.queues.ack(slow, "q", [("a", task.lease)]) == [0]
    for late in (n0.queues.release, n0.queues.fail, n0.queues.bury, n0.queues.touch):
        with pytest.raises(NotHeld):
            await late(slow, "q", "a", task.lease)
    await n0.queues.close_session(slow)
    assert await n1.queues.ack(other, "q", [("a", again.lease)]) == [1]

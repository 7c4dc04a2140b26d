"""
Takes and pages of long payloads: a reply has a bound, nobody gets nothing for it, and the order
stays.
"""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.queue import TaskSpec

MIB = 1 << 20
FIT = 16  # of a MiB each: the reply ends with the task that goes past 16 MiB


def filled(desk: Any, count: int = 22, **fields: Any) -> list[str]:
    ids = [f"t{n:02}" for n in range(count)]
    for n, task_id in enumerate(ids):
        desk.put(task_id, b"x" * MIB, deadline_ms=desk.now + 1000 + n, **fields)
    return ids


def test_a_take_is_cut_and_the_rest_is_ready(desk: Any) -> None:
    ids = filled(desk)
    found: list[str] = []
    sizes = []
    while rows := desk.take(1000):
        sizes.append(len(rows))
        found += [row.id for row in rows]
        assert all(len(row.payload) == MIB for row in rows)
    assert found == ids
    assert sizes == [FIT, 22 - FIT]


@pytest.mark.thorough
def test_over_priorities_and_behind_small_ones(desk: Any) -> None:
    for n in range(100):
        desk.put(f"s{n:02}", b"small", priority=1)
    ids = filled(desk, 20, priority=2)
    desk.put("last", b"small", priority=3)
    first = [row.id for row in desk.take(1000)]
    assert first == [f"s{n:02}" for n in range(100)] + ids[:FIT]
    assert [row.id for row in desk.take(1000)] == [*ids[FIT:], "last"]


def test_each_of_many_takers_gets_one(desk: Any) -> None:
    """However long the first ones' tasks are."""
    ids = filled(desk)
    wants = [(1000, 0, "0", "")] + [(1, 0, "0", "")] * 20 + [(5, 0, "0", "")]
    items = desk.run("queue.take", 200, *(value for want in wants for value in want))
    counts = [len(item) for item in items]
    assert counts == [1] * 22
    assert [row[0].decode() for item in items for row in item] == ids[:22]


def test_lanes(desk: Any) -> None:
    desk.run("queue.configure", "lane_limit", 100)
    ids = filled(desk, 20, lane="a")
    rows = desk.take(1000)
    assert [row.id for row in rows] == ids[: len(rows)]
    assert FIT <= len(rows) <= FIT + 1
    assert [row.id for row in desk.take(1000)] == ids[len(rows) :]


@pytest.mark.thorough
@pytest.mark.parametrize("state", ["ready", "delayed", "waiting"])
async def test_a_page_is_short_and_the_next_goes_on(node: Any, state: str) -> None:
    n0 = await node()
    await n0.queues.admin.configure("q", {"shards": 2 if state == "ready" else 1})
    options = {"ready": {}, "delayed": {"delay_ms": 60_000}, "waiting": {"lane": "a"}}[state]
    count = 38 if state == "ready" else 20
    for n in range(count):
        await n0.queues.put("q", TaskSpec(payload=b"x" * MIB, id=f"t{n:02}", **options))
    found: list[str] = []
    sizes, after = [], ""
    while True:
        tasks, after = await n0.queues.admin.page("q", state, 1000, after)
        sizes.append(len(tasks))
        found += [task["id"] for task in tasks]
        if not after:
            break
    lanes = 1 if state == "waiting" else 0  # its head stands in ready
    assert len(found) == len(set(found)) == count - lanes
    assert len(sizes) > 1
    assert max(sizes) <= 2 * FIT


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.parametrize("name", ["queue.kick", "queue.delete_buried"])
@pytest.mark.parametrize("named", [False, True])
def test_of_buried_ones_a_script_reads_few(
    desk: Any, name: str, lane: str | None, named: bool
) -> None:
    """What a removal has not to read it does not; the next call goes on where this one ended."""
    ids = filled(desk, 20, lane=lane)
    for task_id in ids:
        desk.end(desk.take_one(task_id=task_id), "bury", reason="odd")
    desk.put("ready", lane=lane)
    reads = lane is not None or name == "queue.kick"
    some, sizes, rank = ["none", *ids] if named else [], [], 0
    while rank >= 0:
        args = (1000, "", "odd", 0 if named else rank, 0, 0, 1, *some)
        done, rank = desk.run(name, *args)
        sizes.append(done)
        some = some[rank:] if rank > 0 else some
    assert sizes == ([FIT, 20 - FIT] if reads else [20])


async def test_all_that_are_named_are_dealt_with(node: Any) -> None:
    queues = (await node()).queues
    ids = [f"t{n:02}" for n in range(20)]
    for task_id in ids:
        await queues.put("q", TaskSpec(payload=b"x" * MIB, id=task_id))
    session = queues.open_session()
    for name in (queues.buried.kick, queues.buried.delete):
        for task_id in ids:
            (task,) = await queues.take(session, ["q"], task_id=task_id)
            await queues.bury(session, "q", task.id, task.lease)
        await queues.put("q", TaskSpec(id="ready", lane="a"))
        assert await name("q", ids=["none", *ids, *ids]) == 20
    assert (await queues.admin.stats("q"))["total"] == 1

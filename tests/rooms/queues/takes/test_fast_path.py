"""The plain put, take and ack: the same as the ordinary ones, without the futures between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import parked_in, transport_of

from tidewarden.config.settings import Limits
from tidewarden.errors import StoreDown
from tidewarden.queue import TaskSpec

LONG_MS = 60_000
NEVER_LEASE = 2**53


class Box:
    """A receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def done(self) -> bool:
        return bool(self.got)

    def set_result(self, result: Any, /) -> None:
        self.got.append(result)

    set_exception = set_result


@pytest.fixture
async def n0(node: Any) -> Any:
    made = await node()
    await made.queues.catalog.shard_count("q")
    return made


async def put(n: Any, eventually: Any, payload: bytes = b"x") -> str:
    box = Box()
    task_id = n.queues.fast_path.put(b"q", payload, box)
    await eventually(box.done)
    assert box.got == [1]
    return task_id


async def test_put_take_ack(n0: Any, eventually: Any) -> None:
    queues, session, taken, acked = n0.queues, n0.queues.open_session(), Box(), [Box(), Box()]
    task_id = await put(n0, eventually, b"\x00\r\n")
    queues.fast_path.take(session, b"q", 0, taken)
    await eventually(taken.done)
    (task,) = taken.got[0]
    assert (task.queue, task.id, task.payload, task.attempt) == ("q", task_id, b"\x00\r\n", 1)
    assert session.held.keys() == {("q", task_id)}
    assert session.held["q", task_id][:2] == (task.lease, task.lease_end_ms)
    assert task.deadline_ms < task.lease_end_ms
    for box, number in zip(acked, (task.lease, task.lease + 1), strict=True):
        queues.fast_path.ack(session, b"q", task_id.encode(), number, box)
    assert session.held == {}
    await eventually(lambda: all(box.done() for box in acked))
    assert [box.got for box in acked] == [[1], [0]]


async def test_what_is_not_plain_goes_the_ordinary_way(n0: Any) -> None:
    queues, session, box = n0.queues, n0.queues.open_session(), Box()
    await queues.admin.configure("wide", {"shards": 2})
    await queues.put("_system", TaskSpec(b""))
    for queue in (b"unknown", b"wide", b"_system", b"\xff"):
        assert queues.fast_path.put(queue, b"", box) is None
        assert queues.fast_path.take(session, queue, 0, box) is None
        assert queues.fast_path.ack(session, queue, b"a", 1, box) is None
    assert queues.fast_path.put(b"q", b"x" * (Limits().payload_bytes + 1), box) is None
    assert queues.fast_path.take(session, b"q", Limits().wait_ms + 1, box) is None
    assert queues.fast_path.ack(session, b"q", b"a", NEVER_LEASE, box) is None
    assert queues.fast_path.ack(session, b"q", b"\xff", 1, box) is None
    assert not box.got


async def test_a_queue_that_is_cut_anew_is_not_served_by_its_old_shard(
    n0: Any, eventually: Any
) -> None:
    assert n0.queues.fast_path.take(n0.queues.open_session(), b"q", 0, Box()) is not None
    await n0.queues.admin.configure("q", {"shards": 2})
    assert n0.queues.fast_path.put(b"q", b"", Box()) is None


async def test_a_take_that_finds_nothing_ends_at_once_or_waits(n0: Any, eventually: Any) -> None:
    queues, session, empty, short, woken = n0.queues, n0.queues.open_session(), Box(), Box(), Box()
    queues.fast_path.take(session, b"q", 0, empty)
    queues.fast_path.take(session, b"q", 20, short)
    await eventually(short.done)
    assert (empty.got, short.got) == ([[]], [[]])
    queues.fast_path.take(session, b"q", LONG_MS, woken)
    await eventually(lambda: parked_in(n0.queues, "q"))
    assert queues.consumer.waiting() == 1
    task_id = await put(n0, eventually)
    await eventually(woken.done)
    assert [task.id for task in woken.got[0]] == [task_id]
    assert list(session.held) == [("q", task_id)]
    assert queues.consumer.waiting() == 0


async def test_a_plain_put_takes_a_plain_take_that_waits_along(
    n0: Any, eventually: Any, asked_of: Any
) -> None:
    queues, boxes = n0.queues, [Box() for _ in range(50)]
    for box in boxes:
        queues.fast_path.take(queues.open_session(), b"q", LONG_MS, box)
    await eventually(lambda: len(parked_in(n0.queues, "q")) == 50)
    asked_of.clear()
    names = [await put(n0, eventually) for _ in range(3)]
    await eventually(lambda: all(box.done() for box in boxes[:3]))
    assert [box.got[0][0].id for box in boxes[:3]] == names
    assert (asked_of.calls(n0), asked_of.takes(n0)) == (3, 3)
    queues.end_waits()


@pytest.mark.parametrize("parked", [False, True])
async def test_a_cancelled_take_takes_nothing(n0: Any, eventually: Any, parked: bool) -> None:
    queues, session, box = n0.queues, n0.queues.open_session(), Box()
    if not parked:
        await put(n0, eventually)
    take = queues.fast_path.take(session, b"q", LONG_MS, box)
    if parked:
        await eventually(lambda: parked_in(n0.queues, "q"))
    take.cancel()
    take.cancel()
    await eventually(box.done)
    assert [type(got) for got in box.got] == [asyncio.CancelledError]
    if parked:
        await put(n0, eventually)
    (task,) = await queues.take(queues.open_session(), ["q"], wait_ms=LONG_MS)
    assert task.attempt == 1
    assert session.held == {}
    assert len(box.got) == 1


async def test_what_comes_for_a_session_that_closed_goes_back_uncounted(
    n0: Any, eventually: Any
) -> None:
    queues, session, box = n0.queues, n0.queues.open_session(), Box()
    await put(n0, eventually)
    queues.fast_path.take(session, b"q", 0, box)
    await queues.close_session(session)
    (task,) = await queues.take(queues.open_session(), ["q"], wait_ms=LONG_MS)
    assert task.attempt == 1
    assert [type(got) for got in box.got] == [asyncio.CancelledError]


async def test_nothing_new_waits_at_a_node_that_goes_down(n0: Any, eventually: Any) -> None:
    box, parked = Box(), Box()
    n0.queues.fast_path.take(n0.queues.open_session(), b"q", LONG_MS, parked)
    await eventually(lambda: parked_in(n0.queues, "q"))
    n0.queues.fast_path.take(n0.queues.open_session(), b"q", LONG_MS, box)
    n0.queues.end_waits()
    await eventually(box.done)
    assert (box.got, parked.got) == ([[]], [[]])


async def test_a_waiting_take_outlives_the_stores_absence(n0: Any, eventually: Any) -> None:
    queues, waiting, hasty = n0.queues, Box(), Box()
    queues.fast_path.take(queues.open_session(), b"q", LONG_MS, waiting)
    queues.fast_path.take(queues.open_session(), b"q", 0, hasty)
    transport_of(n0.link).abort()
    await eventually(hasty.done)
    assert isinstance(hasty.got[0], StoreDown)
    task_id = await put(n0, eventually)
    await eventually(waiting.done)
    assert [task.id for task in waiting.got[0]] == [task_id]


async def test_an_ack_of_unknown_end_leaves_the_task_held(n0: Any, eventually: Any) -> None:
    queues, session, taken, acked = n0.queues, n0.queues.open_session(), Box(), Box()
    await put(n0, eventually)
    queues.fast_path.take(session, b"q", 0, taken)
    await eventually(taken.done)
    held = dict(session.held)
    queues.fast_path.ack(session, b"q", taken.got[0][0].id.encode(), taken.got[0][0].lease, acked)
    transport_of(n0.link).abort()
    await eventually(acked.done)
    assert isinstance(acked.got[0], StoreDown)
    assert session.held == held


async def test_a_full_queue_says_so(n0: Any, eventually: Any) -> None:
    await n0.queues.admin.configure("q", {"capacity": 1})
    await put(n0, eventually)
    box = Box()
    n0.queues.fast_path.put(b"q", b"", box)
    await eventually(box.done)
    assert box.got == [b"FULL"]


async def test_under_a_shared_session_the_lease_is_the_sessions(n0: Any, eventually: Any) -> None:
    queues, first, box = n0.queues, n0.queues.open_session(), Box()
    uuid = await queues.join_session(first, "default")
    await put(n0, eventually)
    assert queues.fast_path.take(first, b"q", 0, box) is None, (
        "the session's record does not name this shard yet"
    )
    (task,) = await queues.take(first, ["q"])
    await queues.release(first, "q", task.id, task.lease)
    queues.fast_path.take(first, b"q", 0, box)
    await eventually(box.done)
    second = queues.open_session()
    await queues.join_session(second, "default", uuid)
    await queues.close_session(first)
    acked = Box()
    queues.fast_path.ack(second, b"q", box.got[0][0].id.encode(), box.got[0][0].lease, acked)
    await eventually(acked.done)
    assert acked.got == [1]
    await queues.close_session(second)


async def test_a_waiting_take_at_a_shard_that_another_node_cut_ends_empty(
    n0: Any, node: Any, eventually: Any
) -> None:
    n1 = await node("n1")
    await n1.queues.catalog.shard_count("q")
    await n1.ears.stop()
    await n0.queues.admin.configure("q", {"shards": 2})
    waiting, hasty = Box(), Box()
    n1.queues.fast_path.take(n1.queues.open_session(), b"q", LONG_MS, waiting)
    assert n1.queues.fast_path.take(n1.queues.open_session(), b"q", 0, hasty) is not None
    put_box = Box()
    task_id = n1.queues.fast_path.put(b"q", b"x", put_box)
    await eventually(lambda: waiting.done() and hasty.done() and put_box.done())
    assert waiting.got == [[]]
    assert type(hasty.got[0]).__name__ == "Resharded"
    assert put_box.got == [1]
    assert [
        t.id for t in await n0.queues.take(n0.queues.open_session(), ["q"], wait_ms=LONG_MS)
    ] == [task_id]

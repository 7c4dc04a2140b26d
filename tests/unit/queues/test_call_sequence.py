"""Calls of which nobody knows whether they ran are sent again, in their order, under their number."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from support.queues.seat import NOTHING, Seat, turn
from support.store.lanes import HandLink

from tidewarden.errors import Stale, StoreDown
from tidewarden.queue.shards import call_sequence
from tidewarden.queue.shards.reply_durability import Unconfirmed
from tidewarden.queue.shards.resharding import Resharded
from tidewarden.store.connection import PATIENCE_S
from tidewarden.store.durability.set_commit import ANSWERS
from tidewarden.store.reply_errors import error_of

ROW = [b"a", 5, b"1", 1, 0, 0, 0]
"""Of a task that was taken."""


@pytest.fixture
async def seat() -> Seat:
    return Seat()


def serials(sent: list[bytes]) -> list[tuple[int, int]]:
    """Stream and number of each numbered call, as they were sent."""
    found = re.findall(rb"n0\.1#(\d+)\.(\d+)", b"".join(sent))
    return [(int(stream), int(number)) for stream, number in found]


def links_of(seat: Seat) -> list[HandLink]:
    """All connections to the store."""
    return [seat.data, *seat.lanes.links]


def all_sent(seat: Seat) -> list[bytes]:
    """What was sent on any of them."""
    return [one for link in links_of(seat) for one in link.sent]


async def put_and_take(seat: Seat) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
    """A put and a take in one call, whose answers wait to be confirmed."""
    put, taken = seat.shard.put("a", "", b"1"), asyncio.get_running_loop().create_future()
    seat.shard.take(taken, 1, 0, 0)
    await turn()
    seat.lane.answer([7, -1, 0, [[1], [[ROW]]]])
    await turn()
    return put, taken


async def held_and_lost(
    seat: Seat,
) -> tuple[asyncio.Future[Any], HandLink, asyncio.Future[Any]]:
    """A put whose answer waits to be confirmed, on that lane, and one that is lost behind it."""
    first = seat.shard.put("a", "", b"1")
    await turn()
    lane = seat.lane
    second = seat.shard.put("b", "", b"1")
    lane.answer(NOTHING)
    await turn()
    (other,) = (link for link in seat.lanes.under_way if link is not lane)
    other.lose()
    return first, lane, second


def owing(seat: Seat) -> HandLink:
    """The one connection on which a numbered call waits for its answer."""
    (link,) = (
        one for one in links_of(seat) if len(one.waiting) % ANSWERS and serials(one.sent[-1:])
    )
    return link


def moved(seat: Seat) -> None:
    """Another server has taken over, and all connections lead there."""
    for link in links_of(seat):
        link.view, link.run_id = link.view + 1, f"r{link.view + 1}"
        link.lose()


async def settle(seat: Seat) -> None:
    """Confirm whatever waits for that alone."""
    for _ in range(5):
        for link in seat.lanes.under_way:
            if len(link.waiting) == ANSWERS:
                link.confirm()
        await turn()


async def test_a_lost_call_is_sent_again_under_its_number(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    await turn()
    first = serials(seat.lane.sent)
    seat.lane.lose()
    await turn()
    again = owing(seat)
    assert serials(again.sent[-1:]) == first
    again.answer(NOTHING)
    await settle(seat)
    assert await put == 1


@pytest.mark.parametrize("answer", ["put", "ack", "end"])
async def test_one_that_had_run_has_the_answer_that_it_had(seat: Seat, answer: str) -> None:
    ways: dict[str, Any] = {
        "put": lambda: seat.shard.put("a", "", b"1"),
        "ack": lambda: seat.shard.ack("a", 5),
        "end": lambda: seat.shard.end("a", 5, "release"),
    }
    asked = ways[answer]()
    await turn()
    seat.lane.lose()
    await turn()
    owing(seat).answer(error_of("APPLIED 0"))
    await turn()
    assert not asked.done(), "it is not known to last"
    await settle(seat)
    assert await asked == 1


@pytest.mark.parametrize(("said", "sure"), [(1, "ack"), (2, "put"), (3, "")])
async def test_what_does_not_follow_is_not_known(seat: Seat, said: int, sure: str) -> None:
    asked = {"put": seat.shard.put("a", "", b"1"), "ack": seat.shard.ack("b", 5)}
    await turn()
    seat.lane.lose()
    await turn()
    owing(seat).answer(error_of(f"APPLIED {said}"))
    await settle(seat)
    for name, one in asked.items():
        if name == sure:
            assert await one == 1
        else:
            with pytest.raises(StoreDown, match="the connection was lost"):
                await one


async def test_an_answer_that_a_new_primary_may_lack_is_asked_for_again(seat: Seat) -> None:
    put, taken = await put_and_take(seat)
    moved(seat)
    await settle(seat)
    assert list(seat.shard.leases()) == [("a", 5)], "nobody else may take it for lost"
    owing(seat).answer(error_of("APPLIED 0"))
    await settle(seat)
    assert [await put, await taken] == [1, [ROW]]
    assert list(seat.shard.leases()) == []


async def test_what_a_new_primary_lacks_is_run_there_in_order(seat: Seat) -> None:
    """The later one comes there first, finds a gap, and stands behind the earlier."""
    first = seat.shard.put("a", "", b"1")
    await turn()
    seat.lane.answer(NOTHING)
    await turn()
    moved(seat)
    second = seat.shard.ack("b", 5)
    await turn()
    stream, number = serials(all_sent(seat))[-1]
    assert number == 2
    owing(seat).answer(error_of("GAP 0"))
    await settle(seat)
    again = owing(seat)
    assert serials(again.sent[-1:]) == [(stream, 1)]
    assert b"queue_put" in again.sent[-1]
    again.answer(NOTHING)
    await settle(seat)
    assert await first == 1
    again = owing(seat)
    ((later, number),) = serials(again.sent[-1:])
    assert (later > stream, number) == (True, 1)
    again.answer(NOTHING)
    await settle(seat)
    assert await second == 1


async def test_nothing_new_is_sent_before_what_is_sent_again(seat: Seat) -> None:
    first, lane, second = await held_and_lost(seat)
    new = seat.shard.put("c", "", b"1")
    await turn()
    sent = b"".join(all_sent(seat))
    assert (sent.count(b"queue_put"), b"\r\nc\r\n" in sent) == (2, False), (
        "the first may be lost, too"
    )
    lane.confirm()
    await turn()
    assert await first == 1
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert b"\r\nc\r\n" in owing(seat).sent[-1]
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert [await second, await new] == [1, 1]


@pytest.mark.parametrize(
    "reply",
    [
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
    ],
)
async def test_a_server_that_takes_no_writes_is_asked_again(
    seat: Seat, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_sequence, "AGAIN_S", 0.0)
    put, touch = seat.shard.put("a", "", b"1"), seat.shard.touch("b", 5, 0)
    await turn()
    refused = error_of(reply)
    seat.lane.answer(refused, refused)
    await settle(seat)
    await asyncio.sleep(0.01)
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert await put == 1
    for link in seat.lanes.links:
        if link.waiting:
            link.answer([7, -1, 0, [99]])
    await settle(seat)
    assert await touch == 99


async def test_a_refusal_is_told_and_the_next_call_begins_a_stream(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    await turn()
    ((stream, _),) = serials(seat.lane.sent)
    seat.lane.answer(error_of("STALE n0.1 was declared dead"))
    await settle(seat)
    with pytest.raises(Stale):
        await put
    later = seat.shard.put("b", "", b"1")
    await turn()
    ((began, number),) = serials(owing(seat).sent[-1:])
    assert (began > stream, number) == (True, 1)
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert await later == 1


async def test_it_ends_after_a_while_with_what_is_so(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_sequence, "PATIENCE_S", 0.05)
    put = seat.shard.put("a", "", b"1")
    await turn()
    seat.lane.lose()
    await turn()
    await asyncio.sleep(0.06)
    owing(seat).lose()
    with pytest.raises(StoreDown, match="the connection was lost"):
        await put
    later = seat.shard.put("b", "", b"1")
    await turn()
    owing(seat).answer(error_of("GAP 0"))
    await settle(seat)
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert await later == 1


async def test_one_whose_place_in_the_sequence_is_lost_is_not_known(seat: Seat) -> None:
    """As where the record was emptied, or another of this node began a stream since."""
    put = seat.shard.put("a", "", b"1")
    await turn()
    seat.lane.lose()
    await turn()
    owing(seat).answer(error_of("GAP 0"))
    with pytest.raises(StoreDown, match="the connection was lost"):
        await put


async def test_what_is_no_call_of_the_sequence_is_told_as_before(seat: Seat) -> None:
    lock = seat.shard.batched("queue.lock_release", "a", 5)  # its answer is no 1
    await turn()
    assert not serials(seat.lane.sent)
    seat.lane.lose()
    with pytest.raises(StoreDown):
        await lock


async def test_a_queue_that_waits_for_nobody_numbers_nothing(seat: Seat) -> None:
    seat.shard.gate.commit = None
    put = seat.shard.put("a", "", b"1")
    await turn()
    assert not serials(seat.data.sent)
    seat.data.lose()
    with pytest.raises(StoreDown):
        await put


def test_streams_grow_also_where_the_clock_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_sequence.time, "time_ns", lambda: 0)
    streams = call_sequence.Streams()
    first, second, third = streams.begin(0), streams.begin(0), streams.begin(1000)
    assert first < second < 1000 < third


async def test_an_answer_of_a_server_that_is_gone_is_not_told_of_what_ran_elsewhere(
    seat: Seat,
) -> None:
    """Where it ran next it may have been refused, and that answer was lost as well."""
    put = seat.shard.put("a", "", b"1")
    await turn()
    seat.lane.answer(NOTHING)
    await turn()
    moved(seat)
    await settle(seat)
    owing(seat).lose()
    await settle(seat)
    owing(seat).answer(error_of("APPLIED 1"))
    await settle(seat)
    with pytest.raises(StoreDown):
        await put


async def test_once_a_part_was_told_the_call_is_sent_no_more(seat: Seat) -> None:
    put, ack = seat.shard.put("a", "", b"1"), seat.shard.ack("b", 5)
    await turn()
    seat.lane.lose()
    await turn()
    owing(seat).answer(error_of("APPLIED 1"))
    with pytest.raises(StoreDown):
        await put
    sent = len(serials(all_sent(seat)))
    moved(seat)
    await settle(seat)
    with pytest.raises(Unconfirmed):
        await ack
    assert len(serials(all_sent(seat))) == sent


async def test_tasks_of_an_answer_that_cannot_be_had_again_are_given_back(seat: Seat) -> None:
    put, taken = await put_and_take(seat)
    moved(seat)
    await settle(seat)
    owing(seat).answer(error_of("GAP 9"))
    await settle(seat)
    for asked, item in ((put, 1), (taken, [ROW])):
        with pytest.raises(Unconfirmed) as told:
            await asked
        assert told.value.item == item


async def test_a_call_has_its_number_whatever_the_durability_is_now(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    await turn()
    first = serials(seat.lane.sent)
    lane = seat.lane
    seat.shard.gate.commit = None
    lane.lose()
    await turn()
    assert serials(seat.data.sent[-1:]) == first
    seat.data.answer(NOTHING)
    assert await put == 1


async def test_what_never_ran_is_repeated_in_a_new_cut(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    await turn()
    seat.shard.retire()
    seat.lane.answer(error_of("GAP 9"))
    await settle(seat)
    owing(seat).answer(error_of("RECUT 2 the queue was cut anew"))
    await settle(seat)
    with pytest.raises(Resharded):
        await put


async def test_a_script_by_itself_stays_behind_what_is_sent_again(seat: Seat) -> None:
    first, lane, second = await held_and_lost(seat)
    await turn()
    later, peek = seat.shard.put("c", "", b"1"), seat.shard.run("queue.delete", ("c",))
    await turn()

    def sent(what: bytes) -> int:
        return b"".join(all_sent(seat)).count(what)

    assert (sent(b"queue_delete"), sent(b"\r\nc\r\n")) == (0, 0)
    lane.confirm()
    await turn()
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert [await first, await second] == [1, 1]
    assert sent(b"queue_delete") == 1
    for link in [one for one in links_of(seat) if one.waiting]:
        link.answer(*[NOTHING] * (len(link.waiting) % ANSWERS))
    await settle(seat)
    assert [await later, await peek] == [1, [1]]


async def test_leases_whose_end_is_sent_again_are_no_strays(seat: Seat) -> None:
    first = seat.shard.ack("a", 5)
    await turn()
    lane = seat.lane
    lane.lose()
    await turn()
    second = seat.shard.end("b", 6, "release")
    await turn()
    assert sorted(seat.shard.leases()) == [("a", 5), ("b", 6)]
    owing(seat).answer(NOTHING)
    await settle(seat)
    owing(seat).answer(NOTHING)
    await settle(seat)
    assert [await first, await second] == [1, 1]
    assert not list(seat.shard.leases())


async def test_those_whose_time_has_passed_are_told_together(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    time, later_s = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: time() + later_s[0])
    first = seat.shard.put("a", "", b"1")
    await turn()
    second = seat.shard.put("b", "", b"1")
    seat.lane.answer(NOTHING)
    await turn()
    moved(seat)
    await settle(seat)
    sent = len(serials(all_sent(seat)))
    later_s[0] = 2 * PATIENCE_S
    owing(seat).lose()
    await turn()
    for put in (first, second):
        assert put.done()
        with pytest.raises(StoreDown, match="the connection was lost"):
            await put
    assert len(serials(all_sent(seat))) == sent
    assert (seat.shard.idle, list(seat.shard.leases())) == (True, [])

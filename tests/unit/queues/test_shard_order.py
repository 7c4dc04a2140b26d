"""Calls of one shard by flights and by the link run in the order in which they were made."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from support.queues.seat import NOTHING, Seat, turn

from tidewarden.errors import Error, StoreDown
from tidewarden.queue.background import BackgroundTasks
from tidewarden.queue.shards.shard_group import ShardGroup
from tidewarden.store import StoreConnection


@pytest.fixture
async def seat() -> Seat:
    return Seat()


async def test_a_batch_waits_for_the_answer_of_the_one_before_it_and_not_for_its_group(
    seat: Seat,
) -> None:
    first = seat.shard.put("a", "", b"1")
    await turn()
    before = seat.lane
    second = seat.shard.ack("b", 5)
    await turn()
    assert (seat.lane, len(before.sent), seat.data.sent) == (before, 1, [])
    before.answer(NOTHING)
    await turn()
    assert not first.done(), "its answer is held"
    (after,) = (lane for lane in seat.lanes.under_way if lane is not before)
    assert b"queue_ack" in after.sent[0]
    after.answer(NOTHING)
    after.confirm()
    assert (await second, first.done()) == (1, False)
    before.confirm()
    assert await first == 1


async def test_what_promises_nothing_stays_behind_what_was_asked_before_it(seat: Seat) -> None:
    """Else a PEEK that follows a PUT on a connection would not find it."""
    put = seat.shard.put("a", "", b"1")
    await turn()
    peek, later = seat.shard.run("queue.peek", ("a",)), seat.shard.run("queue.stats", ())
    await turn()
    assert not seat.data.sent
    lane = seat.lane
    lane.answer(NOTHING)
    assert [b"queue_peek" in seat.data.sent[0], b"queue_stats" in seat.data.sent[1]] == [True] * 2
    seat.data.answer([8, -1, 0, "seen"], [9, -1, 0, "counted"])
    assert [await peek, await later] == ["seen", "counted"]
    lane.confirm()
    assert await put == 1


async def test_calls_of_one_turn_share_a_flight_in_their_order(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    peek = seat.shard.run("queue.peek", ("a",))
    end = seat.shard.end("b", 6, "release")
    await turn()
    (sent,) = seat.lane.sent
    assert sent.index(b"queue_put") < sent.index(b"queue_peek")
    assert b"queue_end" not in sent, "it was not batched when the flight left"
    lane = seat.lane
    lane.answer(NOTHING, [8, -1, 0, "seen"])
    lane.confirm()
    assert [await put, await peek] == [1, "seen"]
    await turn()
    lane = seat.lane
    lane.answer(NOTHING)
    lane.confirm()
    assert await end == 1


async def test_behind_a_call_by_the_link_nothing_flies(seat: Seat) -> None:
    peek = seat.shard.run("queue.peek", ("a",))
    put = seat.shard.put("a", "", b"1")
    await turn()
    assert not seat.lanes.under_way
    assert [b"queue_peek" in seat.data.sent[0], b"queue_put" in seat.data.sent[1]] == [True] * 2
    seat.data.answer([8, -1, 0, "seen"], NOTHING)
    ack = seat.shard.ack("a", 5)
    await turn()
    lanes = seat.lanes.under_way
    assert [b"queue_ack" in lane.sent[0] for lane in lanes].count(True) == 1
    for lane in lanes:
        if b"queue_ack" in lane.sent[0]:
            lane.answer(NOTHING)
        lane.confirm()
    assert [await peek, await put, await ack] == ["seen", 1, 1]


async def test_without_a_free_lane_calls_go_by_the_link(seat: Seat) -> None:
    for link in seat.lanes.links:
        link.up = False
    put = seat.shard.put("a", "", b"1")
    await turn()
    assert b"queue_put" in seat.data.sent[0]
    seat.data.answer(NOTHING)
    await turn()
    seat.lane.confirm()
    assert await put == 1


async def test_a_lost_connection_holds_nothing_up(seat: Seat) -> None:
    put = seat.shard.put("a", "", b"1")
    await turn()
    peek = seat.shard.run("queue.peek", ("a",))
    seat.lane.lose()
    assert b"queue_peek" in seat.data.sent[0]
    seat.data.answer([8, -1, 0, "seen"])
    assert await peek == "seen"
    assert not put.done(), "it is sent again"


async def test_a_queue_that_waits_for_nobody_goes_by_the_link(seat: Seat) -> None:
    seat.shard.gate.commit = None
    put = seat.shard.put("a", "", b"1")
    await turn()
    seat.data.answer(NOTHING)
    assert await put == 1
    assert not any(link.sent for link in seat.lanes.links)


def group_of(seat: Seat) -> ShardGroup:
    link, background = cast(StoreConnection, seat.link), BackgroundTasks()
    return ShardGroup(link, seat.scripts, lambda: "n0.1", background)


async def test_shards_asked_together_stay_behind_their_flights_and_before_the_next() -> None:
    """
    A reply that is older than another is told by the clock, which shows whole milliseconds.
    """
    seat = Seat(2)
    group = group_of(seat)
    put = seat.shards[1].put("a", "", b"1")
    await turn()
    asked = asyncio.ensure_future(group.run(seat.shards, "queue.stats", ()))
    await turn()
    assert len(seat.data.sent) == 1, "of the shard that is in no flight"
    lane = seat.lane
    lane.answer(NOTHING)
    seat.data.answer([8, -1, 0, "s0"], [8, -1, 0, "s1"])
    assert await asked == ["s0", "s1"]
    lane.confirm()
    assert await put == 1

    asked = asyncio.ensure_future(group.run(seat.shards, "queue.stats", ()))
    await turn()
    ack = seat.shards[0].ack("a", 5)
    await turn()
    assert not seat.lanes.under_way
    assert [b"queue_stats" in seat.data.sent[-2], b"queue_ack" in seat.data.sent[-1]] == [True] * 2
    seat.data.answer([[9, -1, 0, "s0"], [9, -1, 0, "s1"]], NOTHING)
    assert await asked == ["s0", "s1"]
    await turn()
    seat.lane.confirm()
    assert await ack == 1


async def test_of_queues_asked_together_one_in_a_flight_goes_by_itself() -> None:
    seat = Seat(3)
    group = group_of(seat)
    put = seat.shards[1].put("a", "", b"1")
    await turn()
    asked = [
        asyncio.ensure_future(group.run(shards, "queue.stats", ()))
        for shards in (seat.shards[:2], seat.shards[2:])
    ]
    await turn()
    (sent,) = seat.data.sent
    assert [f"{{tw:q:{n}}}".encode() in sent for n in range(3)] == [True, False, True]
    seat.data.answer([[8, -1, 0, "s0"], [8, -1, 0, "s2"]])
    await turn()
    assert [one.done() for one in asked] == [False, True]
    lane = seat.lane
    lane.answer(NOTHING)
    await turn()
    seat.data.answer([9, -1, 0, "s1"])
    assert await asyncio.gather(*asked) == [["s0", "s1"], ["s2"]]
    lane.confirm()
    assert await put == 1


async def test_a_script_that_fails_at_one_shard_fails_only_who_asked_for_that_one() -> None:
    """It gives no answer of the others, whose queues are asked by themselves then."""
    seat = Seat(2)
    group = group_of(seat)
    runs = (group.run((shard,), "queue.stats", ()) for shard in seat.shards)
    asked = asyncio.gather(*runs, return_exceptions=True)
    await turn()
    fault = Error("user_script:7: attempt to index a nil value")
    seat.data.answer(fault)
    await turn()
    assert len(seat.data.sent) == 3
    seat.data.answer([8, -1, 0, "s0"], fault)
    assert await asked == [["s0"], fault]


async def test_where_the_store_is_away_nobody_asks_again() -> None:
    seat = Seat(2)
    group = group_of(seat)
    runs = (group.run((shard,), "queue.stats", ()) for shard in seat.shards)
    asked = asyncio.gather(*runs, return_exceptions=True)
    await turn()
    seat.data.lose()
    assert [type(one) for one in await asked] == [StoreDown, StoreDown]
    assert len(seat.data.sent) == 1


async def test_who_waits_for_a_call_that_was_cancelled_is_cancelled() -> None:
    seat = Seat(2)
    asked = asyncio.ensure_future(group_of(seat).run(seat.shards, "queue.stats", ()))
    await turn()
    assert len(seat.data.sent) == 1
    (call,) = asyncio.all_tasks() - {asyncio.current_task(), asked}
    call.cancel()
    await asyncio.wait({call})
    await turn()
    assert call.cancelled()
    assert asked.cancelled()

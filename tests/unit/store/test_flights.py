"""Flights: calls of one turn, and what confirms them, in one write on a connection of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.store.lanes import ACKS, ALL, Answer, Call, HandLink, Lanes

from tidewarden.errors import Error, NoQuorum, StoreDown
from tidewarden.store.durability.set_commit import ANSWERS, GROUPS_MAX, LANES
from tidewarden.store.reply_errors import NotSent

Eventually = Callable[..., Awaitable[Any]]


async def turn(times: int = 2) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


@pytest.fixture
async def lanes() -> Lanes:
    return Lanes()


async def answered(lanes: Lanes) -> tuple[Call, HandLink]:
    """A call that has its answer, and the lane that owes the confirmation."""
    call = Call(lanes)
    await turn()
    (lane,) = lanes.under_way
    lane.answer("a")
    return call, lane


async def test_calls_of_one_turn_go_in_one_write_in_their_order(lanes: Lanes) -> None:
    first, second = Call(lanes, b"ONE"), Call(lanes, b"TWO")
    assert not lanes.under_way, "more may board in this turn"
    await turn()
    (lane,) = lanes.under_way
    (sent,) = lane.sent
    assert sent.startswith(b"ONETWO")
    words = [line for line in sent.split(b"\r\n") if line.isalpha() and line.isupper()]
    assert words == [b"FCALL", b"ROLE", b"WAIT", b"ROLE", b"HMGET"]
    assert len(lane.waiting) == 2 + ANSWERS
    lane.answer("a", "b")
    assert (first.got, second.got) == ("a", "b"), "answered before it is confirmed"
    assert not first.answer.end
    lane.confirm()
    assert (first.answer.end, second.answer.end) == ("confirmed", "confirmed")
    assert not lanes.under_way


async def test_the_next_turn_takes_another_lane_until_none_is_left(lanes: Lanes) -> None:
    calls = []
    for count in range(1, len(lanes.links) + 1):
        calls.append(Call(lanes))
        await turn()
        assert len(lanes.under_way) == count
    assert lanes.commit.board() is None
    for link in lanes.links:
        link.answer("a")
        link.confirm()
    assert [call.answer.end for call in calls] == ["confirmed"] * len(calls)
    assert lanes.commit.board() is not None


async def test_what_a_flight_does_not_confirm_the_next_one_on_its_lane_does(
    lanes: Lanes, eventually: Eventually
) -> None:
    call, lane = await answered(lanes)
    lane.confirm(ACKS | {b"n2.cc": 99})
    assert not call.answer.end
    await eventually(lambda: lanes.under_way)
    assert b"WORK" not in lane.sent[1], "no call is repeated"
    lane.confirm()
    assert call.answer.end == "confirmed"


async def test_a_call_that_fails_is_answered_so_and_the_others_are_confirmed(lanes: Lanes) -> None:
    bad, good = Call(lanes), Call(lanes)
    await turn()
    (lane,) = lanes.under_way
    lane.answer(Error("no"), "b")
    lane.confirm()
    assert isinstance(bad.got, Error)
    assert (bad.answer.end, good.answer.end) == ("", "confirmed")


async def test_a_connection_lost_before_the_answer_ends_every_call(
    lanes: Lanes, eventually: Eventually
) -> None:
    first, second = Call(lanes), Call(lanes)
    await turn()
    (lane,) = lanes.under_way
    lane.answer("a")
    lane.lose()
    assert (first.got, type(second.got)) == ("a", StoreDown)
    await eventually(lambda: lanes.under_way)
    lane.confirm()
    assert (first.answer.end, second.answer.end) == ("confirmed", "")


async def test_behind_a_lost_connection_another_server_confirms_nothing(
    lanes: Lanes, eventually: Eventually
) -> None:
    call, lane = await answered(lanes)
    lane.run_id = "r2"
    lane.lose()
    await eventually(lambda: lanes.under_way)
    lane.confirm()
    assert "another server has taken over" in call.answer.end


async def test_a_view_that_has_changed_behind_the_wait_confirms_nothing(
    lanes: Lanes, eventually: Eventually
) -> None:
    """The server may have been made a replica, and the primary again, without this write."""
    call, lane = await answered(lanes)
    lane.view = 3
    lane.confirm()
    assert not call.answer.end
    await eventually(lambda: lanes.under_way)
    lane.confirm()
    assert "another server has taken over" in call.answer.end


async def test_an_answer_of_another_connection_goes_along(lanes: Lanes) -> None:
    elsewhere = Answer()
    for _ in range(GROUPS_MAX):
        Call(lanes)
        await turn()
    assert len(lanes.under_way) == GROUPS_MAX
    lanes.commit.add(lanes.commit.ground(), elsewhere)
    await turn()
    assert len(lanes.under_way) == GROUPS_MAX, "it waits for a flight that is to come"
    call = Call(lanes)
    await turn()
    lane = lanes.links[GROUPS_MAX]
    lane.answer("a")
    assert not elsewhere.end
    lane.confirm()
    assert (elsewhere.end, call.answer.end) == ("confirmed", "confirmed")


async def test_alone_it_goes_at_once_and_without_a_call(lanes: Lanes) -> None:
    elsewhere = Answer()
    lanes.commit.add(lanes.commit.ground(), elsewhere)
    await turn()
    (lane,) = lanes.under_way
    assert len(lane.waiting) == ANSWERS
    lane.confirm()
    assert elsewhere.end == "confirmed"


async def test_a_lane_is_not_used_before_its_server_has_said_who_it_is(lanes: Lanes) -> None:
    for link in lanes.links:
        link.up = False
    assert lanes.commit.board() is None
    lanes.links[1].up = True
    assert lanes.commit.board() is not None
    await turn()


async def test_a_call_sent_again_goes_behind_its_flight_and_is_confirmed_by_another(
    lanes: Lanes,
) -> None:
    """As of a script that the server has not, which goes with its text."""
    call = Call(lanes)
    await turn()
    (lane,) = lanes.under_way
    lane.answer(Error("no such function"))
    call.flight.send(b"AGAIN", call)
    lane.confirm()
    lane.answer("a")
    await turn()
    assert (call.got, call.answer.end) == ("a", "")
    (later,) = lanes.under_way
    later.confirm()
    assert call.answer.end == "confirmed"


async def test_while_the_set_confirms_nothing_for_long_no_call_boards(
    eventually: Eventually,
) -> None:
    lanes = Lanes(limit_ms=50)
    call, lane = await answered(lanes)
    lane.confirm(in_sync=b"")
    assert lanes.commit.board() is not None, "it may be a moment's trouble"

    def refuses() -> bool:
        for one in lanes.under_way:
            one.confirm(in_sync=b"")
        return lanes.commit.board() is None

    await eventually(refuses)
    await eventually(lambda: call.answer.end)
    assert "fewer than a majority" in call.answer.end
    with pytest.raises(NoQuorum):
        lanes.commit.ground()
    await eventually(lambda: lanes.under_way)
    lanes.under_way[0].confirm(in_sync=ALL)
    assert lanes.commit.board() is not None
    await lanes.commit.stop()
    await turn()


async def test_calls_that_have_boarded_are_told_when_it_stops(lanes: Lanes) -> None:
    call = Call(lanes)
    await lanes.commit.stop()
    await turn()
    assert isinstance(call.got, NotSent)
    assert not lanes.under_way
    assert lanes.commit.board() is None


def test_there_is_a_lane_beside_those_of_answers_alone() -> None:
    assert LANES > GROUPS_MAX

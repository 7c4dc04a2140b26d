"""FairShare: shared fairly, and a provider that hangs keeps nobody from beginning."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.limits.fair_share import FairShare


def test_one_may_hold_half_and_always_leaves_room_for_another() -> None:
    seats = FairShare(20)
    assert seats.free("a") == 20
    seats.take("a", 10)
    assert seats.free("a") == 0
    assert seats.free("b") == 10
    seats.take("b", 5)
    assert seats.free("c") == 5
    for _ in range(5):
        seats.leave("a")
    assert seats.free("a") == 5
    assert seats.free("b") == 5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_never_more_than_there_are_and_nobody_is_starved(moves: list[tuple[str, bool]]) -> None:
    seats, held = FairShare(10), {"a": 0, "b": 0, "c": 0}
    for name, takes in moves:
        free = seats.free(name)
        assert 0 <= free <= 10 - sum(held.values())
        if takes and free:
            seats.take(name, free)
            held[name] += free
        elif not takes and held[name]:
            seats.leave(name)
            held[name] -= 1
    for name, n in held.items():
        assert n or seats.free(name) or sum(held.values()) == 10


async def test_whoever_waits_hears_of_a_seat() -> None:
    seats = FairShare(1)
    seats.take("a", 1)
    waiting = asyncio.create_task(seats.wait("b"))
    await asyncio.sleep(0)
    seats.leave("a")
    await asyncio.wait_for(waiting, 20)
    assert seats.free("b") == 1


async def test_of_thousands_that_wait_a_seat_wakes_those_who_waited_longest_and_no_more_than_it_may_serve() -> (
    None
):
    seats, woken = FairShare(100), list[str]()

    async def want(name: str) -> None:
        await seats.wait(name)
        woken.append(name)

    seats.take("hangs", 100)
    tasks = [asyncio.create_task(want(f"p{number:04}")) for number in range(3000)]
    await asyncio.sleep(0)
    for left in range(1, 13):
        seats.leave("hangs")
        for _ in range(3):
            await asyncio.sleep(0)
        assert woken == [f"p{number:04}" for number in range(left * (left + 1) // 2)]
    for _ in range(88):
        seats.leave("hangs")
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert len(woken) == 3000

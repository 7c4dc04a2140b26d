"""FairShare: shared fairly, and a provider that hangs keeps nobody from beginning."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.limits.fair_share import FairShare


def test_one_alone_may_have_all_and_leaves_the_last_tenth_when_another_has_work() -> None:
    seats = FairShare(20)
    assert seats.free("a") == 20
    seats.take("a", 15)
    assert seats.free("b") == 5
    seats.take("b", 1)
    assert seats.free("a") == 2  # Beyond its share, but not the last two.
    seats.take("a", 2)
    assert seats.free("a") == 0
    assert seats.free("b") == 2
    assert seats.free("c") == 2
    for _ in range(5):
        seats.leave("a")
    assert seats.free("b") == 7


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
    if all(held.values()) or sum(1 for n in held.values() if n) > 1:
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

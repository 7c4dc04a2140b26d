"""FairShare: shared fairly, and a provider that hangs keeps nobody from beginning."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from support.inspect import empty_handed_of, held_of

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


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["take", "leave", "wait"])), max_size=100
    )
)
def test_what_is_counted_along_is_what_a_look_at_all_would_find(
    moves: list[tuple[str, str]],
) -> None:
    async def play() -> None:
        seats, held, waiting = (
            FairShare(10),
            dict.fromkeys("abcd", 0),
            dict[str, asyncio.Task[None]](),
        )
        for name, move in moves:
            if move == "take" and seats.free(name):
                seats.take(name, 1)
                held[name] += 1
            elif move == "leave" and held[name]:
                seats.leave(name)
                held[name] -= 1
            elif move == "wait" and name not in waiting:
                waiting[name] = asyncio.create_task(seats.wait(name))
            for _ in range(3):
                await asyncio.sleep(0)
            waiting = {each: task for each, task in waiting.items() if not task.done()}
            for one in "abcd":
                others = sum(
                    1 for each in "abcd" if each != one and (held[each] or each in waiting)
                )
                empty = 10 - sum(held.values())
                share, beyond = (
                    max(1, 10 // (others + 1)) - held[one],
                    empty - 1 if others else empty,
                )
                assert seats.free(one) == max(0, min(empty, max(share, beyond)))
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        assert empty_handed_of(seats) == 0
        assert set(held_of(seats)) == {each for each in "abcd" if held[each]}

    asyncio.run(play())


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
        assert woken == [
            f"p{number:04}"
            for number in range(left if left < 11 else 10 + (left - 10) * (left - 9) // 2)
        ]
    for _ in range(88):
        seats.leave("hangs")
    # When nobody has any, nobody else would wake them.
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    assert len(woken) == 3000

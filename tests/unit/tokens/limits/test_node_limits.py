"""
What the clients of one node share: seats, of which a provider that hangs keeps nobody, hosts' rates
while the store is away, and whether this node's own network is the fault.
"""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.manual_clock import ManualClock

from tidewarden.config.load import Provider
from tidewarden.tokens.limits.circuit_breaker import CircuitBreaker
from tidewarden.tokens.limits.node_limits import FairShare, HostRateLimits, NodeLimits
from tidewarden.tokens.provider.token_response import Verdict


def taken(seats: FairShare, name: str, count: int) -> None:
    for _ in range(count):
        seats.take(name)


def test_one_may_hold_half_and_always_leaves_room_for_another() -> None:
    seats = FairShare(20)
    assert seats.free("a") == 20
    taken(seats, "a", 10)
    assert seats.free("a") == 0
    assert seats.free("b") == 10
    taken(seats, "b", 5)
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
            taken(seats, name, free)
            held[name] += free
        elif not takes and held[name]:
            seats.leave(name)
            held[name] -= 1
    for name, n in held.items():
        assert n or seats.free(name) or sum(held.values()) == 10


async def test_whoever_waits_hears_of_a_seat() -> None:
    seats = FairShare(1)
    seats.take("a")
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

    taken(seats, "hangs", 100)
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


async def test_what_takes_bring_beyond_the_seats_is_worked_off_before_anybody_is_woken() -> None:
    """Each of thousands of takes asks for what is free, and all may find something."""
    seats = FairShare(2)
    for name in "abcde":
        seats.take(name)
    waiting = asyncio.create_task(seats.wait("f"))
    await asyncio.sleep(0)
    for left, name in enumerate("abcd", 1):
        assert (seats.free("f"), waiting.done()) == (0, False)
        seats.leave(name)
        await asyncio.sleep(0)
        assert seats.free("f") == max(0, left - 3)
    await asyncio.wait_for(waiting, 20)


def test_without_the_store_each_node_keeps_to_its_part() -> None:
    living = 4
    hosts = HostRateLimits(nodes=lambda: living)
    some = Provider(name="a", token_url="https://as.example/t", host_rate=40.0)
    hosts.add(some)
    assert sum(hosts.alone(some, 100.0) for _ in range(50)) == 10
    assert sum(hosts.alone(some, 100.1 + turn / 100) for turn in range(100)) in (10, 11)
    living = 2
    assert sum(hosts.alone(some, 102.0 + turn / 100) for turn in range(200)) in range(39, 60)
    living = 0  # not heard yet
    assert sum(hosts.alone(some, 200.0) for _ in range(100)) == 40
    assert hosts.alone(Provider(name="c", token_url="https://other.example/t"), 0.0)


def test_without_the_store_less_than_one_a_second() -> None:
    hosts = HostRateLimits()
    slow = Provider(name="a", token_url="https://as.example/t", host_rate=0.1)
    hosts.add(slow)
    begun = [hosts.alone(slow, now_s) for now_s in (100.0, 100.0, 109.0, 110.0)]
    assert begun == [True, False, False, True]


def test_without_the_store_a_client_whose_rate_is_used_up_takes_nothing_of_its_hosts() -> None:
    hosts = HostRateLimits()
    slow = Provider(name="a", token_url="https://as.example/t", host_rate=2.0, client_rate=1.0)
    other = Provider(name="b", token_url="https://as.example/t", host_rate=2.0)
    for provider in (slow, other):
        hosts.add(provider)
    assert [hosts.alone(slow, 100.0) for _ in range(3)] == [True, False, False]
    assert [hosts.alone(other, 100.0) for _ in range(2)] == [True, False]
    assert [hosts.alone(slow, now_s) for now_s in (100.9, 101.0)] == [False, True]


def test_when_no_provider_answers_the_fault_is_ours() -> None:
    unused: Any = SimpleNamespace(script=None)
    node = NodeLimits(unused, unused, ManualClock(), Random(1))
    silence = Verdict("refused", "provider", answered=False)
    for name in "ab":
        node.breakers[name] = CircuitBreaker(Provider(name=name), 10)
    a, b = node.breakers.values()
    a.ended("x", silence, "silent", 0, known_well=True)
    assert not node.unreachable(0)  # One alone may well be down.
    b.ended("x", silence, "silent", 1, known_well=True)
    assert node.unreachable(1)
    b.answered(2)
    assert not node.unreachable(2)
    assert not node.unreachable(100)  # What was long ago says nothing.

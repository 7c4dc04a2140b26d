"""Lines of waiters: whose turn it is, what wakes it, and how a wait ends."""

from __future__ import annotations

import contextlib
import math

import pytest

from tidewarden.errors import Draining
from tidewarden.queue.waits.drain import Drain
from tidewarden.queue.waits.wait_lines import WaitLines

PAST = 0.0


def lines_of(drain: Drain | None = None) -> WaitLines[str]:
    return WaitLines(drain or Drain())


async def test_the_first_of_each_line_has_its_turn() -> None:
    lines = lines_of()
    with lines.join("a") as first, lines.join("a") as second, lines.join("b") as other:
        assert [turn.event.is_set() for turn in (first, second, other)] == [True, False, True]
        assert lines.waiting == 3
        assert "a" in lines
    assert lines.waiting == 0
    assert "a" not in lines
    assert not lines.by_place


async def test_who_leaves_as_the_first_wakes_the_next_alone() -> None:
    lines = lines_of()
    with contextlib.ExitStack() as left, contextlib.ExitStack() as middle:
        left.enter_context(lines.join("a"))
        middle.enter_context(lines.join("a"))
        with lines.join("a") as third, lines.join("a") as fourth:
            middle.close()
            assert not third.event.is_set(), "it was not the first who left"
            left.close()
            assert third.event.is_set()
            assert not fourth.event.is_set()


async def test_a_message_wakes_the_first_of_its_line() -> None:
    lines = lines_of()
    with lines.join("a") as first, lines.join("a") as second, lines.join("b") as other:
        for turn in (first, other):
            turn.begin()
        lines.wake("elsewhere")
        lines.wake("a")
        assert [turn.event.is_set() for turn in (first, second, other)] == [True, False, False]
        lines.wake_all()
        assert [turn.event.is_set() for turn in (first, second, other)] == [True, False, True]


async def test_a_wait_ends_with_its_time_or_looks_again() -> None:
    lines = lines_of()
    with lines.join("a") as first, lines.join("a") as second:
        await first.wait(PAST)  # it is its turn, however late
        with pytest.raises(TimeoutError):
            await second.wait(PAST)
        with pytest.raises(TimeoutError):
            await second.wait(PAST, math.inf)
        await second.wait(math.inf, PAST)
        assert not second.event.is_set()


async def test_a_node_that_drains_refuses_every_waiter() -> None:
    drain = Drain()
    lines = lines_of(drain)
    with lines.join("a") as first, lines.join("a") as second:
        drain.started = True
        lines.end_waits()
        for turn in (first, second):
            await turn.wait(math.inf)
            with pytest.raises(Draining):
                turn.begin()

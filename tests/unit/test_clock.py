"""The two times, and the clock that tests move by hand."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.manual_clock import ManualClock

from tidewarden.clock import SHARED_S, SystemClock, shared_turn, sleep
from tidewarden.loop_watchdog import LoopWatchdog


async def test_the_machines_clocks() -> None:
    clock = SystemClock()
    assert abs(clock.unix_ms() - time.time() * 1000) < 1000
    before = clock.monotonic()
    await clock.sleep_until(before + 0.01)
    assert clock.monotonic() >= before + 0.01
    await clock.sleep_until(before)  # already past


async def test_sleepers_wake_each_at_its_own_time() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        start = clock.monotonic()
        await sleep(clock, seconds)
        woken.append((name, clock.monotonic() - start))

    tasks = [
        asyncio.create_task(sleeper(name, seconds))
        for name, seconds in (("b", 5), ("a", 1), ("c", 60))
    ]
    await asyncio.sleep(0)
    await clock.advance(10)
    assert woken == [("a", 1), ("b", 5)]
    await clock.advance(50)
    assert woken[2:] == [("c", 60)]
    await asyncio.gather(*tasks)


async def test_an_hour_of_seconds_plays_at_once() -> None:
    clock = ManualClock()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await sleep(clock, 1)
            ticks += 1

    task = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await clock.advance(3600)
    assert ticks == 3600
    task.cancel()


async def test_both_times_move_and_only_the_wall_clock_steps() -> None:
    clock = ManualClock(unix_ms=5_000_000)
    assert clock.unix_ms() == 5_000_000
    await clock.advance(1.5)
    assert clock.unix_ms() == 5_001_500
    before = clock.monotonic()
    clock.step_unix(-3_000_000)
    assert (clock.unix_ms(), clock.monotonic()) == (2_001_500, before)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(sleep(clock, 5))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(10)
    await clock.sleep_until(clock.monotonic() - 1)


async def test_a_duty_that_should_have_got_on_is_late() -> None:
    clock = ManualClock()
    duty = LoopWatchdog("sweep", clock)
    await clock.advance(5)
    assert duty.late_s == 0, "it has not begun"
    duty.step()
    await clock.advance(2)
    assert duty.late_s == 2
    duty.rest(clock.monotonic() + 10)
    await clock.advance(10)
    assert duty.late_s == 0
    await clock.advance(1)
    assert (duty.late_s, duty.steps) == (1, 2)
    duty.end()
    assert duty.late_s == 0


def test_duties_at_rest_share_their_turns_and_short_waits_are_as_they_are() -> None:
    clock = SystemClock()
    for seconds in (SHARED_S, 0.5, 2.5):
        now_s = clock.monotonic()
        until_s = shared_turn(clock, seconds)
        assert now_s < until_s
        assert abs(until_s - now_s - seconds) <= SHARED_S
        assert abs(until_s / SHARED_S - round(until_s / SHARED_S)) < 1e-6
    before = clock.monotonic()
    assert shared_turn(clock, 0.02) - before == pytest.approx(0.02, abs=0.01)
    manual = ManualClock()
    assert shared_turn(manual, 0.55) == manual.monotonic() + 0.55

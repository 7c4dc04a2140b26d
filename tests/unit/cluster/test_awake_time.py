"""What counts as silence where this process stood still again and again."""

from __future__ import annotations

import pytest
from support.manual_clock import ManualClock

from tidewarden.cluster.replication.awake_time import ASLEEP_S, AwakeTime
from tidewarden.cluster.replication.chooser import ASK_S

STEP_S = ASLEEP_S / 10


class Scene:
    def __init__(self, pace: float = 1.0) -> None:
        self.clock = ManualClock()
        self.awake = AwakeTime(self.clock, pace)
        self.awake.look()

    async def turn(self, times: int, step_s: float = STEP_S) -> None:
        for _ in range(times):
            await self.clock.advance(step_s)
            self.awake.look()


def near(one: float, other: float) -> bool:
    return abs(one - other) < 1e-6


async def test_stalls_are_left_out_wherever_they_lie() -> None:
    scene = Scene()
    heard_s = scene.clock.monotonic()
    for _ in range(5):
        await scene.turn(2)
        await scene.turn(1, 4.0)
    assert near(scene.awake.since(heard_s), 10 * STEP_S)
    assert near(scene.awake.now_s() - heard_s, 10 * STEP_S)


async def test_one_that_has_just_ended_is_left_out_before_anybody_looked() -> None:
    scene = Scene()
    heard_s = scene.clock.monotonic()
    await scene.turn(3)
    await scene.clock.advance(5.0)
    assert near(scene.awake.since(heard_s), 3 * STEP_S)
    assert near(scene.awake.now_s() - heard_s, 3 * STEP_S)


async def test_who_was_heard_within_a_stall_is_silent_since_its_end() -> None:
    scene = Scene()
    await scene.clock.advance(2.0)
    heard_s = scene.clock.monotonic()
    await scene.clock.advance(2.0)
    scene.awake.look()
    await scene.turn(4)
    assert near(scene.awake.since(heard_s), 4 * STEP_S)


async def test_what_waits_for_others_is_no_stall() -> None:
    scene = Scene()
    heard_s = scene.clock.monotonic()
    scene.awake.rest()
    await scene.turn(1, 5.0)
    assert near(scene.awake.since(heard_s), 5.0)


async def test_a_slow_loop_is_awake() -> None:
    scene = Scene()
    heard_s = scene.clock.monotonic()
    await scene.turn(10, ASLEEP_S * 0.9)
    assert near(scene.awake.since(heard_s), 9 * ASLEEP_S)


@pytest.mark.parametrize("pace", [0.1, 0.5, 1.0, 5.0])
async def test_looks_as_they_are_made_are_no_stalls_at_any_pace(pace: float) -> None:
    scene = Scene(pace)
    heard_s = scene.clock.monotonic()
    await scene.turn(50, 2 * ASK_S)
    assert near(scene.awake.since(heard_s), 100 * ASK_S)

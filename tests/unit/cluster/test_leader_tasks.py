"""
The leader's duties side by side: what ends one ends all, and one that stands still is begun anew.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.inspect import step_silently
from support.manual_clock import ManualClock

from tidewarden.cluster import leader_tasks as module
from tidewarden.cluster.leader_tasks import LOOK_S, STILL_LOOKS, WARN_S, LeaderTasks
from tidewarden.errors import Stale
from tidewarden.loop_watchdog import LoopWatchdog


class Job:
    """
    A duty that waits for what never comes; ``begun`` has each epoch and holder that it was begun
    with.
    """

    def __init__(self, name: str, clock: ManualClock) -> None:
        self.duty = LoopWatchdog(name, clock)
        self.begun: list[tuple[int, str]] = []
        self.ended = 0
        self.deaf = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, epoch: int, holder: str) -> None:
        self.begun.append((epoch, holder))
        self.duty.step()
        while True:
            try:
                await asyncio.shield(self.over)
                return
            except asyncio.CancelledError:
                self.ended += 1
                if not self.deaf:
                    raise


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sweep, self.reaper = Job("sweep", self.clock), Job("reaper", self.clock)
        self.duties = LeaderTasks(
            self.clock, *((job.duty, job.run) for job in (self.sweep, self.reaper))
        )
        self.task = asyncio.ensure_future(self.duties.run(7, "n0.1"))

    async def looks(self, number: int, *moving: Job) -> None:
        for _ in range(number):
            for job in moving:
                job.duty.step()
            await self.clock.advance(LOOK_S)
            for _ in range(10):
                await asyncio.sleep(0)

    def late(self) -> dict[str, float]:
        found: dict[str, float] = self.duties.stats()["leader_duty_late_seconds"]
        return found


@pytest.fixture
async def scene() -> Any:
    made = Scene()
    await asyncio.sleep(0)
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


async def test_one_that_stands_still_is_said_and_begun_anew(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.looks(STILL_LOOKS - 1, scene.sweep)
    assert scene.reaper.begun == [(7, "n0.1")]
    assert scene.late() == {"sweep": LOOK_S, "reaper": (STILL_LOOKS - 1) * LOOK_S}
    assert scene.duties.warning() == "the leader's reaper has not got on for 29 s"
    await scene.looks(3, scene.sweep)
    assert scene.reaper.begun == [(7, "n0.1")] * 2
    assert scene.reaper.ended == 1
    assert "the leader's reaper has not got on for 3" in caplog.text
    assert scene.sweep.begun == [(7, "n0.1")], "the others need not know"
    assert scene.duties.warning() == ""
    assert scene.duties.stats()["leader_duties_begun_anew_total"] == 1


async def test_one_that_rests_stands_not_still(scene: Scene) -> None:
    scene.reaper.duty.rest(scene.clock.monotonic() + 3 * STILL_LOOKS * LOOK_S)
    await scene.looks(2 * STILL_LOOKS, scene.sweep)
    assert scene.reaper.begun == [(7, "n0.1")]
    assert scene.late()["reaper"] == 0
    await scene.looks(2 * STILL_LOOKS + 2, scene.sweep)
    assert len(scene.reaper.begun) == 2, "it should have woken by itself"


async def test_a_pause_of_the_process_is_no_proof(scene: Scene) -> None:
    await scene.clock.advance(0)
    step_silently(scene.clock, 10 * STILL_LOOKS)
    await scene.looks(2)
    assert scene.reaper.begun == [(7, "n0.1")]


async def test_one_that_does_not_end_keeps_no_other_from_it(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    scene.reaper.deaf = True
    await scene.looks(STILL_LOOKS + 2, scene.sweep)
    for _ in range(100):
        await asyncio.sleep(0.01)
        if len(scene.reaper.begun) == 2:
            break
    assert len(scene.reaper.begun) == 2
    assert "1 of the leader's duties do not end within" in caplog.text
    scene.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.task
    assert scene.sweep.ended == 1
    scene.reaper.over.set_result(None)  # lets the test's own loop end


async def test_what_ends_one_ends_all(scene: Scene) -> None:
    scene.reaper.over.set_exception(Stale("another leads"))
    with pytest.raises(Stale):
        await scene.task
    assert scene.sweep.ended == 1
    await scene.clock.advance(10 * WARN_S)
    assert scene.duties.warning() == "", "who does not lead has no duties"
    assert scene.late() == {"sweep": 0, "reaper": 0}

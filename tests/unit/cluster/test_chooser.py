"""The Raft leader's choice of a primary, on a host that stops its processes again and again."""

from __future__ import annotations

import asyncio

from support.cluster.replicating import PlayedRaft
from support.manual_clock import ManualClock

from tidewarden.cluster.replication.awake_time import ASLEEP_S, AwakeTime
from tidewarden.cluster.replication.chooser import ASK_S, Chooser
from tidewarden.cluster.replication.election import ElectionTimes
from tidewarden.cluster.replication.store_report import StoreReport

STALL_S = 4 * ASLEEP_S
"""Longer than a silence that gives a node up: who wakes must not take its own sleep for one."""
WORK_S = 0.1
"""Between two stalls."""
INCARNATIONS = {"n0": "a", "n1": "b", "n2": "c"}


class Scene:
    """n1 leads; n0's store is the primary; every node says what it has to until it is silenced."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.raft = PlayedRaft(["n0", "n1", "n2"])
        self.raft.leading = "n1"
        self.raft.apply(("found", "n0", "a", 0))
        everybody = "n0.a n1.b n2.c"
        self.raft.apply(("change", self.raft.facts.view, self.raft.facts.version, everybody))
        self.seat = self.raft.seats["n1"]
        self.seat.learn()
        self.silenced: set[str] = set()
        awake = AwakeTime(self.clock, 1.0)
        self.chooser = Chooser(self.seat, self.clock, awake, 1.0, 0.0, lambda _text: None)

    def say(self, *nodes: str, ahead_s: float = 0.0) -> None:
        """What these have to say is heard now, or by whoever wakes that much later."""
        for node in nodes:
            if node not in self.silenced:
                report = StoreReport(incarnation=INCARNATIONS[node], view=1)
                self.seat.heard[node] = self.clock.monotonic() + ahead_s, report.plain()

    async def stall_until(self, limit_s: float) -> float:
        """Work and stall in turns until another is the primary; return the seconds of work."""
        worked_s = 0.0
        running = asyncio.create_task(self.chooser.run())
        try:
            while self.raft.facts.primary == "n0" and worked_s < limit_s:
                for _ in range(round(WORK_S / ASK_S)):
                    await self.clock.advance(ASK_S)
                    self.say(*INCARNATIONS)
                    await asyncio.sleep(0.002)  # a command is committed in real time
                    worked_s += ASK_S
                self.say("n1", "n2", ahead_s=STALL_S)  # the primary's word comes last
                self.clock.stall(STALL_S)
                await self.clock.advance(0)
                await asyncio.sleep(0.002)
                self.say(*INCARNATIONS)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return worked_s


async def test_a_dead_primary_is_replaced_though_the_leader_stalls_all_the_time() -> None:
    scene = Scene()
    scene.say(*INCARNATIONS)
    scene.silenced = {"n0"}
    worked_s = await scene.stall_until(10.0)
    assert scene.raft.facts.primary != "n0"
    assert worked_s < 3 * ElectionTimes().dead_s


async def test_one_that_lives_keeps_its_place_though_the_leader_stalls_all_the_time() -> None:
    scene = Scene()
    scene.say(*INCARNATIONS)
    await scene.stall_until(10.0)
    assert scene.raft.facts.primary == "n0"

"""The provider is well, and no majority of the stores can be written for long."""

from __future__ import annotations

import os
import signal

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given


class StoresAway(Scenario):
    """Two of three stores stand still for half an hour, those that follow and then two others."""

    rule = Rule(
        "a node goes on confirming its writes, however often it was refused before",
        (
            (
                "store/durability/set_commit.py",
                "doublings = min(lane.failures, DOUBLINGS_MAX)",
                "doublings = lane.failures",
            ),
        ),
    )
    fleet = 500
    away_s = 1800.0
    recovery_limit_s = 120.0
    again_s = 0.0
    quick = given(one_store=False, fleet=100, away_s=600.0)  # It is about the stores.

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(120)
        stores = stage.cluster.pids("valkey")
        for two in (stores[1:], stores[:-1]):
            for pid in two:
                os.kill(pid, signal.SIGSTOP)
            try:
                await stage.clock.sleep(self.away_s)
            finally:
                for pid in two:
                    os.kill(pid, signal.SIGCONT)
            await stage.recover(4 * self.recovery_limit_s)
            self.again_s = max(self.again_s, stage.recovery_s or 0)
            await stage.clock.sleep(self.margin_s)

    def late(self, stage: Stage) -> int:
        """Nobody is refreshed while no write is confirmed: who is late afterwards."""
        return len(stage.book.late_now())

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [Check("s until all are fresh, at most", self.again_s, self.recovery_limit_s)]

"""
Runs the duties that only the leader has, under one epoch, side by side.

A duty that stands still is logged, shown, and begun anew. Each call to the store ends by itself
sooner or later, so none should; but a sweep or a reaper that waits for ever would go unnoticed for
a long time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tidewarden.clock import Clock, rest
from tidewarden.loop_watchdog import LoopWatchdog

log = logging.getLogger("tidewarden.cluster")

LOOK_S = 1.0
STILL_LOOKS = 30
"""
How many looks in a row may find a duty where it was: for longer than a silent store is waited for.
Looks are counted, not time: a paused process is no proof.
"""
WARN_S = 15.0
END_S = 5.0  # for one that was told to end

Run = Callable[[int, str], Awaitable[None]]


class LeaderTasks:
    """
    Runs the duties of the leader.

    Each is a :class:`LoopWatchdog` and what runs it: ``run(epoch, holder)``.
    """

    def __init__(self, clock: Clock, *duties: tuple[LoopWatchdog, Run]) -> None:
        self._clock = clock
        self._duties = duties
        self.begun_anew = 0

    async def run(self, epoch: int, holder: str) -> None:
        """Run the duties until cancelled, or until one of them ends. Raises: what that raises."""
        tasks: list[asyncio.Future[None]] = [
            asyncio.ensure_future(run(epoch, holder)) for _, run in self._duties
        ]
        left: list[asyncio.Future[None]] = []
        still = [(0, -1)] * len(tasks)  # looks, and the steps seen at the last one
        try:
            while True:
                await self._look_or_end(tasks)
                for number, (duty, run) in enumerate(self._duties):
                    if tasks[number].done():
                        return tasks[number].result()
                    looks, steps = still[number]
                    looks = looks + 1 if duty.late_s and duty.steps == steps else 0
                    still[number] = (looks, duty.steps)
                    if looks >= STILL_LOOKS:
                        log.error(
                            "the leader's %s has not got on for %.0f s; it is begun anew",
                            duty.name,
                            duty.late_s,
                        )
                        left += await self._ended([tasks[number]])
                        tasks[number] = asyncio.ensure_future(run(epoch, holder))
                        still[number] = (0, -1)
                        self.begun_anew += 1
        finally:
            await self._ended(tasks + left)
            for duty, _ in self._duties:
                duty.end()

    async def _look_or_end(self, tasks: list[asyncio.Future[None]]) -> None:
        look = asyncio.ensure_future(rest(self._clock, LOOK_S))
        try:
            await asyncio.wait({*tasks, look}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            look.cancel()

    async def _ended(self, tasks: list[asyncio.Future[None]]) -> list[asyncio.Future[None]]:
        """Cancel the duties, and return those that do not end."""
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=END_S)
        if late:
            log.error("%d of the leader's duties do not end within %g s", len(late), END_S)
        return list(late)

    def warning(self) -> str:
        """Say which duties stand still, or ""."""
        late = [(duty.name, duty.late_s) for duty, _ in self._duties]
        return "; ".join(
            f"the leader's {name} has not got on for {late_s:.0f} s"
            for name, late_s in late
            if late_s > WARN_S
        )

    def stats(self) -> dict[str, Any]:
        """Return numbers for /metrics."""
        late = {duty.name: round(duty.late_s, 3) for duty, _ in self._duties}
        return {"leader_duty_late_seconds": late, "leader_duties_begun_anew_total": self.begun_anew}

"""
The leader's sweep: makes due tasks and ended leases ready, and fires schedules.

It runs when something is due and never polls.

Each shard has a next moment. It comes with every reply of its scripts and with the messages that
puts send; the sweep sleeps until the earliest. A round is safe to repeat and safe beside another
leader's: the store's fence decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tidewarden.clock import Clock, sleep_or
from tidewarden.errors import Error, Internal, NotFound, Stale, StoreDown
from tidewarden.loop_watchdog import LoopWatchdog
from tidewarden.queue import Queues

from .timer_queue import TimerQueue

log = logging.getLogger("tidewarden.scheduler")

MOVED_MAX = 500
AWAY_S = 0.5  # a shard whose script found the store away is tried again after so long
ALL_S = 60.0  # every shard is looked at once so often, in case a message was lost
ROUND_MAX = 64  # shards that are swept together
MARGIN_S = 0.0005  # a moment that is earlier by less is the same one
LOOKS_TOGETHER = 16  # queues whose shards' records are read together
SLOW_S = 1.0  # the others wait for a shard whose server does not answer for so long
LIMIT_S = 30.0  # a shard's sweep that has no answer by then is begun anew; a link gives up sooner

FireDue = Callable[[str, int, int, int, str], Awaitable[int]]
Place = tuple[str, int]
ALL: Place = ("", 0)
"""Stands for the look at which shards there are."""


class Sweep:
    """
    Sweeps every shard when something is due there.

    ``fire_due(queue, shard, now_ms, epoch, holder)`` puts what schedules have due and returns the
    next tick (ms), -1 for none.

    ``run_script`` runs a script of a shard; the daemon hands in one on a connection of the sweep's
    own.
    """

    def __init__(
        self,
        queues: Queues,
        clock: Clock,
        fire_due: FireDue,
        run_script: Callable[..., Awaitable[tuple[int, int, list[int]]]],
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._fire_due = fire_due
        self._run_script = run_script
        self._timers = TimerQueue()
        self._earlier = asyncio.Event()
        self._all_at = 0.0
        self._begun = False
        self._under_way: dict[Place, asyncio.Task[None]] = {}
        self.duty = LoopWatchdog("sweep", clock)
        self.running = False
        self.rounds = 0
        self.moved = 0

    def expect(self, queue: str, shard: int, delay_ms: int) -> None:
        """
        Note that something happens in that shard in ``delay_ms``.

        Cheap: it is called for every reply of every script.
        """
        if not self.running:
            return
        at = self._clock.monotonic() + delay_ms / 1000
        if self._timers.set_earlier((queue, shard), at, MARGIN_S):
            self._earlier.set()

    async def expect_all(self, *, by_record: bool = False) -> None:
        """
        Look at every shard of every queue now: a term begins, or messages may have been missed.

        ``by_record``: no sooner than the shard's record says that something happens there, which
        costs a fifteenth of a script.
        """
        try:
            async with asyncio.timeout(LIMIT_S):
                names = await self._queues.catalog.names()
            for first in range(0, len(names), LOOKS_TOGETHER):
                some = names[first : first + LOOKS_TOGETHER]
                async with asyncio.timeout(
                    LIMIT_S
                ):  # of its own: to read of thousands may take longer than one answer may
                    await asyncio.gather(
                        *(self._expect_queue(queue, by_record=by_record) for queue in some)
                    )
        except TimeoutError:
            raise StoreDown(f"no answer for {LIMIT_S:g} s") from None

    async def _expect_queue(self, queue: str, *, by_record: bool) -> None:
        try:
            shards = await self._queues.catalog.shard_count(queue)
            delays_ms = await self._queues.scripts.delays(queue) if by_record else [0] * shards
        except Internal as error:  # its settings cannot be read, which must not stop the others
            log.error("the queue %s is not swept: %s", queue, error)
            return
        except NotFound:  # it was dropped since the names were read
            return
        for shard, delay_ms in enumerate(delays_ms):
            if delay_ms >= 0:
                self.expect(queue, shard, delay_ms)

    async def run(self, epoch: int, holder: str) -> None:
        """Sweep under ``epoch`` until cancelled. Raises: Stale: another leads."""
        self.running = True
        self._timers.clear()
        self._begun = False
        try:
            self._all_at = self._clock.monotonic()
            while True:
                self.duty.step()
                if self._clock.monotonic() >= self._all_at and ALL not in self._under_way:
                    self._all_at = self._clock.monotonic() + ALL_S
                    await self._begin({ALL: self._look_at_all()})
                self._end_rounds()  # from here to the sleep nothing waits: no end is missed
                if due := self._timers.pop_due(self._clock.monotonic(), ROUND_MAX):
                    await self._round(due, epoch, holder)
                else:
                    next_at = self._timers.next_at()
                    await self._sleep(
                        self._all_at if next_at is None else min(self._all_at, next_at)
                    )
        finally:
            self.running = False
            for task in self._under_way.values():
                task.cancel()
            await asyncio.gather(*self._under_way.values(), return_exceptions=True)
            self._under_way.clear()

    async def _round(self, due: list[Place], epoch: int, holder: str) -> None:
        """
        Sweep these shards, but those that are being swept: what their end tells may be of before
        what is due now.
        """
        for place in self._under_way.keys() & due:
            self.expect(*place, round(AWAY_S * 1000))
        await self._begin(
            {
                place: self._one(place, epoch, holder)
                for place in due
                if place not in self._under_way
            }
        )

    async def _begin(self, work: dict[Place, Coroutine[Any, Any, None]]) -> None:
        """
        Go on when it is through; a server that does not answer holds up what is of others for a
        moment alone.
        """
        tasks = {place: asyncio.ensure_future(one) for place, one in work.items()}
        self._under_way |= tasks
        if tasks:
            _, slow = await asyncio.wait(tasks.values(), timeout=SLOW_S)
            for task in slow:
                task.add_done_callback(lambda _: self._earlier.set())

    def _end_rounds(self) -> None:
        """Forget the sweeps that are through. Raises: what one of them raised."""
        for place in [place for place, task in self._under_way.items() if task.done()]:
            self._under_way.pop(place).result()

    async def _look_at_all(self) -> None:
        try:
            await self.expect_all(by_record=self._begun)
            # Each shard is told of this term; from here on a lost message is all there is to find.
            self._begun = True
        except StoreDown as error:
            log.warning("the store is away; the sweep waits: %s", error)
            self._all_at = self._clock.monotonic() + AWAY_S

    async def _sleep(self, until: float) -> None:
        self._earlier.clear()
        self.duty.rest(until)
        await sleep_or(self._earlier, self._clock, until)

    async def _one(self, place: Place, epoch: int, holder: str) -> None:
        queue, shard = place
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._sweep(queue, shard, epoch, holder)
        except TimeoutError:
            log.error(
                "the sweep of %s, shard %d, has no answer for %g s; it is tried again",
                queue,
                shard,
                LIMIT_S,
            )
            self.expect(queue, shard, 0)
        except StoreDown as error:
            # Not of which queue: so log.Repeats has one line for all of them.
            log.warning("the store is away; the sweep waits: %s", error)
            self.expect(queue, shard, round(AWAY_S * 1000))
        except NotFound:
            log.debug("the queue %s is gone", queue)
        except Stale:
            raise
        except Error:
            # One shard that cannot be swept (a newer format, say) must not stop the others.
            log.exception(
                "the sweep of %s, shard %d, failed; it is tried again in %g s", queue, shard, ALL_S
            )
            self.expect(queue, shard, round(ALL_S * 1000))

    async def _sweep(self, queue: str, shard: int, epoch: int, holder: str) -> None:
        now_ms, next_ms, (moved, tick_ms) = await self._run_script(queue, shard, [epoch, MOVED_MAX])
        self.rounds += 1
        self.moved += moved
        if next_ms >= 0:
            self.expect(queue, shard, max(0, next_ms - now_ms))
        if 0 <= tick_ms <= now_ms:
            tick_ms = await self._fire_due(queue, shard, now_ms, epoch, holder)
        if tick_ms >= 0:
            self.expect(queue, shard, max(0, tick_ms - now_ms))

"""Works on the tasks of a system queue, some at a time; whichever node takes one does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tidewarden import errors
from tidewarden.clock import Clock, sleep
from tidewarden.queue import Queues, Taken
from tidewarden.queue.task import COUNT_MAX

log = logging.getLogger("tidewarden.tokens")

TAKE_WAIT_MS = 600_000
PAUSE_S = 1.0
STOP_S = 2.0


class QueueWorker:
    """
    Holds at most ``at_once`` tasks of ``queue``, while :meth:`run` runs.

    ``session`` holds their leases: the function that does a task acknowledges it there, or sends it
    back. What that function raises is logged, and the task is taken again when its lease ends.
    """

    def __init__(
        self,
        queues: Queues,
        queue: str,
        clock: Clock,
        *,
        at_once: int,
        lease_ms: int,
        stop_s: float = STOP_S,
    ) -> None:
        self.session = queues.open_session(queue)
        self._queues = queues
        self._queue = queue
        self._clock = clock
        self._at_once = at_once
        self._lease_ms = lease_ms
        self._stop_s = stop_s
        self._work: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    def resize(self, at_once: int, lease_ms: int) -> None:
        """Hold at most so many from now on, for so long each; 0: take none."""
        self._at_once = at_once
        self._lease_ms = lease_ms
        self._freed.set()

    async def run(self, do: Callable[[Taken], Coroutine[Any, Any, None]]) -> None:
        """
        Take tasks and ``do`` them side by side, until cancelled.

        At the end, tasks not done within ``stop_s`` are given back.
        """
        try:
            while True:
                await self._turn(do)
        finally:
            await self._drain()

    async def _turn(self, do: Callable[[Taken], Coroutine[Any, Any, None]]) -> None:
        self._freed.clear()
        room = min(COUNT_MAX, self._at_once - len(self._work))
        if room <= 0:
            await self._freed.wait()
            return
        try:
            found = await self._queues.take(
                self.session,
                [self._queue],
                count=room,
                wait_ms=TAKE_WAIT_MS,
                lease_ms=self._lease_ms,
            )
        except errors.Error as error:
            log.warning("%s waits: %s %s", self._queue, error.code, error)
            await sleep(self._clock, PAUSE_S)
            return
        for task in found:
            work = asyncio.create_task(self._do(do, task), name=f"{self._queue} {task.id}")
            self._work.add(work)
            work.add_done_callback(self._ended)

    async def _do(self, do: Callable[[Taken], Coroutine[Any, Any, None]], task: Taken) -> None:
        try:
            await do(task)
        except errors.Error as error:
            log.warning("%s: %s waits: %s %s", self._queue, task.id, error.code, error)
        except Exception:
            log.exception(
                "%s: %s failed for a reason of ours; it is done again", self._queue, task.id
            )

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._work.discard(work)
        self._freed.set()

    async def _drain(self) -> None:
        if self._work:
            _, late = await asyncio.wait(self._work, timeout=self._stop_s)
            for work in late:
                work.cancel()
        try:
            async with asyncio.timeout(1):
                await self._queues.close_session(self.session)
        except (TimeoutError, errors.Error) as error:
            log.warning("what was under way of %s was not given back: %s", self._queue, error)

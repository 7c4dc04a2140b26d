"""
Keeps a process's duties going: what fails for a reason that nobody foresaw is begun anew.

A duty is what runs for as long as the process does: beats, the in-sync set, refreshers. One defect
met by one of them must not take the others down with it, and must not stay unknown either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from .clock import Clock, sleep
from .errors import ConfigError

log = logging.getLogger("tidewarden.duties")

PAUSE_S_FIRST = 0.1
"""Before a duty that failed is begun anew; each further time twice as long."""
PAUSE_S_MAX = 5.0
STEADY_S = 60.0
"""A duty that ran for so long is begun anew as if it had never failed."""
FAILURES_MAX = 10
"""
So often in a row, which takes 30 s, a duty may fail. After one more the process ends: what is wrong
in its memory ends with it, and its supervisor starts another.
"""


class Duties:
    """Begins anew whatever of one process fails; says so in its log, warnings and figures."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[str, tuple[float, str]] = {}
        """When each duty failed last, and how."""
        self.begun_anew = 0

    async def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """
        Run a duty until it returns or is cancelled.

        Raises: ConfigError: somebody has to change something before it can go on; whatever ``run``
        raised, after :data:`FAILURES_MAX` times in a row.
        """
        failures, pause_s = 0, PAUSE_S_FIRST
        while True:
            began_s = self._clock.monotonic()
            try:
                await run()
                return
            except ConfigError as error:
                log.critical("%s cannot go on: %s", name, error)
                raise
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and (
                    task is None or task.cancelling()
                ):
                    raise  # else something below it was cancelled, which is its failure
                now_s = self._clock.monotonic()
                if now_s - began_s >= STEADY_S:
                    failures, pause_s = 0, PAUSE_S_FIRST
                failures += 1
                if failures > FAILURES_MAX:
                    log.critical(
                        "%s failed for the %d. time in a row: the process ends",
                        name,
                        failures,
                        exc_info=True,
                    )
                    raise
                self.begun_anew += 1
                self._failing[name] = (now_s, f"{type(error).__name__}: {error}")
                log.exception(
                    "%s failed for a reason of ours, for the %d. time; it is begun anew in %g s",
                    name,
                    failures,
                    pause_s,
                )
            await sleep(self._clock, pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def begin(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Return a task that keeps a duty: see :meth:`keep`."""
        return asyncio.create_task(self.keep(name, run), name=name)

    def warning(self) -> str:
        """Say which duties failed within the last minute; empty: none did."""
        since_s = self._clock.monotonic() - STEADY_S
        return "; ".join(
            f"{name} failed and was begun anew: {why}"
            for name, (at_s, why) in self._failing.items()
            if at_s > since_s
        )

    def stats(self) -> dict[str, Any]:
        """Return the numbers for /metrics."""
        return {"duties_begun_anew_total": self.begun_anew}


@contextlib.asynccontextmanager
async def ending_with(task: asyncio.Task[None], stopping: asyncio.Event) -> AsyncIterator[None]:
    """
    Have the process stop in order when a task fails that should run for ever.

    Cancels the task at the end. Raises what it failed with, so that the exit status says so.
    """

    def ended(_: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            stopping.set()

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

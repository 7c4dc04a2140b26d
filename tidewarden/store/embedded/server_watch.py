"""Starts a server again whenever it ends, with growing pauses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Never

from tidewarden.clock import Clock, sleep
from tidewarden.errors import ConfigError, StoreDown

log = logging.getLogger("tidewarden.store")

BACKOFF_S_MAX = 10.0
STEADY_S = BACKOFF_S_MAX
"""
A server that ran for so long is started again as if it had never ended; a server that keeps ending
is started no more often by that than with the longest pause.
"""


class ServerWatch:
    """Watches one server, which is started already."""

    def __init__(
        self, clock: Clock, backoff_s_first: float, on_event: Callable[[str], None] | None
    ) -> None:
        """
        Args:
            backoff_s_first: pause before the first start; each further one is twice as long.
            on_event: told of ends and starts, a sentence each; they are logged as well.
        """
        self.restarts = 0
        self._clock = clock
        self._backoff_s_first = backoff_s_first
        self._on_event = on_event

    async def run(
        self, ended: Callable[[], Awaitable[str]], launch: Callable[[], Awaitable[str]]
    ) -> Never:
        """
        Watch until cancelled.

        Args:
            ended: returns when the server has ended, saying how.
            launch: starts it, and says what it is now; StoreDown and ConfigError mean later.
        """
        backoff_s = self._backoff_s_first
        while True:
            since = self._clock.monotonic()
            why = await ended()
            if self._clock.monotonic() - since > STEADY_S:
                backoff_s = self._backoff_s_first
            self._tell(f"{why}; it starts again in {backoff_s:g} s")
            backoff_s = await self._start_again(backoff_s, launch)

    async def _start_again(self, backoff_s: float, launch: Callable[[], Awaitable[str]]) -> float:
        """Start the server, again and again until it runs, and return the next pause."""
        while True:
            await sleep(self._clock, backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
            try:
                told = await launch()
            except (StoreDown, ConfigError) as error:
                self._tell(f"store did not start: {error}; it is tried again in {backoff_s:g} s")
                continue
            self.restarts += 1
            self._tell(told)
            return backoff_s

    def _tell(self, text: str) -> None:
        log.warning("%s", text)
        if self._on_event is not None:
            self._on_event(text)

"""
Watches the store's clock by this process's monotonic one.

A step is recorded, and leases run on as if there were none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidewarden.clock import Clock, rest
from tidewarden.errors import Error, StoreDown
from tidewarden.queue.shards.lease_clock import LeaseClock
from tidewarden.store import Scripts
from tidewarden.store.client import StoreClient

log = logging.getLogger("tidewarden.cluster")

LOOK_S = 1.0
WARN_S = 3600.0


class StoreClock:
    """
    Looks once a second whether the store's clock has made a step.

    ``on_step`` is called when a step became known, here or by another node: every shard has to hear
    of it.

    The first of several nodes that finds a step writes it down, the others find it written.
    """

    def __init__(
        self,
        cluster: str,
        link: StoreClient,
        scripts: Scripts,
        clock: Clock,
        lease_clock: LeaseClock,
        on_step: Callable[[], None],
    ) -> None:
        self._key = f"{{{cluster}}}:clock"
        self._link = link
        self._scripts = scripts
        self._clock = clock
        self._lease_clock = lease_clock
        self._on_step = on_step
        self._looked = False
        self.stepped_at: float | None = None

    async def look(self) -> None:
        """Ask once. Raises: StoreDown; Error: the store refuses."""
        known, new = self._lease_clock.steps, not self._looked
        self._looked = True
        step_ms = await self._ask(0)
        if step_ms:
            log.error(
                "the store's clock has stepped by %+d ms; leases keep the time they have left, due"
                " times follow the clock: set it right",
                step_ms,
            )
            await self._ask(step_ms)
        if self._lease_clock.steps != known and not new:
            self.stepped_at = self._clock.monotonic()
            self._on_step()

    async def _ask(self, step_ms: int) -> int:
        sent = self._clock.monotonic()
        args = [step_ms, self._lease_clock.steps]
        time_ms, steps, lag_ms = await self._scripts.run(
            self._link, "cluster.clock", [self._key], args
        )
        return self._lease_clock.heard(sent, time_ms, steps, lag_ms)

    async def run(self) -> None:
        """Look until cancelled; a store that is away is waited for."""
        while True:
            try:
                await self.look()
            except StoreDown:
                log.debug("the store is away; its clock is not known")
            except Error as error:
                log.error("the store's clock could not be read: %s", error)
            await rest(self._clock, LOOK_S)

    def warning(self) -> str:
        """Warn that the clock was stepped within the last hour; else ""."""
        if self.stepped_at is None or self._clock.monotonic() - self.stepped_at > WARN_S:
            return ""
        return f"the store's clock was stepped; by {self._lease_clock.lag_ms:+d} ms in all"

    def stats(self) -> dict[str, int]:
        """
        Return numbers for /metrics and the status: steps so far, and what they add up to (ms).
        """
        return {
            "store_clock_steps_total": self._lease_clock.steps,
            "store_clock_stepped_ms": self._lease_clock.lag_ms,
        }

    def shown(self) -> dict[str, int | float | None]:
        """
        Return the figures for the status.

        They include how long ago (s) the latest step was found by this process.
        """
        ago_s = (
            None if self.stepped_at is None else round(self._clock.monotonic() - self.stepped_at, 3)
        )
        return {
            "clock_steps": self._lease_clock.steps,
            "clock_stepped_ms": self._lease_clock.lag_ms,
            "clock_stepped_ago_s": ago_s,
        }

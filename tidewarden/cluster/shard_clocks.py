"""
Watches the clocks of a Redis Cluster's servers, for each shard by itself.

See :mod:`tidewarden.cluster.store_clock` and decision 0016.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidewarden.clock import Clock, sleep
from tidewarden.errors import Error, StoreDown
from tidewarden.queue import Queues
from tidewarden.queue.shards.lease_clock import LeaseClock
from tidewarden.queue.shards.shard import Shard
from tidewarden.store.client import StoreClient
from tidewarden.store.connection import StoreConnection

from .store_clock import LOOK_S, WARN_S

log = logging.getLogger("tidewarden.cluster")


class ShardClocks:
    """
    Asks every primary for its time once a second, and applies it to the shards that lie there.

    To a shard it is one clock that steps, whether its server's does or it moves to a server with
    another. ``on_step`` is called when one has stepped, because every shard has to hear of it.
    """

    def __init__(
        self, route: StoreClient, queues: Queues, clock: Clock, on_step: Callable[[], None]
    ) -> None:
        self._route = route
        self._queues = queues
        self._clock = clock
        self._on_step = on_step
        self._known: set[Shard] = set()  # whose record was read
        self.stepped_at: float | None = None
        self.steps = 0
        self._latest_ms = 0

    async def look(self) -> None:
        """Ask once. Raises: StoreDown; Error: a server refuses."""
        shards: dict[StoreConnection, list[Shard]] = {}
        for shard in self._queues.catalog.shards_known():
            link = self._route.link_of(shard.keys[0])
            if link is not None and link.up:
                shards.setdefault(link, []).append(shard)
        self._known.intersection_update(shard for each in shards.values() for shard in each)
        await asyncio.gather(*(self._look_at(link, each) for link, each in shards.items()))

    async def _look_at(self, link: StoreConnection, shards: list[Shard]) -> None:
        sent = self._clock.monotonic()
        seconds, micros = await link.call("TIME")
        time_ms = (int(seconds) * 1_000_000 + int(micros)) // 1000
        stepped: list[tuple[Shard, int]] = []
        new: list[Shard] = []
        for shard in shards:
            if shard in self._known:
                lease_clock = _clock_of(shard)
                step_ms = lease_clock.heard(sent, time_ms, lease_clock.steps, lease_clock.lag_ms)
                if step_ms:
                    stepped.append((shard, step_ms))
            else:
                new.append(shard)
        if new:
            await asyncio.gather(*(self._read(shard, sent, time_ms) for shard in new))
        if stepped:
            await asyncio.gather(
                *(self._stepped(shard, step_ms, sent, time_ms) for shard, step_ms in stepped)
            )
            self.steps += 1
            self._latest_ms = stepped[0][1]
            self.stepped_at = self._clock.monotonic()
            log.error(
                "the clock of %d shards at %s has stepped by %+d ms, or is another server's; leases"
                " keep the time they have left: set the servers' clocks right",
                len(stepped),
                link.at,
                self._latest_ms,
            )
            self._on_step()

    async def _read(self, shard: Shard, sent: float, time_ms: int) -> None:
        """Read the shard's record of its clock."""
        steps, lag = await self._route.call("HMGET", f"{shard.keys[0]}:shard", "steps", "lag")
        _clock_of(shard).heard(sent, time_ms, _whole(steps), _whole(lag))
        self._known.add(shard)

    async def _stepped(self, shard: Shard, step_ms: int, sent: float, time_ms: int) -> None:
        """
        Write the step into the record, unless another node has found it.

        The stamp of a script that does nothing else writes it.
        """
        lease_clock = _clock_of(shard)
        steps = lease_clock.steps
        await self._read(shard, sent, time_ms)
        if lease_clock.steps == steps:
            lease_clock.steps += 1
            lease_clock.lag_ms += step_ms
            await shard.run("queue.configure", ())
            await self._read(shard, sent, time_ms)

    async def run(self) -> None:
        """Look until cancelled; a store that is away is waited for."""
        while True:
            try:
                await self.look()
            except StoreDown:
                log.debug("a part of the store is away; its clock is not known")
            except Error as error:
                log.error("a clock of the store could not be read: %s", error)
            await sleep(self._clock, LOOK_S)

    def warning(self) -> str:
        """Warn that a clock was stepped within the last hour; else ""."""
        if self.stepped_at is None or self._clock.monotonic() - self.stepped_at > WARN_S:
            return ""
        return (
            "the clock of a part of the store was stepped; the latest time by"
            f" {self._latest_ms:+d} ms"
        )

    def stats(self) -> dict[str, int]:
        """
        Return figures for /metrics and the status.

        They are the steps that this process has seen, and the latest one (ms).
        """
        return {"store_clock_steps_total": self.steps, "store_clock_stepped_ms": self._latest_ms}

    def shown(self) -> dict[str, int | float | None]:
        """Return the steps for the status, and how long ago (s) the latest one was found."""
        ago_s = (
            None if self.stepped_at is None else round(self._clock.monotonic() - self.stepped_at, 3)
        )
        return {
            "clock_steps": self.steps,
            "clock_stepped_ms": self._latest_ms,
            "clock_stepped_ago_s": ago_s,
        }


def _clock_of(shard: Shard) -> LeaseClock:
    assert shard.lease_clock is not None  # the registry gives each one of its own
    return shard.lease_clock


def _whole(raw: bytes | None) -> int:
    """Read a number of the record as the scripts do; 0: there is none, or it cannot be read."""
    return int(raw) if raw and raw.removeprefix(b"-").isdigit() else 0

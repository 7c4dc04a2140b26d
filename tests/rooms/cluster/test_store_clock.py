"""
The store's clock, watched by several nodes: a step is written down once, and every node goes on
from there.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.manual_clock import ManualClock

from tidewarden.cluster.store_clock import WARN_S, StoreClock
from tidewarden.queue.shards.lease_clock import LeaseClock


class Watcher:
    """
    One node's, on a monotonic clock of the test's: to step that one is, seen from here, to step the
    store's the other way.
    """

    def __init__(self, n0: Any) -> None:
        self.clock = ManualClock()
        self.leases = LeaseClock(self.clock)
        self.heard = 0
        self.watch = StoreClock("tw", n0.link, n0.scripts, self.clock, self.leases, self.count)

    def count(self) -> None:
        self.heard += 1


async def test_a_step_is_written_down_once(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    n0 = await node()
    one, two = Watcher(n0), Watcher(n0)
    for watcher in (one, two):
        await watcher.watch.look()
        await watcher.clock.advance(-100)  # the store's clock seems 100 s further than it should be
    before_ms = one.leases.known_ms()
    await one.watch.look()
    assert (one.leases.steps, one.heard) == (1, 1)
    assert abs(one.leases.lag_ms - 100_000) < 2000
    assert abs(one.leases.known_ms() - before_ms) < 2000, "the leases' clock did not step"
    assert "the store's clock has stepped by +" in caplog.text
    await two.watch.look()
    assert (two.leases.steps, two.leases.lag_ms, two.heard) == (1, one.leases.lag_ms, 1)
    await one.watch.look()
    await two.watch.look()
    assert (one.leases.steps, two.leases.steps, one.heard, two.heard) == (1, 1, 1, 1)
    late = Watcher(n0)
    await late.watch.look()
    assert (late.leases.steps, late.heard, late.watch.warning()) == (1, 0, "")
    assert abs(late.leases.known_ms() - one.leases.known_ms()) < 2000
    assert "stepped" in one.watch.warning()
    assert one.watch.stats()["store_clock_steps_total"] == one.watch.shown()["clock_steps"] == 1
    await one.clock.advance(WARN_S + 1)
    assert one.watch.warning() == ""


async def test_a_step_back_is_found_too(node: Any) -> None:
    n0 = await node()
    watcher = Watcher(n0)
    await watcher.watch.look()
    await watcher.clock.advance(100)
    await watcher.watch.look()
    assert watcher.leases.steps == 1
    assert abs(watcher.leases.lag_ms + 100_000) < 2000

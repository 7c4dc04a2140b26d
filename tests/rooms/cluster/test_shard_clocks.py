"""
The clocks of a cluster's servers, for each shard: a step, or a move to a server with another clock,
ends no lease.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.inspect import read_clock
from support.manual_clock import ManualClock

from tidewarden.cluster.shard_clocks import ShardClocks
from tidewarden.cluster.store_clock import WARN_S
from tidewarden.queue.shards.lease_clock import LeaseClock
from tidewarden.queue.task import TaskSpec


class Watcher:
    """
    One node's, on a monotonic clock of the test's: to step that one is, seen from here, to step the
    store's the other way.
    """

    def __init__(self, n: Any) -> None:
        self.clock = ManualClock()
        self.heard = 0
        self.n = n
        for shard in n.queues.catalog.shards_known():  # as the registry does on a cluster
            shard.lease_clock = LeaseClock(self.clock)
        self.watch = ShardClocks(n.link, n.queues, self.clock, self.count)

    def count(self) -> None:
        self.heard += 1

    def clocks(self) -> list[Any]:
        return [shard.lease_clock for shard in self.n.queues.catalog.shards_known()]


async def two_watchers(node: Any) -> tuple[Watcher, Watcher]:
    first = await node("n0")
    await first.queues.admin.configure("q", {"shards": 3})
    second = await node("n1")
    for n in (first, second):
        assert await n.queues.catalog.shard_count("q") == 3
    return Watcher(first), Watcher(second)


async def test_a_step_is_written_into_each_shard_once(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await two_watchers(node)
    n0 = one.n
    session = n0.queues.open_session()
    for i in range(3):
        await n0.queues.put("q", TaskSpec(b"x", id=f"t~{i}"))
    assert len(await n0.queues.take(session, ["q"], count=3)) == 3
    for watcher in (one, two):
        await watcher.watch.look()
        assert all(clock.known_ms() > 0 for clock in watcher.clocks())
        await watcher.clock.advance(-100)
    before = [clock.known_ms() for clock in one.clocks()]
    await one.watch.look()
    assert (one.watch.steps, one.heard) == (1, 1)
    assert "the clock of 3 shards" in caplog.text
    for clock, known_ms in zip(one.clocks(), before, strict=True):
        assert clock.steps == 1
        assert abs(clock.lag_ms - 100_000) < 2000
        assert abs(clock.known_ms() - known_ms) < 2000, "the leases' clock did not step"
    for i, clock in enumerate(one.clocks()):
        stored = await n0.link.call("HMGET", f"{{tw:q:{i}}}:shard", "steps", "lag")
        assert [int(value) for value in stored] == [1, clock.lag_ms]
    await two.watch.look()
    assert [(c.steps, c.lag_ms) for c in two.clocks()] == [
        (c.steps, c.lag_ms) for c in one.clocks()
    ]
    assert two.heard == 1, "it found the step written, and tells its own shards"
    await one.watch.look()
    await two.watch.look()
    assert (one.heard, two.heard, one.watch.steps) == (1, 1, 1)
    assert "stepped" in one.watch.warning()
    assert one.watch.stats()["store_clock_steps_total"] == one.watch.shown()["clock_steps"] == 1
    await one.clock.advance(WARN_S + 1)
    assert one.watch.warning() == ""


async def test_two_that_find_a_step_agree_on_it(node: Any) -> None:
    one, two = await two_watchers(node)
    for watcher in (one, two):
        await watcher.watch.look()
        await watcher.clock.advance(-60)
    await one.clock.advance(-0.05)  # they do not measure quite the same
    shard, other = one.n.queues.catalog.shards_known()[0], two.n.queues.catalog.shards_known()[0]
    sent = two.clock.monotonic()
    seconds, micros = await two.n.link.call("TIME")
    time_ms = (int(seconds) * 1_000_000 + int(micros)) // 1000
    await one.watch.look()
    other.lease_clock.steps += 1  # as if both had read the record before either wrote
    other.lease_clock.lag_ms += 60_000
    await other.run("queue.configure", ())
    await read_clock(two.watch, other, sent, time_ms)
    assert (other.lease_clock.steps, other.lease_clock.lag_ms) == (
        shard.lease_clock.steps,
        shard.lease_clock.lag_ms,
    )


async def test_a_step_back_is_found_too_and_new_shards_are_read_first(node: Any) -> None:
    one, two = await two_watchers(node)
    await one.watch.look()
    await one.clock.advance(100)
    await one.watch.look()
    assert all(abs(clock.lag_ms + 100_000) < 2000 for clock in one.clocks())
    await two.watch.look()
    assert [clock.lag_ms for clock in two.clocks()] == [clock.lag_ms for clock in one.clocks()]
    assert two.heard == 0, "to a process that has just begun, nothing has stepped"


@pytest.mark.parametrize("value", [b"x", b"\xff", b"1.5", b"nan"])
async def test_steps_that_nobody_can_read_are_none(node: Any, value: bytes) -> None:
    """As the scripts have it, which write them anew."""
    one, _ = await two_watchers(node)
    await one.n.queues.put("q", TaskSpec(b"x", id="t"))
    for i in range(3):
        await one.n.link.call("HSET", f"{{tw:q:{i}}}:shard", "steps", value, "lag", value)
    await one.watch.look()
    assert [(clock.steps, clock.lag_ms) for clock in one.clocks()] == [(0, 0)] * 3

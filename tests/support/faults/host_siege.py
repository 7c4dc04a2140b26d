"""Hosts whose stores replicate, under traffic and faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.cluster.harness import serving, until
from support.faults.faulty import LIFE_S
from support.faults.host_faults import HOSTS
from support.faults.hosts import HostCluster, said
from support.faults.siege import ACCOUNTS
from support.faults.storm import Storm
from support.faults.workload import JOBS, Workload
from support.providers.scripted_provider import provider_in_thread


@contextlib.asynccontextmanager
async def host_siege(
    request: pytest.FixtureRequest,
    folder: Path,
    seed: int,
    *,
    synced: bool,
    short: bool = False,
    durability: str = "",
) -> AsyncIterator[tuple[Storm, Workload]]:
    """
    Three hosts under traffic, and a storm that has not begun.

    ``synced``: stores sync what they acknowledge, and queues wait for it; without, they have
    durability ``quorum``, or that which is named. ``short``: for a round of few faults.
    """
    with (
        provider_in_thread(ACCOUNTS, LIFE_S) as provider,
        serving(request, HostCluster(folder, provider, synced=synced, disks=not short)) as cluster,
    ):
        for part, reason in cluster.absent.items():
            print(f"without {part}: {reason}")
        await asyncio.to_thread(cluster.wait_whole)
        workload = Workload(
            cluster, provider, seed, durability or ("fsync" if synced else "quorum")
        )
        leader = cluster.leader()
        # Stores in sync have still to confirm a write to that node before it takes the next.
        await asyncio.to_thread(
            until, lambda: leader.say("Q.CONFIG", JOBS, "SET", "lease_ms", 1000)
        )
        await asyncio.to_thread(workload.begin, leader)

        def whole() -> str:
            cluster.wait_whole()
            return said(cluster)

        storm = Storm(cluster, random.Random(seed), provider, catalogue=HOSTS, whole=whole)
        yield storm, workload

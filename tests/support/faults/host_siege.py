"""Hosts whose stores replicate, under traffic and faults, and what is written of each fault."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from support.cluster.harness import background, serving, until
from support.faults.faulty import LIFE_S
from support.faults.host_faults import HOSTS
from support.faults.hosts import HostCluster, said
from support.faults.siege import ACCOUNTS, end, progress, struck
from support.faults.storm import Fault, Storm
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
        yield Storm(cluster, random.Random(seed), provider, catalogue=HOSTS), workload


async def weather(
    storm: Storm,
    workload: Workload,
    drawn: Iterable[list[Fault]],
    seconds: float = math.inf,
    crowds: int = 1,
) -> None:
    """
    These faults, some at a time, until there are no more or the time is over; then the account.

    Before each, all stores have come back into the set, by themselves. ``crowds``: how many clients
    of each kind stand where one does else.
    """
    cluster = storm.cluster
    assert isinstance(cluster, HostCluster)
    begun, slowest_s = time.monotonic(), 0.0
    clients = [job for _ in range(crowds) for job in workload.jobs()]
    async with background(*clients) as jobs:
        await progress(storm, workload)
        for some in drawn:
            slowest_s = max(slowest_s, await struck(storm, workload, some, jobs, begun))
            await asyncio.to_thread(cluster.wait_whole)
            print(f"{'':8}{said(cluster)}", flush=True)
            if time.monotonic() - begun > seconds:
                break
        await end(storm, workload, begun, slowest_s)

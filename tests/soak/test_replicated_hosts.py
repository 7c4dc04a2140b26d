"""
Fault after fault of whole hosts whose stores replicate, drawn by a seed, while clients of every
kind write down what they were told; a checker judges it.

    make soak SECONDS=5400 SEED=3
    SOAK_FAULTS=300 pytest -q -s -m soak tests/soak/test_replicated_hosts.py
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from pathlib import Path

import pytest
from support.cluster.harness import background
from support.faults.history import History, lost_puts
from support.faults.host_faults import HOSTS
from support.faults.host_siege import host_siege
from support.faults.siege import ids_left, progress, weather
from support.faults.workload import PUT_INTO

pytestmark = pytest.mark.timeout(14_400)

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
FAULTS = int(os.environ.get("SOAK_FAULTS", "0"))
"""How many, however long it takes; 0: as many as there is time for."""
SEED = int(os.environ.get("SOAK_SEED", "1"))
PAUSE_S, CROWDS = 0.004, 3
"""Of a producer after each put, and clients of each kind: half a million operations want many."""


@pytest.mark.parametrize("synced", [False, True], ids=["quorum", "fsync"])
async def test_a_long_siege_of_hosts(
    request: pytest.FixtureRequest, tmp_path: Path, synced: bool
) -> None:
    """
    ``quorum``: stores sync once a second, and the power fails on one host at a time. ``fsync``:
    they sync what they acknowledge, and the power of all hosts fails at once.
    """
    async with host_siege(request, tmp_path, SEED, synced=synced) as (storm, workload):
        storm.longest_s = 6.0
        workload.pause_s = PAUSE_S
        seconds = math.inf if FAULTS else SECONDS
        faults = itertools.islice(storm.drawn(0.2), FAULTS or None)
        await weather(storm, workload, faults, seconds, CROWDS)


async def test_what_the_members_lack_is_noticed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """
    A control: with durability ``one`` a put is answered that no member has, and the checker says
    which are lost.
    """
    found: list[str] = []
    siege = host_siege(request, tmp_path, SEED, synced=False, short=True, durability="one")
    async with siege as (storm, workload), background(*workload.jobs()):
        await progress(storm, workload)
        for _ in range(10):
            await storm.strike(HOSTS["hold both members' streams, then kill the primary's host"])
            await progress(storm, workload)
            await asyncio.to_thread(storm.cluster.wait_whole)
            promised = workload.history.of("put")
            left = {queue: ids_left(storm.cluster, queue) for queue in PUT_INTO}
            await asyncio.sleep(1)  # who took one before that look has written it down
            grants = workload.history.of("grant")
            found = lost_puts(History([*promised, *grants]), left)
            if found:
                break
    assert found, "nothing was lost with durability one, so that this finds nothing"

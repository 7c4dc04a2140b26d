"""
Fault after fault of whole hosts whose stores replicate, drawn by a seed, while clients of every
kind write down what they were told; a checker judges it.

    make soak SECONDS=5400 SEED=3
    SOAK_FAULTS=300 pytest -q -s -m soak tests/soak/test_replicated_hosts.py
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults.host_siege import host_siege, weather
from support.faults.storm import Fault, Storm

pytestmark = pytest.mark.timeout(14_400)

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
FAULTS = int(os.environ.get("SOAK_FAULTS", "0"))
"""How many, however long it takes; 0: as many as there is time for."""
SEED = int(os.environ.get("SOAK_SEED", "1"))
PAUSE_S, CROWDS = 0.004, 3
"""Of a producer after each put, and clients of each kind: half a million operations want many."""


def drawn(storm: Storm) -> Iterator[list[Fault]]:
    """Faults alone, or two at a time of which one ends no process."""
    for number, one in enumerate(storm.round()):
        if FAULTS and number >= FAULTS:
            return
        some = [one]
        if storm.dice.random() < 0.2:
            second = storm.dice.choice([other for other in storm.able() if not other.process])
            some += [second] if second is not one else []
        yield some


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
        await weather(storm, workload, drawn(storm), seconds, CROWDS)

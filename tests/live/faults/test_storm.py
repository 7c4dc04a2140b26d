"""
Fault after fault, drawn by a seed, while clients of every kind write down what they were told; a
checker judges it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.faults import faults, link_faults
from support.faults.faulty import absent
from support.faults.siege import siege, weather
from support.faults.storm import CATALOGUE

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
SHORT = (
    ("kill the leader",), ("pause the leader", "the provider's answers are lost"), ("kill the store",),
    ("cut the leader off from peers and store",), ("one-way: nobody hears the leader",),
    ("full disk of the leader", "links between nodes held back and let go, each by itself"),
    ("links to the store reset at random", "the store's clock steps"),
)  # fmt: skip
"""
What the short round does, in this order, each at a time, where it can be done: some of each family
but a slow disk.
"""
WRITTEN_IN = (faults, link_faults)
"""What fills the catalogue."""


@pytest.mark.parametrize("part", ["network", "raft links", "slow disk", "small disk", "clock"])
def test_what_cannot_be_done_here_is_said(part: str, tmp_path: Path) -> None:
    """The runs leave it out, and would pass all the same."""
    if reason := absent(tmp_path).get(part):
        pytest.skip(f"faults of the {part} are left out: {reason}")


@pytest.mark.timeout(600)
async def test_a_short_round(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A fixed seed and ten faults, of every family."""
    async with siege(request, tmp_path, 4, short=True) as (storm, workload):
        storm.longest_s = 2.5
        able = storm.able()
        chosen = [[CATALOGUE[name] for name in names] for names in SHORT]
        possible = [[one for one in some if one in able] for some in chosen]
        await weather(storm, workload, filter(None, possible))


@pytest.mark.soak
@pytest.mark.timeout(14_400)
async def test_a_long_siege(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """
    ``SOAK_SECONDS`` of faults, drawn by ``SOAK_SEED``: alone, or two at a time of which one ends no
    process.
    """
    async with siege(request, tmp_path, SEED) as (storm, workload):
        storm.longest_s = 6.0  # past a node's death, and its patience with the store
        await weather(storm, workload, storm.drawn(0.25), SECONDS)

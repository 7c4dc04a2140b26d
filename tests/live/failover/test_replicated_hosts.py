"""
Whole hosts whose stores replicate are struck while clients of every kind write down what they were
told; a checker judges it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults.host_faults import HOSTS
from support.faults.host_siege import host_siege
from support.faults.hosts import absent
from support.faults.siege import weather

SHORT = (
    ("kill the primary's host",), ("kill the primary's store",),
    ("hold a member's stream, then kill the primary's host",),
    ("lose the disk of the primary's store",), ("cut the power of the primary's host",),
    ("pause the primary's store",), ("one-way: nobody hears the primary's host",),
    ("stores only, one-way: nobody hears the primary's store",), ("switch over",),
)  # fmt: skip
"""What the short round does, in this order, each at a time, where it can be done."""


@pytest.mark.parametrize("part", ["network", "small disk", "clock", "synced disk"])
def test_what_cannot_be_done_here_is_said(part: str, tmp_path: Path) -> None:
    """The runs leave it out, and would pass all the same."""
    if reason := absent(tmp_path, synced=True).get(part):
        pytest.skip(f"faults of the {part} are left out: {reason}")


@pytest.mark.timeout(600)
async def test_a_short_siege_of_hosts(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Some faults of each family, one after the other."""
    async with host_siege(request, tmp_path, 4, synced=False, short=True) as (storm, workload):
        storm.longest_s = 2.0
        able = storm.able()
        chosen = [[HOSTS[name] for name in names] for names in SHORT]
        possible = [some for some in chosen if all(one in able for one in some)]
        await weather(storm, workload, possible)

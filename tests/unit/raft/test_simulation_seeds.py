"""Our Raft members through storms of faults: the same seed is the same storm."""

from __future__ import annotations

import os

import pytest
from support.raft.faults import Storm, commit, elected
from support.raft.simulation import World

from tidewarden.raft import pysync

SEEDS = [seed if seed < 5 else pytest.param(seed, marks=pytest.mark.thorough) for seed in range(50)]
SOAK_FIRST = int(os.environ.get("RAFT_SEED", "1000"))
SOAK_SEEDS = int(os.environ.get("RAFT_SEEDS", "2000"))
STORM_S = 15.0


def play(seed: int, seconds: float) -> tuple[World, Storm]:
    """One run: a storm, calm, one more claim; then all agree."""
    size = 5 if seed % 5 == 4 else 3
    with World(seed, size, late=0.03 if seed % 2 else 0.0) as world:
        storm = Storm(world)
        storm.blow(seconds)
        world.run(0.2)  # One that wakes just now believes for a moment that it leads still.
        leader = elected(world)
        commit(world, leader, 0)
        elected(world)
        facts = {
            (voter.epoch, voter.holder, voter.stores)
            for voter in (world.members[address].voter for address in world.alive())
        }
        assert len(facts) == 1, facts
        assert world.opened < max(world.stores), "the stores' set never was a majority"
        granted = [value for value, reason in world.answers.values() if reason == pysync.SUCCESS]
        assert len(set(granted)) == len(granted), "an epoch was granted twice"
        return world, storm


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_breaks_no_promise(seed: int) -> None:
    play(seed, STORM_S)


@pytest.mark.thorough
def test_the_same_seed_is_the_same_run() -> None:
    runs = [play(7, STORM_S)[0] for _ in range(2)]
    assert runs[0].number == runs[1].number
    assert runs[0].now == runs[1].now
    assert runs[0].committed == runs[1].committed


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_storms() -> None:
    """``RAFT_SEED`` and ``RAFT_SEEDS`` say which and how many."""
    claims = faults = 0
    for seed in range(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS):
        world, storm = play(seed, 3 * STORM_S)
        faults += storm.faults
        claims += sum(reason == pysync.SUCCESS for _, reason in world.answers.values())
    print(f"{SOAK_SEEDS} storms, {faults} faults, {claims} claims granted, no promise broken")

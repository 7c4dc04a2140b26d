"""
Hosts with stores through storms of faults: whatever was answered is at each primary, and all heals.

The product's decisions (who takes over, who is in the set, what a node does with its store, what a
group's answers say) run against simulated stores; the same seed is the same storm.
"""

from __future__ import annotations

import os

import pytest
from support.replication.world import World

SOAK_FIRST = int(os.environ.get("SIM_SEED", "1000"))
SOAK_SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
HEALS_S = 12.0


def storm(
    seed: int,
    hosts: int,
    seconds: float,
    bad: str = "",
    worst: bool = False,
    deceived: bool = False,
) -> World:
    """
    Any fault at any host; ``worst``: who came least far is elected on purpose; ``deceived``: nodes
    that live are taken for dead now and then.
    """
    world = World(seed, hosts, bad, worst=worst, deceived=deceived)
    world.run(2.5)
    world.storm(seconds, world.harm, (0.5, 2.5))
    return world


def held(seed: int, bad: str = "") -> World:
    """The fault that is chosen to hurt, and the member that it hurts is elected."""
    world = World(seed, 3, bad, worst=True)
    world.run(2.5)
    world.storm(20.0, world.hurts, (4.0, 5.0))
    return world


def heals(world: World, seed: int) -> None:
    story = "\n".join(world.story[-60:])
    assert not world.lost, f"seed {seed}\n{story}"
    world.heal()
    world.run(HEALS_S)
    assert not (why := world.missing()), f"seed {seed}: {why}\n{story}"
    assert not world.lost, f"seed {seed}\n{story}"
    assert len(world.oked) > 100, f"seed {seed}: hardly anything was answered"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hosts", [3, 5])
def test_a_storm_loses_no_answered_write_and_all_heals(seed: int, hosts: int) -> None:
    heals(storm(seed, hosts, 15.0, worst=seed % 2 == 1), seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_who_lives_and_is_taken_for_dead_loses_nothing(seed: int) -> None:
    """Firewalls may make a death look real: that costs elections alone."""
    world = storm(seed, 3, 15.0, worst=True, deceived=True)
    assert world.misled, "it did happen"
    world.deceived = False
    heals(world, seed)


@pytest.mark.thorough
def test_a_held_stream_and_a_dead_host_lose_what_a_count_of_replicas_had_confirmed() -> None:
    heals(held(1), 1)
    assert held(1, bad="count").lost


@pytest.mark.thorough
def test_a_member_taken_in_for_being_near_lacks_what_was_answered() -> None:
    assert any(storm(seed, 3, 20.0, bad="near", worst=True).lost for seed in range(30))


@pytest.mark.thorough
def test_the_same_seed_is_the_same_storm() -> None:
    assert storm(3, 3, 6.0).story == storm(3, 3, 6.0).story


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_hundreds_of_storms() -> None:
    """``SIM_SEED`` and ``SIM_SEEDS`` say which and how many."""
    answers = faults = 0
    for seed in range(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS):
        world = storm(seed, 5 if seed % 3 == 2 else 3, 40.0, worst=seed % 2 == 1)
        heals(world, seed)
        answers, faults = answers + len(world.oked), faults + world.faults_done
    print(f"{SOAK_SEEDS} storms, {faults} faults, {answers} answers")

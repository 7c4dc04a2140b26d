"""How long a leader may believe that it leads, how soon another does, and planned changes."""

from __future__ import annotations

import statistics

import pytest
from support.raft.faults import commit, elected, others
from support.raft.scenes import keep
from support.raft.simulation import TIMES, Member, World

from tidewarden.raft import pysync

SEEDS = range(20)


def lease_s(member: Member) -> float:
    left: float = member.voter.lease_until - member.monotonic()
    return left


@pytest.mark.parametrize("size", [3, 5])
def test_a_leader_that_is_answered_has_its_lease_all_the_time(size: int) -> None:
    with World(1, size) as world:
        leader = world.members[elected(world)]
        world.run(0.2)
        for _ in range(200):
            world.run(0.05)
            assert 0.2 < lease_s(leader) <= TIMES.election_min_s


@pytest.mark.thorough
def test_it_ends_within_an_election_time_of_the_last_answer() -> None:
    for seed in SEEDS:
        with World(seed) as world:
            address = elected(world)
            leader = world.members[address]
            world.run(0.5)
            for other in others(world, address):
                world.cut(other, address)
            began = world.now
            assert world.run(1, lambda leader=leader: lease_s(leader) <= 0)
            assert world.now - began <= TIMES.election_min_s


@pytest.mark.thorough
def test_a_killed_leader_is_replaced_at_once() -> None:
    """Its port refuses: nobody waits for its silence."""
    took = []
    for seed in SEEDS:
        with World(seed) as world:
            leader = elected(world)
            commit(world, leader, 1)
            world.kill(leader)
            began = world.now
            assert world.run(
                2, lambda world=world: any(lease_s(world.members[one]) > 0 for one in world.alive())
            )
            took.append(world.now - began)
            commit(world, world.believers()[0], 2)
    assert statistics.median(took) < 0.2
    assert max(took) < 2.0


@pytest.mark.thorough
def test_a_leader_whose_host_dies_is_replaced_within_two_seconds() -> None:
    """Nothing comes back from there."""
    took = []
    for seed in SEEDS:
        with World(seed) as world:
            leader = elected(world)
            for other in others(world, leader):
                world.cut(leader, other)
                world.cut(other, leader)
            world.kill(leader)
            began = world.now
            assert world.run(2, lambda world=world: bool(world.believers()))
            took.append(world.now - began)
    assert 0.4 < statistics.median(took) < 1.0


def test_what_one_member_alone_takes_for_a_death_unseats_nobody() -> None:
    """A firewall that was changed between it and the leader: others are linked to that one."""
    with World(1) as world:
        leader = elected(world)
        deceived, _ = others(world, leader)[:2]
        world.cut(deceived, leader)
        world.cut(leader, deceived)
        world.run(world.noticed_s + 0.1)
        world.running = world.members[deceived]
        voter = world.members[deceived].voter
        voter.on_port_refused(next(node for node in voter.otherNodes if node.id == leader))
        keep(world, leader, 2)
        assert not voter.ended


@pytest.mark.thorough
def test_after_a_long_parting_all_follow_within_two_seconds_of_the_link() -> None:
    for seed in SEEDS[:8]:
        with World(seed, 5) as world:
            elected(world)
            names = list(world.members)
            world.part(names[:2], names[2:4], names[4:])  # nobody has a majority
            world.run(10)
            assert world.believers() == []
            world.heal()
            elected(world, 2.5)


@pytest.mark.thorough
def test_a_handover_ends_the_lease_before_the_heir_begins() -> None:
    for seed in SEEDS:
        with World(seed) as world:
            address = elected(world)
            heir = others(world, address)[0]
            world.run(0.5)
            world.running = world.members[address]
            assert world.members[address].voter.hand_over(heir.removesuffix(":1")) == pysync.SUCCESS
            assert lease_s(world.members[address]) < 0
            assert world.run(0.1, lambda world=world, heir=heir: world.believers() == [heir])
            keep(world, heir, 3)


def test_a_handover_that_is_refused_leaves_the_lease() -> None:
    with World(1) as world:
        address = elected(world)
        world.run(0.5)
        for other in others(world, address):
            world.cut(other, address)
        world.claim(address, 1)
        world.run(0.05)
        world.running = world.members[address]
        assert world.members[address].voter.hand_over(None) != pysync.SUCCESS
        assert lease_s(world.members[address]) > 0


def test_nothing_is_handed_to_a_member_that_has_died() -> None:
    with World(1) as world:
        address = elected(world)
        dead, alive = others(world, address)[:2]
        world.run(0.5)
        world.kill(dead)
        world.run(0.6)
        world.running = world.members[address]
        assert world.members[address].voter.hand_over(dead.removesuffix(":1")) != pysync.SUCCESS
        keep(world, address, 2)
        asked = world.running = world.members[alive]
        assert asked.voter.wish(dead.removesuffix(":1")) == pysync.SUCCESS
        assert world.run(0.5, lambda: "not connected" in asked.voter.refusal)
        keep(world, address, 2)


@pytest.mark.thorough
def test_a_handover_that_arrives_late_unseats_nobody() -> None:
    for seed in SEEDS:
        with World(seed) as world:
            address = elected(world)
            heir = others(world, address)[0]
            world.run(0.5)
            world.cut(address, heir, hold=True)
            world.running = world.members[address]
            assert world.members[address].voter.hand_over(heir.removesuffix(":1")) == pysync.SUCCESS
            assert world.run(3, lambda world=world: bool(world.believers()))
            world.run(1)
            second = world.believers()[0]
            world.heal()
            keep(world, second, 3)

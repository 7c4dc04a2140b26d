"""
Scenes in which the stock library breaks a promise, as steps for a simulated cluster of either
breed.

Each raises :class:`Violation` where the promise is broken. They are named after what must hold.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

from support.raft.faults import commit, elected, others
from support.raft.simulation import SETTLE_S, Violation, World

from tidewarden.raft import pysync

FAR = 1e6


def keep(world: World, leader: str, seconds: float) -> None:
    """Run; ``leader`` stays the one leader, in its term."""
    term = world.members[leader].voter.raftCurrentTerm

    def unseated() -> bool:
        return world.believers() != [leader] or world.members[leader].voter.raftCurrentTerm != term

    if world.run(seconds, unseated):
        world.broken(f"{leader} is unseated")


def lead(world: World, address: str) -> None:
    """Have ``address`` win the next election: nobody else stands."""
    for _ in range(100):
        for other in world.alive():
            world.members[other].voter._SyncObj__raftElectionDeadline = FAR
        if world.run(0.2, lambda: world.members[address].voter._isLeader()):
            return
        world.members[address].voter._SyncObj__raftElectionDeadline = 0.0
        world.run(0.05)
    world.broken(f"{address} is not elected")


def a_stopped_leader_wakes_up_without_belief(world: World) -> None:
    world.beliefs = True
    leader = elected(world)
    world.pause(leader)
    world.run(3)
    for other in others(world, leader):
        world.cut(other, leader)
    world.resume(leader, reads_first=True)
    world.run(1)


def acknowledgements_that_were_long_on_their_way_prolong_nothing(world: World) -> None:
    world.beliefs = True
    leader = elected(world)
    acks = [(other, leader) for other in others(world, leader)]
    for link in acks:
        world.cut(*link, hold=True)
    world.run(0.1)
    for other, _ in acks:
        world.cut(leader, other)
    world.run(0.35)
    world.heal(*acks)
    world.run(0.005)
    for link in acks:
        world.cut(*link)
    world.run(2)


def one_lost_link_unseats_nobody(world: World) -> None:
    leader = elected(world)
    follower = others(world, leader)[0]
    world.cut(leader, follower)
    world.cut(follower, leader)
    keep(world, leader, 20)
    world.heal()
    keep(world, leader, 3)


def who_hears_nothing_but_is_heard_unseats_nobody(world: World) -> None:
    leader = elected(world)
    world.cut(leader, others(world, leader)[0])
    keep(world, leader, 20)


def who_comes_back_unseats_nobody(world: World) -> None:
    leader = elected(world)
    follower = others(world, leader)[0]
    world.part([follower], others(world, follower))
    keep(world, leader, 3)
    world.heal()
    keep(world, leader, 3)
    elected(world)


def who_is_alone_stands_in_no_term(world: World) -> None:
    leader = elected(world)
    follower = others(world, leader)[0]
    term = world.term()
    world.part([follower], others(world, follower))
    world.run(10)
    if world.members[follower].voter.raftCurrentTerm != term:
        world.broken(f"{follower}, alone, went from term {term} to {world.term()}")


def who_was_stopped_unseats_nobody(world: World) -> None:
    leader = elected(world)
    follower = others(world, leader)[0]
    for _ in range(3):
        world.pause(follower)
        keep(world, leader, 3)
        world.resume(follower, reads_first=False)
        keep(world, leader, 2)
    elected(world)


def who_is_alone_names_no_leader(world: World) -> None:
    leader = elected(world)
    follower = others(world, leader)[0]
    for other in others(world, follower):
        world.kill(other)
    world.run(3)
    if world.members[follower].voter._getLeader() is not None:
        world.broken(f"{follower} still names {leader}, which is dead")


def what_was_acknowledged_long_ago_keeps_no_leader(world: World) -> None:
    """A stopped leader wakes up, reads answers that have waited for it, and ceases."""
    leader = elected(world)
    world.pause(leader)
    world.run(0.05)
    for other in others(world, leader):
        world.cut(other, leader)
        world.cut(leader, other)
    world.run(3)
    world.resume(leader, reads_first=True)
    world.run(0.05)
    if leader in world.believers():
        world.broken(f"{leader} goes on leading")


def who_is_behind_in_term_hears_of_it(world: World) -> None:
    """
    One of two that are left has the longer log, the other has voted in a later term: that must not
    block them.
    """
    leader = elected(world)
    follower, third = others(world, leader)[:2]
    world.part([leader, follower], [third])
    commit(world, leader, 1)
    world.kill(follower)
    world.kill(leader)
    world.members[third].voter._SyncObj__setCurrentTerm(world.term() + 5, None)
    world.heal()
    world.start(leader)
    elected(world)


def a_snapshot_commits_nothing_that_it_replaces(world: World) -> None:
    leader = elected(world)
    commit(world, leader, 1)
    elected(world)
    world.part([leader], others(world, leader))
    for number in (900, 901):
        world.claim(leader, number)
    world.run(3)
    heir = next(address for address in world.believers() if address != leader)
    for number in range(2, 22):
        commit(world, heir, number)
    for other in others(world, leader):
        world.members[other].voter.forceLogCompaction()
    world.run(1)
    world.heal()
    world.run(5)
    for number in (900, 901):
        if world.answers.get(number, (None, -1))[1] == pysync.SUCCESS:
            world.broken(f"claim {number} was lost and is said to be committed")
    elected(world)


def acknowledgements_of_another_term_do_not_count(world: World) -> None:
    """
    Five members. What the second acknowledged in the first term reaches the first in its next.
    """
    a, b, c, d, e = world.members
    lead(world, a)
    world.run(0.5)
    world.part([a, b], [c, d, e])
    world.cut(b, a, hold=True)
    for number in range(5):
        world.claim(a, number)
    world.run(0.3)
    lead(world, c)
    world.heal(*[link for link in world.cuts if link != (b, a)])
    lead_on(world, c, 1.5)
    for one, two in ((a, c), (b, c), (b, d), (b, e), (c, d), (c, e)):
        world.cut(one, two)
        world.cut(two, one)
    lead(world, a)
    world.run(0.3)
    world.cut(a, b)
    world.cut(a, e)
    world.cut(e, a)
    world.claim(a, 6)
    world.run(0.05)
    world.heal((b, a))
    world.run(0.3)
    world.kill(a)
    world.kill(d)
    world.heal()
    lead(world, e)
    commit(world, e, 7)
    world.start(a)
    world.start(d)
    elected(world)


def lead_on(world: World, leader: str, seconds: float) -> None:
    """Run on; nobody stands."""
    end = world.now + seconds
    while world.now < end:
        world.run(0.1)
        for other in world.alive():
            world.members[other].voter._SyncObj__raftElectionDeadline = FAR
    if leader not in world.believers():
        world.broken(f"{leader} does not lead on")


def a_late_message_cuts_nothing_off(world: World) -> None:
    """A heartbeat of a replaced connection arrives when its receiver has acknowledged more."""
    leader = elected(world)
    follower, third = others(world, leader)[:2]
    world.run(0.5)
    late = world.sent[leader, follower]
    world.part([leader, follower], [third])
    for number in range(3):
        commit(world, leader, number)
    world.run(0.3)
    world.post(leader, follower, late, world.now)
    world.kill(leader)
    world.heal()
    world.run(SETTLE_S, lambda: bool(world.believers()))
    commit(world, world.believers()[0], 9)
    world.start(leader)
    elected(world)


def who_has_no_room_for_a_term_is_not_in_it(world: World) -> None:
    """
    Its disk is full when another is elected; it is killed, has room again, and can begin with what
    is there.
    """
    leader = elected(world)
    full, heir = others(world, leader)[:2]
    world.run(0.5)
    world.fill(full)
    world.running = world.members[leader]
    world.members[leader].voter.hand_over(heir.removesuffix(":1"))
    if not world.run(SETTLE_S, lambda: heir in world.believers()):
        world.broken(f"{heir} does not lead")
    commit(world, heir, 1)
    world.run(1)
    world.kill(full)
    world.free(full)
    world.start(full)
    commit(world, elected(world), 2)


def what_cannot_be_applied_stops_nobody(world: World) -> None:
    """An entry of a version to come, or garbage; it is read again at each start."""
    leader = elected(world)
    world.running = world.members[leader]
    for command in (
        b"\x00garbage",
        b"\x00" + pickle.dumps(99, 2),
        b"\x03" + pickle.dumps(7, 2),
        b"\x02garbage",
        b"\x09",
        b"",
    ):
        world.members[leader].voter._applyCommand(command, None)
    try:
        commit(world, leader, 1)
        world.kill(leader)
        world.start(leader)
        commit(world, elected(world), 2)
    except Violation:
        raise
    except Exception as error:
        world.broken(f"{type(error).__name__} ends the tick")


SCENES: tuple[Callable[[World], None], ...] = (
    a_stopped_leader_wakes_up_without_belief,
    acknowledgements_that_were_long_on_their_way_prolong_nothing,
    one_lost_link_unseats_nobody,
    who_hears_nothing_but_is_heard_unseats_nobody,
    who_comes_back_unseats_nobody,
    who_is_alone_stands_in_no_term,
    who_was_stopped_unseats_nobody,
    who_is_alone_names_no_leader,
    what_was_acknowledged_long_ago_keeps_no_leader,
    a_snapshot_commits_nothing_that_it_replaces,
    acknowledgements_of_another_term_do_not_count,
    a_late_message_cuts_nothing_off,
    what_cannot_be_applied_stops_nobody,
)


def show(scene: Callable[[World], None], breed: type, seed: int) -> None:
    """Play one scene with members of this breed. Raises: Violation."""
    size = 5 if scene is acknowledgements_of_another_term_do_not_count else 3
    batch_bytes = 64 if scene is a_snapshot_commits_nothing_that_it_replaces else 0
    with World(seed, size, breed, batch_bytes=batch_bytes) as world:
        scene(world)

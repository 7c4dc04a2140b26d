"""
Scenes in which the members change, as steps for a simulated cluster. Each raises Violation where a
promise is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.raft.faults import commit, elected, others
from support.raft.scenes import keep
from support.raft.simulation import SETTLE_S, World

from tidewarden.errors import Error
from tidewarden.raft.membership import ANOTHER_FOLDER, NOT_THERE, Members
from tidewarden.raft.store_facts import StoreFacts

Make = Callable[[Members], Members]


def members(world: World, address: str) -> Members:
    """The newest version that a member has."""
    found: Members | None = world.members[address].voter.members
    if found is None:
        world.broken(f"{address} knows no members")
    return found


def founded(world: World) -> str:
    """
    Run until a leader has founded the cluster and all have it, with everybody's mark; the leader.
    """

    def whole() -> bool:
        known = [world.members[address].voter.members for address in world.alive()]
        return all(
            one is not None and all(seat.mark for seat in one.seats.values()) for one in known
        )

    elected(world)
    if not world.run(SETTLE_S, whole):
        world.broken("the cluster is not founded")
    return elected(world)


def alter(
    world: World, make: Make, done: Callable[[Members], bool], limit_s: float = SETTLE_S
) -> Members:
    """Ask for a change as an operator would, again and again, until a leader has it committed."""
    end = world.now + limit_s

    def there() -> bool:
        return any(
            (voter := world.members[address].voter).members is not None
            and voter.committed()
            and done(voter.members)
            for address in world.believers()
        )

    while not there():
        if world.now >= end:
            world.broken("a change is not committed")
        for address in world.believers():
            voter = world.members[address].voter
            if voter.members is not None and voter.committed():
                world.running = world.members[address]
                try:
                    voter.propose(make(voter.members))
                except Error:  # it was made meanwhile
                    continue
        world.run(0.3, there)
    return members(
        world, next(address for address in world.believers() if done(members(world, address)))
    )


def join(world: World, name: str, limit_s: float = SETTLE_S) -> None:
    """Have a member join; it is started before, and has its vote when this returns."""
    address = f"{name}:1"
    alter(world, lambda old: old.joined(name, address), lambda new: name in new.seats, limit_s)
    join_on(world, name, limit_s)


def join_on(world: World, name: str, limit_s: float = SETTLE_S) -> None:
    """Run until a member that joins has its vote."""
    if not world.run(
        limit_s, lambda: any(name in members(world, one).voters for one in world.believers())
    ):
        world.broken(f"{name} gets no vote")


def leave(world: World, name: str, limit_s: float = SETTLE_S) -> None:
    alter(world, lambda old: old.left(name), lambda new: name not in new.seats, limit_s)


def from_one_to_three_to_five_and_back(world: World) -> None:
    commit(world, founded(world), 1)
    for count, name in enumerate(("n1", "n2", "n3", "n4"), 2):
        world.newcomer(name, world.alive())
        join(world, name)
        commit(world, elected(world), count)
    if len(members(world, elected(world)).voters) != 5:
        world.broken("not five vote")
    # the leader among them, whoever it is
    for count, name in enumerate(("n0", "n1", "n4", "n2"), 10):
        leave(world, name)
        world.run(0.5)
        world.kill(f"{name}:1")
        commit(world, elected(world), count)
    if members(world, elected(world)).voters != {"n3"}:
        world.broken("not n3 alone votes")


def a_folder_made_anew_does_not_vote_again(world: World) -> None:
    """
    An entry that a majority had is gone if the one of them that lost its folder can elect the
    third, who had it not.
    """
    leader = founded(world)
    second, third = others(world, leader)[:2]
    world.part([leader, second], [third])
    commit(world, leader, 1)
    world.kill(leader)
    world.newcomer(second.removesuffix(":1"), [leader, third], joining=False)
    world.heal()
    if world.run(10, lambda: bool(world.believers())):
        world.claim(world.believers()[0], 2)
        world.run(3)
    world.start(leader)
    if not world.run(
        SETTLE_S, lambda: world.members[second].voter.removed_because == ANOTHER_FOLDER
    ):
        world.broken(f"{second} is not told that another folder had its name")
    world.kill(second)
    commit(world, elected(world), 3)
    name = second.removesuffix(":1")
    leave(world, name)
    world.newcomer(name, [leader, third])
    join(world, name)
    commit(world, elected(world), 4)


def who_was_removed_is_told_and_unseats_nobody(world: World) -> None:
    leader = founded(world)
    gone = others(world, leader)[0]
    world.part([gone], others(world, gone))
    world.run(3)
    leave(world, gone.removesuffix(":1"))
    world.heal()
    keep(world, leader, 5)
    if (
        world.members[gone].voter.removed_because != NOT_THERE
        or world.members[gone].voter.may_stand()
    ):
        world.broken(f"{gone} does not know that it is no member")


def who_leads_and_leaves_hands_over_first(world: World) -> None:
    leader = founded(world)
    leave(world, leader.removesuffix(":1"))
    if world.run(0.5, lambda: leader in world.believers()):
        world.broken(f"{leader} leads though it left")
    commit(world, elected(world), 1)


def who_joins_and_is_away_stops_nobody(world: World) -> None:
    """
    A lone node that another is to join goes on alone until that one is there, also when it starts
    again.
    """
    leader = founded(world)
    alter(world, lambda old: old.joined("n9", "n9:1"), lambda new: "n9" in new.seats)
    keep(world, leader, 3)
    commit(world, leader, 1)
    world.kill(leader)
    world.start(leader)
    commit(world, elected(world), 2)
    world.newcomer("n9", [leader])
    join_on(world, "n9")
    commit(world, elected(world), 3)


def a_change_that_was_not_committed_is_undone(world: World) -> None:
    leader = founded(world)
    rest = others(world, leader)
    world.part([leader], rest)
    world.running = world.members[leader]
    voter = world.members[leader].voter
    voter.propose(voter.members.joined("n7", "n7:1"))
    world.run(0.06)
    if "n7" not in members(world, leader).seats:
        world.broken("the leader did not take the change")
    world.run(3)
    leave(world, leader.removesuffix(":1"))
    world.heal()
    world.run(3)
    final = elected(world)
    if "n7" in members(world, leader).seats and not world.members[leader].voter.removed_because:
        world.broken(f"{leader} goes by a change that never was")
    commit(world, final, 1)


def one_change_at_a_time(world: World) -> None:
    """Two leave at once, asked of three nodes: four become three before three become two."""
    leader = founded(world)
    for _ in range(3):
        for asked in world.alive():
            world.running = world.members[asked]
            voter = world.members[asked].voter
            for name in ("n3", "n4"):
                if name in voter.members.seats and asked != f"{name}:1":
                    voter.propose(voter.members.left(name))
        world.run(0.03, lambda: _more_than_one(world))
        if _more_than_one(world):
            world.broken("two changes are on their way")
        world.run(0.5)
    if leader in (f"{name}:1" for name in members(world, elected(world)).voters):
        commit(world, elected(world), 1)


def _more_than_one(world: World) -> bool:
    leaders = [world.members[address] for address in world.believers()]
    return any(
        sum(index > leader.voter.raftCommitIndex for index, _ in leader.secret("raftLog").versions)
        > 1
        for leader in leaders
    )


def nobody_leaves_when_those_who_stay_are_no_majority(world: World) -> None:
    leader = founded(world)
    alive, dead = others(world, leader)[:2]
    world.kill(dead)
    world.run(2)
    world.running = world.members[leader]
    voter = world.members[leader].voter
    voter.propose(voter.members.left(alive.removesuffix(":1")))
    world.run(0.5)
    if (
        alive.removesuffix(":1") not in members(world, leader).seats
        or "can be heard" not in voter.refusal
    ):
        world.broken("the last other that answers was let go")
    asked = world.running = world.members[alive]
    asked.voter.propose(asked.voter.members.left(alive.removesuffix(":1")), lambda *_: None)
    if not world.run(0.5, lambda: "can be heard" in asked.voter.refusal):
        world.broken("who was asked in the leader's place does not hear why not")
    leave(world, dead.removesuffix(":1"))
    leave(world, alive.removesuffix(":1"))
    commit(world, elected(world), 1)


def all_that_were_moved_find_each_other(world: World) -> None:
    """
    Every member starts again under another address, as its configuration says: nobody has to be
    told.
    """
    founded(world)
    names = {address: address.replace(":1", ":2") for address in list(world.members)}
    for old in names:
        world.kill(old)
    for old, new in names.items():
        member = world.members.pop(old)
        member.seeds = {one.removesuffix(":2"): one for one in names.values()}
        world.members[new] = member
    for new in names.values():
        world.start(new)
    leader = elected(world)
    commit(world, leader, 1)
    world.run(1)
    if set(members(world, leader).addresses().values()) != set(names.values()):
        world.broken("the members are still said to be where they were")


def two_newcomers_found_no_second_cluster(world: World) -> None:
    """
    A lone node's newcomers were started, told to join, before anybody let them: they elect nobody.
    """
    founded(world)
    for name, other in (("n1", "n2"), ("n2", "n1")):
        world.newcomer(name, ["n0:1", f"{other}:1"])
    world.run(10)
    if world.believers() != ["n0:1"]:
        world.broken(f"{world.believers()} lead")
    join(world, "n1")
    join(world, "n2")
    elected(world)
    world.running = world.members["n0:1"]
    world.members["n0:1"].voter.hand_over("n2")
    world.run(0.5)
    if world.believers() != ["n2:1"]:
        world.broken("n2 does not lead")
    commit(world, elected(world), 1)


def those_made_anew_beside_a_survivor_are_another_cluster(world: World) -> None:
    """
    Two of three come back with empty folders while the third is away, and found a cluster: neither
    of the two clusters takes anything of the other, and both say so.
    """
    leader = founded(world)
    commit(world, leader, 1)
    world.run(2)  # what is committed is noted once a second
    for address in world.alive():
        world.kill(address)
    # what two clusters have is compared with nothing
    world.committed, world.leaders, world.stores = {}, {}, {}
    for name, other in (("n1", "n2"), ("n2", "n1")):
        world.newcomer(name, ["n0:1", f"{other}:1"], joining=False)
    if not world.run(SETTLE_S, world.believers):
        world.broken("the two elect nobody")
    commit(world, world.believers()[0], 2)
    world.run(2)
    world.start("n0:1")
    survivor = world.members["n0:1"]
    survivor.checked = survivor.judged = 2**40
    before = survivor.voter.members
    for address in world.alive():
        world.running = world.members[address]
        world.running.voter.say_store((address,))
    world.run(5)
    commit(world, world.believers()[0], 3)
    if survivor.voter.members != before or survivor.voter.removed_because:
        world.broken(f"the survivor takes the word of another cluster: {survivor.voter.members}")
    # who leads speaks to everybody; the pings of the others are the transport's
    leads = world.believers()[0].removesuffix(":1")
    if leads not in survivor.voter.apart or survivor.voter.reports.heard:
        world.broken("the survivor does not see that the others are of another cluster")
    for address in ("n1:1", "n2:1"):
        voter = world.members[address].voter
        if set(voter.apart) != {"n0"} or "n0" in voter.reports.heard or voter.removed_because:
            world.broken(f"{address} does not see that the survivor is of another cluster")
        if members(world, address).seats["n0"].mark:
            world.broken(f"the survivor counts as a member of the second cluster at {address}")


def order(
    world: World, address: str, command: tuple[Any, ...], limit_s: float = SETTLE_S
) -> StoreFacts:
    """Have a member commit a command about the stores that is taken; the facts after it."""
    voter = world.members[address].voter
    before = voter.stores.version
    world.order(address, command)
    if not world.run(limit_s, lambda: voter.stores.version > before):
        world.broken(f"{command} is not taken: {voter.stores}")
    facts: StoreFacts = voter.stores
    return facts


def who_joins_votes_once_enough_have_the_data(world: World) -> None:
    """Two of three have a copy: of four that would be no majority."""
    leader = founded(world)
    order(world, leader, ("found", "n0", "a", 0))
    order(world, leader, ("change", 1, 1, "n0.a n1.a"))
    world.newcomer("n3", world.alive())
    alter(world, lambda old: old.joined("n3", "n3:1"), lambda new: "n3" in new.seats)
    world.run(3)
    if "n3" in members(world, elected(world)).voters:
        world.broken("n3 votes, and two of four have a whole copy")
    voter = world.members[elected(world)].voter
    if "n3: of the 4 that would vote then" not in voter.view(world.now).seat_waits:
        world.broken(f"why n3 has no vote is not said: {voter.seat_waits!r}")
    order(world, elected(world), ("change", 1, 2, "n0.a n1.a n3.a"))
    join_on(world, "n3")
    world.run(0.5)
    if any(world.members[address].voter.view(world.now).seat_waits for address in world.alive()):
        world.broken("n3 votes, and is said to wait")
    if order(world, "n3:1", ("elect", 1, "n3", "a", "a", "", 0)).primary != "n3":
        world.broken("n3 is not elected, though its store is in the set")


def who_leaves_takes_no_majority_along(world: World) -> None:
    """The primary stays, and so does whose copy is needed; who has none goes."""
    leader = founded(world)
    order(world, leader, ("found", "n0", "a", 0))
    order(world, leader, ("change", 1, 1, "n0.a n1.a"))
    for name, why in (("n0", "handed over"), ("n1", "whole copy")):
        address = elected(world)
        voter = world.members[address].voter
        world.running = world.members[address]
        voter.propose(voter.members.left(name))
        world.run(1)
        if name not in members(world, elected(world)).seats:
            world.broken(f"{name} left, and its copy with it")
        if why not in voter.refusal or elected(world) != address:
            world.broken(f"{name} was refused for another reason: {voter.refusal}")
    leave(world, "n2")
    commit(world, elected(world), 1)


def what_is_on_its_way_is_waited_for(world: World) -> None:
    """A set that shrinks while a member goes: the two that stay must both have a copy."""
    leader = founded(world)
    order(world, leader, ("found", "n0", "a", 0))
    order(world, leader, ("change", 1, 1, "n0.a n1.a n2.a"))
    gone = "n1" if leader == "n2:1" else "n2"
    kept = {"n1": "n2", "n2": "n1"}[gone]
    world.order(leader, ("change", 1, 2, f"n0.a {gone}.a"))
    voter = world.members[leader].voter
    voter.propose(voter.members.left(gone))
    world.run(2)
    if gone not in members(world, elected(world)).seats:
        world.broken(f"{gone} left though {kept} has no copy")
    commit(world, elected(world), 1)


def a_restart_judges_by_the_members_of_then(world: World) -> None:
    """A set of two was a majority of three, and is none of the five that vote at the restart."""
    leader = founded(world)
    order(world, leader, ("found", "n0", "a", 0))
    order(world, leader, ("change", 1, 1, "n0.a n1.a n2.a"))
    order(world, leader, ("change", 1, 2, "n0.a n1.a"))
    grown = order(world, leader, ("change", 1, 3, "n0.a n1.a n2.a"))
    for name in ("n3", "n4"):
        world.newcomer(name, world.alive())
        join(world, name)
    again = elected(world)
    world.kill(again)
    world.start(again)
    commit(world, elected(world), 1)
    for address in world.alive():
        if world.members[address].voter.stores != grown:
            world.broken(f"{address} has {world.members[address].voter.stores}, not {grown}")


SIZES: dict[Callable[[World], None], int] = {
    from_one_to_three_to_five_and_back: 1,
    two_newcomers_found_no_second_cluster: 1,
    who_joins_and_is_away_stops_nobody: 1,
    one_change_at_a_time: 5,
}
SCENES: tuple[Callable[[World], None], ...] = (
    from_one_to_three_to_five_and_back,
    a_folder_made_anew_does_not_vote_again,
    who_was_removed_is_told_and_unseats_nobody,
    who_leads_and_leaves_hands_over_first,
    who_joins_and_is_away_stops_nobody,
    a_change_that_was_not_committed_is_undone,
    one_change_at_a_time,
    nobody_leaves_when_those_who_stay_are_no_majority,
    all_that_were_moved_find_each_other,
    two_newcomers_found_no_second_cluster,
    those_made_anew_beside_a_survivor_are_another_cluster,
    who_joins_votes_once_enough_have_the_data,
    who_leaves_takes_no_majority_along,
    what_is_on_its_way_is_waited_for,
    a_restart_judges_by_the_members_of_then,
)


def show(scene: Callable[[World], None], breed: type, seed: int) -> None:
    """Play one scene with members of this breed. Raises: Violation."""
    with World(seed, SIZES.get(scene, 3), breed) as world:
        scene(world)

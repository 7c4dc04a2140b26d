"""
Members that change, in the simulation: each scene holds, and fails again without the rule that it
is about.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import pytest
from support.raft import membership_scenes as scenes
from support.raft.faults import commit, elected
from support.raft.members import Ours
from support.raft.membership_storm import MembershipStorm
from support.raft.simulation import Violation, World

from tidewarden.raft import membership, pysync
from tidewarden.raft.membership import Members

SEEDS = range(1, 4)
SOAK_FIRST = int(os.environ.get("RAFT_SEED", "1000"))
SOAK_SEEDS = int(os.environ.get("RAFT_SEEDS", "500"))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


def violated(scene: Callable[[World], None], breed: type) -> list[str]:
    """What was broken, over all seeds; empty if nothing was."""
    found = []
    for seed in SEEDS:
        try:
            scenes.show(scene, breed, seed)
        except Violation as violation:
            found.append(str(violation))
    return found


@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
def test_it_holds(scene: Callable[[World], None]) -> None:
    assert violated(scene, Ours) == []


class Markless(Ours):
    """Every folder is like any other."""

    def outgoing(self, message: dict[str, object]) -> dict[str, object]:
        return super().outgoing(message) | {"mark": "any"}


class Forgiving(Ours):
    """Takes every change, whatever is on its way and whoever is left."""

    def _SyncObj__changeCluster(self, request: Members) -> bool:
        self.refusal = ""
        return self._adopted is None or self.own in request.voters


class Wordless(Ours):
    """As a version before clusters had words: it says none, and founds none."""

    def outgoing(self, message: dict[str, object]) -> dict[str, object]:
        said = super().outgoing(message)
        del said["word"]
        return said

    def propose(self, members: Members, callback: Callable[..., None] | None = None) -> None:
        super().propose(Members(members.version, members.seats), callback)


class Trusting(Ours):
    """Takes whoever speaks under a member's name for that member."""

    @property
    def word(self) -> str:
        return ""


class Ready(Ours):
    """Counts whoever joins at once."""

    def _follow_log(self) -> None:
        for index, (at, members) in enumerate(self._SyncObj__raftLog.versions):
            seats = {n: membership.Seat(s.address, s.mark) for n, s in members.seats.items()}
            if seats != members.seats:
                self._SyncObj__raftLog.versions[index] = (at, Members(members.version, seats))
        super()._follow_log()


class Bold(Ours):
    """Stands though the log does not name it."""

    def may_stand(self) -> bool:
        return True


class Careless(Ours):
    """Lets members come and go whatever their stores have."""

    def _stores_fault(self, request: Members) -> str:
        return ""

    def _seatable(self, members: Members) -> list[str]:
        return self._caught_up()


class Hasty(Ours):
    """Judges a change by facts that are about to be others."""

    def _store_command_waits(self) -> bool:
        return False


class Forward(Ours):
    """Judges a command by the members of now, not by those of its place in the log."""

    def _voters_of_entry(self) -> frozenset[str]:
        return frozenset() if self._adopted is None else self._adopted.voters


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("without", "scene"),
    [
        (Markless, scenes.a_folder_made_anew_does_not_vote_again),
        (Forgiving, scenes.one_change_at_a_time),
        (Forgiving, scenes.nobody_leaves_when_those_who_stay_are_no_majority),
        (Ready, scenes.who_joins_and_is_away_stops_nobody),
        (Bold, scenes.who_was_removed_is_told_and_unseats_nobody),
        (Bold, scenes.two_newcomers_found_no_second_cluster),
        (Trusting, scenes.those_made_anew_beside_a_survivor_are_another_cluster),
        (Careless, scenes.who_joins_votes_once_enough_have_the_data),
        (Careless, scenes.who_leaves_takes_no_majority_along),
        (Hasty, scenes.what_is_on_its_way_is_waited_for),
        (Forward, scenes.a_restart_judges_by_the_members_of_then),
    ],
    ids=lambda value: value.__name__,
)
def test_without_the_rule_it_does_not(without: type, scene: Callable[[World], None]) -> None:
    assert violated(scene, without)


@pytest.mark.thorough
def test_a_cluster_of_before_gets_a_word_once_every_member_says_words() -> None:
    with World(1, 3, Wordless) as world:
        scenes.founded(world)
        world.breed = Ours
        for address in list(world.members):
            assert {world.members[one].voter.word for one in world.alive()} == {""}
            world.kill(address)
            world.start(address)
            elected(world)
            world.run(1)
        (word,) = {world.members[one].voter.word for one in world.alive()}
        assert word
        commit(world, elected(world), 1)


@pytest.mark.parametrize(
    "seed",
    [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.thorough) for seed in range(12)],
)
def test_a_storm_in_which_members_come_and_go(seed: int) -> None:
    play(seed, 15.0)


def play(seed: int, seconds: float) -> MembershipStorm:
    """One run: a storm, calm, all those that are members started; they agree, and commit."""
    with World(seed, (1, 3, 5)[seed % 3], late=0.03 if seed % 2 else 0.0) as world:
        storm = MembershipStorm(world)
        storm.blow(seconds)
        elected(world, 12.0)
        # what was asked for last may still be under way: who leads and leaves hands over
        world.run(2)
        commit(world, elected(world), 0)
        elected(world)
        granted = [value for value, reason in world.answers.values() if reason == pysync.SUCCESS]
        assert len(set(granted)) == len(granted), "an epoch was granted twice"
        return storm


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_storms_in_which_members_come_and_go() -> None:
    """``RAFT_SEED`` and ``RAFT_SEEDS`` say which and how many."""
    faults = changes = 0
    for seed in range(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS):
        storm = play(seed, 45.0)
        faults += storm.faults
        changes += storm.changes
    print(f"{SOAK_SEEDS} storms, {faults} faults, {changes} changes asked for, no promise broken")

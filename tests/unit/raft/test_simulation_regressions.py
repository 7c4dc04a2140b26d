"""
The defects of PySyncObj 0.3.17, by name: each shows on the stock library and not on ours, nor
without our rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from pysyncobj import SyncObj
from support.raft import scenes
from support.raft.faults import elected
from support.raft.members import Ours, Stock
from support.raft.simulation import Violation, World

from tidewarden.raft import voter
from tidewarden.raft.wire import Message

SEEDS = range(1, 7)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)  # the stock library complains, rightly


def violated(scene: Callable[[World], None], breed: type, seeds: range = SEEDS) -> list[str]:
    """What was broken, over all seeds; empty if nothing was."""
    found = []
    for seed in seeds:
        try:
            scenes.show(scene, breed, seed)
        except Violation as violation:
            found.append(str(violation))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("scene", scenes.SCENES, ids=lambda scene: scene.__name__)
def test_stock_breaks_it(scene: Callable[[World], None]) -> None:
    assert violated(scene, Stock)


@pytest.mark.parametrize(
    "scene",
    [
        *scenes.SCENES,
        scenes.who_is_behind_in_term_hears_of_it,
        scenes.who_has_no_room_for_a_term_is_not_in_it,
    ],
    ids=lambda scene: scene.__name__,
)
@pytest.mark.parametrize(
    "seeds",
    [
        SEEDS[:1],
        pytest.param(SEEDS[1:3], marks=pytest.mark.thorough),
        pytest.param(SEEDS[3:], marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_ours_holds_it(scene: Callable[[World], None], seeds: range) -> None:
    assert violated(scene, Ours, seeds) == []


class Unsticky(Ours):
    def is_sticky(self) -> bool:
        return False


class Rash(Ours):
    """Stands without having asked."""

    def _ask(self) -> None:
        self._stand = True


class Cutting(Ours):
    def _without_needless_cut(self, message: Message) -> Message:
        return message


class Credulous(Ours):
    """Takes what was acknowledged in another term for its own."""

    def _on_ack(self, node: object, message: Message) -> None:
        super()._on_ack(node, message | {"term": self.raftCurrentTerm})


class Hasty(Ours):
    """Believes the commit index of a snapshot that it has not got yet."""

    def _on_append(self, node: object, message: Message) -> Message | None:
        judged = super()._on_append(node, message)
        return judged if judged is None else judged | {"commit_index": message["commit_index"]}


class Silent(Ours):
    def _tell_term(self, node: object) -> None:
        pass


class Early(Ours):
    """Is in a new term before it is on the disk."""

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        SyncObj._SyncObj__setCurrentTerm(self, term, voted_for)


class Hurried(Ours):
    """Speaks before its log is on its disk."""

    def outgoing(self, message: Message) -> Message:
        log = self._SyncObj__raftLog
        unsaid, log.unsaid = log.unsaid, 0
        message = super().outgoing(message)
        log.unsaid = unsaid
        return message


class Late(Ours):
    """Counts its lease from when an answer came."""

    def _on_ack(self, node: object, message: Message) -> None:
        super()._on_ack(node, message | {"sent": self.clock.monotonic()})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("without", "scene"),
    [
        (Unsticky, scenes.who_hears_nothing_but_is_heard_unseats_nobody),
        (Rash, scenes.who_is_alone_stands_in_no_term),
        (Cutting, scenes.a_late_message_cuts_nothing_off),
        (Credulous, scenes.acknowledgements_of_another_term_do_not_count),
        (Hasty, scenes.a_snapshot_commits_nothing_that_it_replaces),
        (Silent, scenes.who_is_behind_in_term_hears_of_it),
        (Hurried, scenes.who_is_alone_names_no_leader),
        (Early, scenes.who_has_no_room_for_a_term_is_not_in_it),
        (Late, scenes.what_was_acknowledged_long_ago_keeps_no_leader),
        (Late, scenes.acknowledgements_that_were_long_on_their_way_prolong_nothing),
    ],
    ids=lambda value: value.__name__,
)
def test_without_the_rule_ours_breaks_it_too(
    without: type, scene: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, rule in voter.RULES.items():
        monkeypatch.setitem(voter.RULES, kind, getattr(without, rule.__name__))
    assert violated(scene, without)


class Wakeful(Ours):
    """Counts how often a wait for the sockets was ended."""

    woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_who_votes_alone_waits_for_nobody_to_commit() -> None:
    with World(1, 1, Wakeful) as world:
        voter = world.members[elected(world)].voter
        world.run(1)  # until it has founded the cluster
        before = voter.woken
        voter.doTick(0)
        assert voter.woken == before, "there is nothing to do"
        voter.store_command(("look",))
        voter.doTick(0)
        assert voter.woken == before + 1
        voter.doTick(0)
        assert (
            voter.raftLastApplied
            == voter.raftCommitIndex
            == world.members["n0:1"].secret("raftLog")[-1][1]
        )
        assert voter.woken == before + 1

"""Raft's decisions: epochs, roles, addresses."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tidewarden.errors import ConfigError
from tidewarden.raft import state as decide
from tidewarden.raft.membership import founded
from tidewarden.raft.state import EPOCH_MAX, Committed, RaftView, Times

TIMES = Times()
FOLLOWER = RaftView(
    "follower", 3, "n1", False, 7, Committed(), ticked=100.0, leader_heard=100.0, heard={"n1": 99.0}
)
LEADER = dataclasses.replace(FOLLOWER, state="leader", leader="n0", led_since=98.0)


def test_a_claim_goes_above_both_the_last_epoch_and_the_one_seen_at_the_store() -> None:
    assert Committed().claimed("n0", 1, 0) == Committed(1, "n0.1")
    assert Committed(5, "n1.2").claimed("n0", 7, 3) == Committed(6, "n0.7")
    assert Committed(5, "n1.2").claimed("n0", 7, 40) == Committed(41, "n0.7")


@pytest.mark.parametrize(
    "arguments",
    [
        (None, 1, 0),
        ("n0", "1", 0),
        ("n0", 1, None),
        ("n0", 1, 0.5),
        ("n0", 1, EPOCH_MAX - 1),
        ("n0", 1, 10**30),
    ],
)
def test_what_is_no_claim_changes_nothing_and_raises_nothing(
    arguments: tuple[object, object, object],
) -> None:
    assert Committed(5, "n1.2").claimed(*arguments) == Committed(5, "n1.2")


@pytest.mark.parametrize("pace", [0.1, 0.5, 1.0, 3.0, 100.0])
def test_the_times_keep_their_order_at_every_pace(pace: float) -> None:
    times = Times.at(pace)
    assert times.election_min_s == pytest.approx(0.5 * pace)
    assert times.heartbeat_s * 3 < times.election_min_s < times.election_max_s < times.orphan_s
    assert times.fallback_s <= times.election_min_s
    assert 0 < times.tick_s <= 0.02
    assert 0 < times.behind_s < times.acks_s < times.heartbeat_s / 20
    assert times.acks_s <= 0.003


def test_a_leader_whose_thread_stopped_ticking_is_none() -> None:
    assert decide.role(LEADER, 100.4, TIMES) == "leader"
    assert decide.role(LEADER, 100.6, TIMES) == "follower"
    assert decide.leader(LEADER, 100.6, TIMES, "n0") is None
    assert not decide.quorum(LEADER, 100.6, TIMES, "n0")


THREE = founded({"n0": "h:1", "n1": "h:2", "n2": "h:3"}, {}, "w")
ALONE = dataclasses.replace(FOLLOWER, members=THREE, leader_heard=90.0, heard={"n1": 90.5})
NOON_MS = 1_700_049_600_000


def test_who_is_missing_for_a_majority_is_named_with_the_time_it_was_heard_last() -> None:
    said = decide.quorum_fault(ALONE, 100.5, NOON_MS, TIMES, "n0")
    assert said == (
        "1 of 3 nodes is heard (n1 was not heard since 2023-11-15T11:59:50Z; n2 was not heard since"
        " this node started), and 2 are needed: start one of them, or mend the links"
    )
    heard = dataclasses.replace(ALONE, heard={"n1": 100.0})
    assert decide.quorum_fault(heard, 100.5, NOON_MS, TIMES, "n0") == "", "they may elect one"
    assert decide.quorum_fault(FOLLOWER, 200.0, NOON_MS, TIMES, "n0") == "", "who are the members?"
    led = dataclasses.replace(ALONE, leader_heard=100.0)
    assert decide.quorum_fault(led, 100.5, NOON_MS, TIMES, "n0") == ""


def test_who_answers_for_another_cluster_is_named_while_it_is_heard() -> None:
    apart = dataclasses.replace(ALONE, apart={"n2": 100.0, "n1": 90.0})
    said = decide.apart_because(apart, 101.0, TIMES)
    assert said.startswith("n2: who answers under that name belongs to another cluster")
    assert decide.apart_because(apart, 110.0, TIMES) == ""


def test_a_node_that_heard_no_leader_for_two_election_times_is_an_orphan() -> None:
    assert decide.role(FOLLOWER, 101.9, TIMES) == "follower"
    assert decide.leader(FOLLOWER, 101.9, TIMES, "n0") == "n1"
    assert decide.role(FOLLOWER, 102.1, TIMES) == "orphan"
    assert decide.leader(FOLLOWER, 102.1, TIMES, "n0") is None
    candidate = dataclasses.replace(FOLLOWER, state="candidate", leader=None)
    assert decide.role(candidate, 101.9, TIMES) == "candidate"
    assert decide.role(candidate, 102.1, TIMES) == "orphan"


def test_quorum_is_a_leader_heard_within_one_election_time() -> None:
    assert decide.quorum(LEADER, 100.1, TIMES, "n0")
    assert decide.quorum(FOLLOWER, 100.9, TIMES, "n0")
    assert not decide.quorum(FOLLOWER, 101.1, TIMES, "n0")
    assert not decide.quorum(dataclasses.replace(FOLLOWER, leader=None), 100.1, TIMES, "n0")


def test_a_peer_is_silent_since_it_was_heard_or_the_leadership_began() -> None:
    assert decide.peer_heard_s(LEADER, 100.0, "n1") == pytest.approx(1.0)
    fresh = dataclasses.replace(LEADER, led_since=99.5)
    assert decide.peer_heard_s(fresh, 100.0, "n1") == pytest.approx(0.5)
    assert decide.peer_heard_s(LEADER, 100.0, "n9") == math.inf


def test_a_lone_node_has_its_own_address() -> None:
    assert decide.addresses("n0", "10.0.0.1", 7422, {}) == {"n0": "10.0.0.1:7422"}
    assert decide.addresses("n0", "10.0.0.1", 7422, {"n0": "10.0.0.9:7420"}) == {
        "n0": "10.0.0.9:7422"
    }


def test_members_are_reached_two_above_their_base_port() -> None:
    members = {"n0": "10.0.0.1:7420", "n1": "host.example:7430", "n2": "[::1]:7440"}
    expected = {"n0": "10.0.0.1:7422", "n1": "host.example:7432", "n2": "::1:7442"}
    assert decide.addresses("n0", "0.0.0.0", 7422, members) == expected


def test_every_problem_of_the_members_is_named() -> None:
    members = {"n1": "here", "n2": "h:1", "n3": "h:1", "n4": "h:70000"}
    with pytest.raises(ConfigError) as caught:
        decide.addresses("n0", "h", 1, members)
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    for part in (
        "cluster.members.n1: found 'here'",
        "n3: found 'h:1', as for n2",
        "n4: found 'h:70000'",
        "node.name",
    ):
        assert part in text

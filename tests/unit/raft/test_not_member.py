"""What it means for people that a node is no member."""

from __future__ import annotations

import pytest

from tidewarden.config.load import Config, Node
from tidewarden.raft import state
from tidewarden.raft.membership import ANOTHER_FOLDER, NOT_THERE, Members, Seat, founded
from tidewarden.raft.state import Committed, RaftView

TWO = founded({"n0": "h:7422", "n1": "h:7432"}, {}, "w")


def seen(members: Members | None, removed_because: str = "") -> RaftView:
    return RaftView(
        "follower",
        1,
        None,
        False,
        1,
        Committed(),
        0.0,
        0.0,
        members=members,
        removed_because=removed_because,
    )


def config(name: str, role: str = "member") -> Config:
    return Config(node=Node(name=name, role=role, data_dir="/d"))


@pytest.mark.parametrize(
    ("sight", "node", "estranged", "fatal"),
    [
        (seen(TWO), config("n0"), "", ""),
        (seen(None), config("n0"), "", ""),
        (
            seen(None),
            config("n2", "joining"),
            "waits to be let in: tidewarden cluster join n2 HOST:7420",
            "",
        ),
        (seen(None, NOT_THERE), config("n2", "joining"), "waits", ""),
        (seen(None, NOT_THERE), config("n2"), "", "found 'n2', which is no member of the cluster"),
        (
            seen(None, ANOTHER_FOLDER),
            config("n1"),
            "",
            "`tidewarden cluster leave n1`, `tidewarden cluster join n1",
        ),
        (seen(None, ANOTHER_FOLDER), config("n1", "joining"), "waits", "found '/d', which is new"),
        (seen(TWO, NOT_THERE), config("n1"), "no member of the cluster any more", ""),
        (seen(TWO, ANOTHER_FOLDER), config("n1"), "another folder has its name", ""),
        (seen(TWO), config("n9"), "no member of the cluster any more", ""),
    ],
)
def test_who_is_no_member_hears_why_and_who_is_new_ends(
    sight: RaftView, node: Config, estranged: str, fatal: str
) -> None:
    for said, expected in (
        (state.not_member_because(sight, node), estranged),
        (state.must_not_start_because(sight, node), fatal),
    ):
        assert bool(said) == bool(expected)
        assert expected in said


def test_the_configurations_other_members_are_named() -> None:
    assert state.seeds_differ_because(TWO, {"n0": "h:7422", "n1": "h:7432"}) == ""
    grown = Members(4, {**TWO.seats, "n2": Seat("::1:7442")})
    said = state.seeds_differ_because(grown, {"n0": "h:7422"})
    assert (
        "n2 at [::1]:7440 (version 4), as committed; cluster.members names n0 at h:7420, which"
        in said
    )

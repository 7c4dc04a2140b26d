"""Versions of the members: what the next one can be, and what a leader refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.errors import Exists, NotFound
from tidewarden.raft import files, membership
from tidewarden.raft.membership import Members, Seat, fault, founded

THREE = founded({"n0": "h:1", "n1": "h:2", "n2": "h:3"}, {"n0": "a", "n1": "b"}, "w")


def test_a_founded_cluster_counts_all_that_are_named() -> None:
    assert THREE.version == 1
    assert THREE.voters == {"n0", "n1", "n2"}
    assert THREE.seats["n2"].mark == ""
    assert fault(None, THREE, "n0", ()) == ""


def test_who_joins_votes_when_it_was_heard_and_has_everything() -> None:
    four = THREE.joined("n3", "h:4")
    assert four.voters == THREE.voters
    assert four.seated(["n3"]) is four, "it was never heard"
    met = four.met({"n3": "d", "n0": "x"})
    assert met.seats["n3"].mark == "d"
    assert met.seats["n0"].mark == "a", "a mark is for good"
    assert met.met({"n3": "e"}) is met
    seated = met.seated(["n3", "n9"])
    assert seated.voters == {"n0", "n1", "n2", "n3"}
    assert (four.version, met.version, seated.version) == (2, 3, 4)
    with pytest.raises(Exists, match="tidewarden cluster leave n1"):
        THREE.joined("n1", "h:9")
    with pytest.raises(Exists, match="the address of the member n1"):
        THREE.joined("n9", "h:2")


def test_a_cluster_keeps_the_word_that_it_was_founded_with() -> None:
    four = THREE.joined("n3", "h:4").met({"n3": "d"}).seated(["n3"])
    assert four.left("n3").moved({"n1": "g:2"}).word == "w"
    assert four.named("other") is four
    old = Members(7, THREE.seats)
    assert old.named("w") == Members(8, THREE.seats, "w"), "of a version without words"


def test_the_last_that_votes_stays() -> None:
    with pytest.raises(NotFound, match="there are n0, n1, n2"):
        THREE.left("n9")
    lone = founded({"n0": "h:1"}, {}, "w").joined("n1", "h:2")
    with pytest.raises(NotFound, match="the last member that votes"):
        lone.left("n0")
    assert lone.left("n1").voters == {"n0"}


@pytest.mark.parametrize(
    ("new", "heard", "why"),
    [
        (Members(3, THREE.seats), ["n1"], "made of version 2, and version 1 is in force"),
        (THREE.left("n0"), ["n1", "n2"], "hands leadership over first"),
        (Members(2, {"n0": Seat("h:1")}), ["n1", "n2"], "more than one vote"),
        (THREE.left("n1"), ["n1"], "only 1 of the 2 that would vote then can be heard"),
        (THREE.left("n1"), ["n2"], ""),
        (THREE.joined("n3", "h:4"), [], ""),
        (THREE.met({"n2": "c"}), [], ""),
    ],
)
def test_what_a_leader_refuses(new: Members, heard: list[str], why: str) -> None:
    said = fault(THREE, new, "n0", heard)
    assert bool(said) == bool(why)
    assert why in said


def test_moving_changes_addresses_alone() -> None:
    assert THREE.moved({"n0": "h:1", "n9": "h:9"}) is THREE
    moved = THREE.moved({"n1": "g:2"})
    assert moved.addresses() == {"n0": "h:1", "n1": "g:2", "n2": "h:3"}
    assert moved.voters == THREE.voters


NAMES = st.text("abc", min_size=1, max_size=2)
SEATS = st.builds(Seat, st.just("h:1"), st.text("xy", max_size=2), st.booleans())


@given(
    st.builds(
        Members,
        st.integers(1, 2**40),
        st.dictionaries(NAMES, SEATS, min_size=1, max_size=5),
        st.sampled_from(["", "w"]),
    )
)
def test_what_the_log_has_is_read_again(members: Members) -> None:
    found = files.members_of(files.MEMBERSHIP + files.entry_of(members))
    assert found == (members if members.voters else None)


@pytest.mark.parametrize(
    "rubbish",
    [None, 1, (), (1,), (0, ()), (1, ()), (1, [("n", "h:1", "", True)]), (1, (("n", "h", "", True),)), (True, "x"),
     (1, (("n", "h:1", "", 1),)), (1, (("n", "h:1", "", True),) * 2), (1, (("n", "h:1", "", False),)),
     (1, (("n", "h:1", "", True),), ""), (1, (("n", "h:1", "", True),), 7),
     (1, tuple((f"n{i}", "h:1", "", True) for i in range(100)))],
)  # fmt: skip
def test_rubbish_is_no_version(rubbish: Any) -> None:
    assert membership.read(rubbish) is None


def test_an_entry_of_another_kind_is_no_version() -> None:
    for command in (
        b"",
        b"\x00",
        files.MEMBERSHIP,
        files.MEMBERSHIP + b"garbage",
        b"\x01" + files.entry_of(THREE),
    ):
        assert files.members_of(command) is None

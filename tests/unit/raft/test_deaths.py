"""Whose process has ended, by what each member found."""

from __future__ import annotations

from tidewarden.raft.state import ended_members, turn_to_ask

THREE = frozenset({"n0", "n1", "n2"})
FIVE = frozenset({"n0", "n1", "n2", "n3", "n4"})


def test_who_was_found_by_all_that_are_left_has_ended() -> None:
    assert ended_members("n1", {"n0"}, {"n2": {"n0"}}, {"n2"}, THREE) == {"n0"}


def test_what_one_member_alone_found_proves_nothing() -> None:
    """A firewall between two hosts ends their link and refuses another."""
    assert not ended_members("n1", {"n0"}, {}, {"n2"}, THREE)
    assert not ended_members("n1", {"n0"}, {"n2": set()}, {"n2"}, THREE)
    assert not ended_members("n1", set(), {"n2": {"n0"}}, {"n2"}, THREE)


def test_a_minority_declares_nobody_dead() -> None:
    assert not ended_members("n1", {"n0"}, {}, set(), THREE), "n2 is not reached either"
    assert not ended_members("n3", {"n0"}, {"n4": {"n0"}}, {"n4"}, FIVE)


def test_one_that_still_has_a_link_to_it_outweighs_a_majority() -> None:
    said = {"n2": {"n0"}, "n3": {"n0"}}
    assert not ended_members("n1", {"n0"}, said, {"n2", "n3", "n4"}, FIVE)
    assert ended_members("n1", {"n0"}, said | {"n4": {"n0"}}, {"n2", "n3", "n4"}, FIVE) == {"n0"}


def test_several_end_at_once() -> None:
    both = {"n0", "n4"}
    assert ended_members("n1", both, {"n2": both, "n3": both}, {"n2", "n3"}, FIVE) == both


def test_who_has_no_vote_is_no_witness() -> None:
    assert ended_members("n1", {"n0"}, {"n2": {"n0"}}, {"n2", "n9"}, THREE) == {"n0"}
    assert not ended_members("n1", {"n0"}, {"n9": {"n0"}}, {"n9"}, THREE)


def test_each_asks_in_its_turn() -> None:
    assert [turn_to_ask(one, THREE, {"n0"}) for one in ("n1", "n2")] == [0, 1]
    assert turn_to_ask("n2", THREE, {"n0", "n1"}) == 0

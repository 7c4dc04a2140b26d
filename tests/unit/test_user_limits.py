"""What one user may have of what all share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doors import doubles

from tidewarden.config.load import Config
from tidewarden.config.settings import Limits
from tidewarden.errors import Full
from tidewarden.user_limits import SharedLimit, UserLimits, most_of_user

USERS = tuple(replace(doubles.ADMIN, name=name) for name in ("ann", "ben", "cid"))


def limit_of(whole: int, share: float = 0.8, users: int = 3) -> SharedLimit:
    limits = Limits(waiting_max=whole, user_share=share)
    return UserLimits(Config(users=USERS[:users], limits=limits)).waits


def greedy(limit: SharedLimit, user: str) -> int:
    """How many the user gets who takes all it may."""
    taken = 0
    while limit.has_room(user):
        limit.take(user)
        taken += 1
    return taken


def test_a_user_leaves_room_for_others_however_greedy() -> None:
    limit = limit_of(1000)
    assert [greedy(limit, user) for user in ("ann", "ben", "cid")] == [800, 160, 32]
    assert limit.has_room("dora")


def test_two_who_take_in_turn_have_the_same() -> None:
    limit = limit_of(900)
    while limit.has_room("ann") or limit.has_room("ben"):
        for user in ("ann", "ben"):
            if limit.has_room(user):
                limit.take(user)
    assert limit.by_user == {"ann": 400, "ben": 400}


@pytest.mark.parametrize("users", [0, 1])
def test_who_is_alone_has_all(users: int) -> None:
    assert greedy(limit_of(1000, users=users), "ann") == 1000


def test_a_share_of_one_is_no_bound() -> None:
    assert greedy(limit_of(1000, share=1.0), "ann") == 1000


def test_who_comes_or_goes_counts_from_then_on() -> None:
    limits = UserLimits(Config(users=USERS[:1], limits=Limits(waiting_max=10)))
    assert greedy(limits.waits, "ann") == 10
    limits.follow(["ann", "ben"])
    limits.waits.give_back("ann")
    assert not limits.waits.has_room("ann")
    assert limits.waits.has_room("ben")


def test_the_error_names_the_limit_and_the_setting() -> None:
    limit = limit_of(5)
    assert greedy(limit, "ann") == 4
    with pytest.raises(Full) as told:
        limit.take("ann")
    assert str(told.value) == (
        "The user ann has 4 requests that wait at this node, where 1 of 5 (limits.waiting_max) are"
        " free: the rest is for others (limits.user_share). Ask without waiting, or try another"
        " node."
    )
    limit.take("ben")
    with pytest.raises(Full) as told:
        limit.take("cid")
    assert str(told.value).startswith(
        "This node has 5 requests that wait, as many as it may (limits.waiting_max)."
    )
    assert limit.refused_total == 2


def test_several_are_taken_together_or_not_at_all() -> None:
    limit = limit_of(10)
    with limit.held("ann", 8):
        assert limit.used == 8
        with pytest.raises(Full), limit.held("ann", 1):
            pass
        with pytest.raises(Full, match="This node has 8"), limit.held("ben", 3):
            pass
    assert (limit.used, limit.by_user) == (0, {})


@given(
    whole=st.integers(1, 60),
    share=st.floats(0.01, 1.0),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200),
)
def test_whatever_is_taken_and_given_back(
    whole: int, share: float, steps: list[tuple[str, bool]]
) -> None:
    limit = limit_of(whole, share)
    for user, gives in steps:
        mine = limit.by_user.get(user, 0)
        if gives and mine:
            limit.give_back(user)
        elif not gives and limit.has_room(user):
            limit.take(user)
        assert limit.used == sum(limit.by_user.values()) <= whole
        assert limit.has_room("new") == (limit.used < whole)
        assert all(limit.by_user.values())
        if share < 1:
            assert max(limit.by_user.values(), default=0) <= most_of_user(
                whole, round(share * 1000)
            )

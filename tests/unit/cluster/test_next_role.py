"""What a node does next with its own store: each rule of a store's life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidewarden.cluster.replication.next_role import (
    Demote,
    Detach,
    Follow,
    LetIn,
    Promote,
    Stay,
    Step,
    next_step,
)
from tidewarden.cluster.replication.store_look import NOBODY, StoreData, StoreLook
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.raft.store_facts import StoreFacts, StoreMember

OWN, OTHER = StoreMember("n0", "a"), StoreMember("n1", "b")
PRIMARY_PLACE = ("10.0.0.1", 7423)
DATA = StoreData(view=3, stamp=4, in_sync="n1.b", seq=9, founding="n1.b", author="n1.b")
REPLICA = StoreLook(
    node="n0",
    incarnation="a",
    pid=1,
    role="slave",
    loading=False,
    link_up=False,
    place=NOBODY,
    syncing=False,
    sync_share=0.0,
    disk_fault=False,
    rewriting=False,
    offset=7,
    replicas=frozenset(),
    data=DATA,
)
MASTER = replace(REPLICA, role="master", place=("", 0))
OPEN = replace(MASTER, data=replace(DATA, author="n0.a", in_sync="n0.a n1.b"))
OF_OTHER = StoreFacts(3, *OTHER, frozenset({OWN, OTHER}), 5)
OF_OWN = StoreFacts(3, *OWN, frozenset({OWN, OTHER}), 5)
SAID = StoreReport(incarnation="b", serves_view=3, founding="n1.b", address="10.0.0.1:7423")


def step(
    facts: StoreFacts, look: StoreLook, primary: StoreReport | None = SAID, **how: Any
) -> Step:
    followed = how.get("followed", 0), look.place == PRIMARY_PLACE
    return next_step("n0", facts, look, primary, followed, how.get("let_in", False))


def stays(step: Step) -> str:
    assert isinstance(step, Stay), step
    return step.why


def test_before_anybody_was_chosen_nobody_is_primary() -> None:
    assert step(StoreFacts(), MASTER) == Demote()
    assert "no store is primary yet" in stays(step(StoreFacts(), REPLICA))


def test_the_primary_is_promoted_opened_and_let_be() -> None:
    assert step(OF_OWN, REPLICA) == Promote()
    assert step(OF_OWN, MASTER) == Promote()  # it was promoted, and not opened any more
    assert step(OF_OWN, OPEN) == LetIn()
    assert step(OF_OWN, OPEN, let_in=True) == Stay()


def test_data_that_another_opened_in_that_view_are_opened_anew() -> None:
    assert step(OF_OWN, replace(MASTER, data=replace(DATA, author="n0.z"))) == Promote()


def test_it_is_not_promoted_while_it_loads() -> None:
    loading = replace(REPLICA, loading=True, data=None)
    assert "it loads its data" in stays(step(OF_OWN, loading))


def test_another_start_than_the_one_that_was_chosen_asks_for_another() -> None:
    facts = replace(OF_OWN, incarnation="before")
    assert step(facts, replace(REPLICA, place=PRIMARY_PLACE)) == Detach()
    assert step(facts, MASTER) == Demote()
    found = step(facts, REPLICA)
    assert isinstance(found, Stay)
    assert found.another_please


def test_a_primary_whose_disk_is_full_asks_for_another() -> None:
    found = step(OF_OWN, replace(OPEN, disk_fault=True), let_in=True)
    assert isinstance(found, Stay)
    assert found.another_please
    assert "disk is full" in found.why


def test_who_is_primary_no_more_is_demoted_at_once() -> None:
    assert step(OF_OTHER, OPEN, primary=None) == Demote()


def test_it_follows_once_the_primary_is_open() -> None:
    assert step(OF_OTHER, REPLICA) == Follow("10.0.0.1:7423", diverged=False)


@pytest.mark.parametrize(
    "said",
    [
        None,
        replace(SAID, serves_view=0),
        replace(SAID, serves_view=2),
        replace(SAID, incarnation="before"),
        replace(SAID, address=""),
    ],
)
def test_it_does_not_follow_before(said: StoreReport | None) -> None:
    assert "waits until n1's store is open" in stays(step(OF_OTHER, REPLICA, said))


def test_it_never_follows_data_older_than_its_own() -> None:
    newer = replace(REPLICA, data=replace(DATA, view=4))
    assert "of view 4, the cluster is in view 3" in stays(step(OF_OTHER, newer))


def test_who_follows_an_older_view_lets_go_first() -> None:
    following = replace(REPLICA, place=PRIMARY_PLACE, link_up=True)
    assert step(OF_OTHER, following, followed=2) == Detach()
    assert step(OF_OTHER, following, followed=3) == Stay()
    assert step(OF_OTHER, replace(following, place=("10.0.0.9", 1)), followed=3) == Detach()


def test_what_a_process_before_let_it_follow_stays_if_that_is_the_open_primary() -> None:
    following = replace(REPLICA, place=PRIMARY_PLACE, link_up=True)
    assert step(OF_OTHER, following) == Stay()
    assert step(OF_OTHER, following, replace(SAID, serves_view=2)) == Detach()


@pytest.mark.parametrize(
    ("data", "diverged"),
    [
        (replace(DATA, view=2, author="n0.z"), True),  # opened by this node, in another view
        (DATA, False),  # of the primary itself
        (replace(DATA, author="n2.z"), True),  # of another author in the facts' view
        (replace(DATA, view=2), False),  # it had them of another
        (replace(DATA, view=2, founding="n7.q"), True),  # of another history
        (StoreData(view=2), True),  # of a store that was alone
        (StoreData(), False),  # nothing
        (StoreData(has_keys=True), True),  # of a cluster of another name
    ],
)
def test_what_only_this_store_may_have_is_set_aside_first(data: StoreData, diverged: bool) -> None:
    assert step(OF_OTHER, replace(REPLICA, data=data)) == Follow("10.0.0.1:7423", diverged)


def test_what_a_last_resort_did_not_choose_is_set_aside_whoever_wrote_it() -> None:
    """A store that was away may have all that the chosen one had not, also without own writes."""
    chosen = replace(OF_OTHER, began=3)
    older = replace(REPLICA, data=replace(DATA, view=2, author="n2.z"))
    assert step(chosen, older) == Follow("10.0.0.1:7423", diverged=True)
    later = replace(chosen, view=4)
    said = replace(SAID, serves_view=4)
    assert step(later, older, said) == Follow("10.0.0.1:7423", diverged=True)
    followed = replace(REPLICA, data=replace(DATA, view=3))
    assert step(later, followed, said) == Follow("10.0.0.1:7423", diverged=False)


def test_a_copy_under_way_is_said() -> None:
    copying = replace(REPLICA, place=PRIMARY_PLACE, syncing=True, sync_share=0.25)
    assert "receives a copy of the primary's data (25%)" in stays(
        step(OF_OTHER, copying, followed=3)
    )
    loading = replace(copying, loading=True, data=None)
    assert "loads a copy" in stays(step(OF_OTHER, loading, followed=3))

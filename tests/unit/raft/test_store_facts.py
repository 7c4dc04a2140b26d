"""Who may be primary, and who is in sync: what the commands of the log can make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewarden.raft.store_facts import (
    LOSSES,
    VIEW_MAX,
    StoreFacts,
    StoreMember,
    applied,
    majority_of,
    read_facts,
    read_set,
    set_text,
)

NODES = ("n0", "n1", "n2", "n3", "n4")
WORDS = ("a", "b", "c")
THREE = frozenset(NODES[:3])

nodes = st.sampled_from((*NODES, "x"))
words = st.sampled_from((*WORDS, ""))
members = st.builds(StoreMember, nodes, st.sampled_from(WORDS))
# mostly what holds, for what is refused at once changes nothing that could be wrong
now = st.sampled_from((0, 0, 0, 0, 1, -1))
seen = st.sampled_from((0, 0, 0, 1, 7, -3, VIEW_MAX - 2, VIEW_MAX, 10**30))
garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.lists(inner),
)


@st.composite
def command_for(draw: st.DrawFn, facts: StoreFacts) -> tuple[Any, ...]:
    """A command that fits ``facts``, or nearly."""
    view, version = facts.view + draw(now), facts.version + draw(now)
    kind = draw(st.sampled_from(("found", "elect", "elect", "change", "change", "change", "other")))
    if kind == "found":
        loss = draw(st.sampled_from(((), *((one,) for one in (*LOSSES, "unheard of")))))
        return kind, draw(nodes), draw(words), draw(seen), *loss
    if kind == "elect":
        known = sorted(facts.in_sync) or [StoreMember("n0", "a")]
        node, old = draw(st.sampled_from(known) | members)
        return kind, view, node, old, draw(words | st.just(old)), draw(nodes), draw(seen)
    if kind == "change":
        chosen = draw(st.frozensets(members, max_size=6))
        if draw(st.booleans()):
            chosen |= facts.in_sync
        return kind, view, version, set_text(chosen | {facts.primary_member})
    if draw(st.booleans()):
        return "confirm", version
    return (
        "recover",
        view,
        version,
        draw(nodes),
        draw(words),
        draw(seen),
        draw(st.sampled_from((*LOSSES, "unheard of"))),
    )


def voters_of(count: int) -> frozenset[str]:
    return frozenset(NODES[:count])


@settings(max_examples=settings().max_examples * 5 // 2)
@given(data=st.data(), size=st.integers(1, 5), steps=st.integers(1, 25))
def test_what_holds_after_any_commands(data: st.DataObject, size: int, steps: int) -> None:
    """The members change meanwhile, one vote at a time, as the leader lets them."""
    facts, voters, reached = StoreFacts(), voters_of(size), False
    for _ in range(steps):
        if data.draw(st.integers(0, 3)) == 0:
            node = data.draw(st.sampled_from(NODES))
            new = voters ^ {node}
            leaver = node if node in voters else ""
            if new and not facts.membership_fault(leaver, new):
                voters = new
        command = data.draw(command_for(facts))
        before, facts = facts, applied(facts, voters, command)
        assert read_facts(facts.plain()) == facts
        assert read_set(set_text(facts.in_sync)) == facts.in_sync
        if facts is before:
            continue
        assert facts.version == before.version + 1
        assert before.view <= facts.view < VIEW_MAX
        assert facts.primary_member in facts.in_sync
        assert facts.primary in voters
        assert len(facts.nodes_in_sync) == len(facts.in_sync), "one start of each store"
        if facts.primary_member != before.primary_member:
            assert facts.view > before.view, "one author a view"
        if command[0] == "recover":
            reached = False
        chosen = command[0] in ("found", "recover")
        assert facts.began == (facts.view if chosen else before.began)
        if before.loss and command[0] != "confirm":
            assert LOSSES.index(facts.loss) >= LOSSES.index(before.loss)
        reached = reached or facts.is_open(voters)
        assert facts.is_open(voters) or not reached, "never below a majority again"


@given(facts=st.builds(lambda text: StoreFacts(1, "n0", "a", read_set(text), 3), st.text()))
def test_any_text_is_some_set(facts: StoreFacts) -> None:
    assert all(member.node and member.incarnation for member in facts.in_sync)


@settings(max_examples=settings().max_examples * 5 // 2)
@given(
    name=st.sampled_from(("found", "elect", "change", "recover", "confirm", "look", "none")),
    values=st.lists(garbage, max_size=7),
    other=garbage,
)
def test_garbage_raises_nothing(name: str, values: list[Any], other: object) -> None:
    for facts in (StoreFacts(), opened(), replace(opened(), loss="likely")):
        for command in (other, [name, *values], ("look",), ("look", *values, 1)):
            assert applied(facts, THREE, command) is facts
        for command in ((name, *values), (name, 1, *values), (name, "n0", *values)):
            after = applied(facts, THREE, command)
            assert after is facts or after.version == facts.version + 1
    assert read_facts(other) == StoreFacts()


def opened(names: str = "n0.a n1.b n2.c") -> StoreFacts:
    facts = StoreFacts().found(THREE, "n0", "a", 0)
    return facts.change(THREE, 1, 1, read_set(names))


def refused(facts: StoreFacts, *commands: tuple[Any, ...]) -> bool:
    return all(applied(facts, THREE, command) is facts for command in commands)


def test_the_first_primary_is_founded_once_above_the_view_in_its_data() -> None:
    facts = applied(StoreFacts(), THREE, ("found", "n1", "b", 41))
    only = frozenset({StoreMember("n1", "b")})
    assert facts == StoreFacts(42, "n1", "b", only, 1, began=42)
    assert refused(facts, ("found", "n1", "b", 41), ("found", "n0", "a", 0))
    wrong = [("x", "a", 0), ("n0", "", 0), ("n0", "a", -1), ("n0", "a", VIEW_MAX)]
    assert refused(StoreFacts(), *(("found", *values) for values in wrong))
    assert applied(StoreFacts(), frozenset(), ("found", "n0", "a", 0)) == StoreFacts()


@pytest.mark.parametrize("word", ["a b", "a.b", "", " ", "ä", "x" * 65])
def test_an_incarnation_is_a_word(word: str) -> None:
    facts = opened()
    assert refused(StoreFacts(), ("found", "n0", word, 0))
    assert refused(
        facts,
        ("elect", 1, "n1", "b", word, "", 0),
        ("recover", 1, 2, "n1", word, 0, "possible"),
        ("change", 1, 2, f"n0.a n1.{word} n2.c") if word != "a.b" else ("look",),
    )


def test_an_election_keeps_the_set_less_the_former_primary() -> None:
    facts = opened()
    won = applied(facts, THREE, ("elect", 1, "n1", "b", "b", "n0", 0))
    assert (won.view, won.primary, set_text(won.in_sync)) == (2, "n1", "n1.b n2.c")
    assert refused(won, ("elect", 1, "n2", "c", "c", "", 0)), "two may have proposed it"
    on = applied(won, THREE, ("elect", 2, "n2", "c", "cc", "n1", 8))
    assert (on.view, set_text(on.in_sync)) == (9, "n1.b n2.cc"), "two are a majority, one is not"
    assert refused(on, ("elect", 9, "n0", "a", "a", "", 0), ("elect", 9, "n2", "c", "c", "", 0))


def test_the_set_changes_for_whoever_knows_view_and_version() -> None:
    facts = opened()
    assert refused(
        facts,
        ("change", 0, 2, "n0.a n1.b"),
        ("change", 1, 1, "n0.a n1.b"),
        ("change", 1, 2, "n1.b n2.c"),
        ("change", 1, 2, "n0.a"),
        ("change", 1, 2, "n0.a n0.b n1.b"),
        ("change", 1, 2, "n0.a n1.b nobody"),
    )
    assert applied(facts, THREE, ("change", 1, 2, "n0.a n1.b")).version == 3


def test_below_a_majority_the_set_only_grows() -> None:
    five = voters_of(5)
    facts = StoreFacts().found(five, "n0", "a", 0).change(five, 1, 1, read_set("n0.a n1.b"))
    assert facts.version == 2
    assert not facts.is_open(five)
    assert facts.change(five, 1, 2, read_set("n0.a n2.b")) is facts
    assert facts.change(five, 1, 2, read_set("n0.a n1.c")).is_open(five) is False
    assert facts.change(five, 1, 2, read_set("n0.a n1.b n2.c")).is_open(five)


def test_stores_of_nodes_that_do_not_vote_open_nothing() -> None:
    facts = StoreFacts(1, "n0", "a", read_set("n0.a n3.x n4.y"), 3)
    assert not facts.is_open(THREE)
    assert facts.is_open(voters_of(5))
    assert replace(facts, in_sync=read_set("n0.a n2.c n4.y")).is_open(THREE)


def test_a_last_resort_goes_by_what_is_known_now() -> None:
    """Two operators may have said a word at once, or a primary have come back meanwhile."""
    facts = opened()
    assert refused(
        facts,
        ("recover", 1, 1, "n2", "z", 0, "likely"),
        ("recover", 1, 3, "n2", "z", 0, "likely"),
        ("recover", 0, 2, "n2", "z", 0, "likely"),
    )


def test_a_first_primary_may_begin_with_a_loss() -> None:
    facts = applied(StoreFacts(), THREE, ("found", "n1", "b", 4, "likely"))
    assert (facts.view, facts.loss) == (5, "likely")
    assert refused(StoreFacts(), ("found", "n1", "b", 4, "none"), ("found", "n1", "b", 4, 1))
    assert applied(facts, THREE, ("confirm", 1)).loss == ""


def test_a_last_resort_is_told_until_somebody_confirms() -> None:
    facts = applied(opened(), THREE, ("recover", 1, 2, "n2", "z", 0, "likely"))
    assert (facts.view, set_text(facts.in_sync), facts.loss) == (2, "n2.z", "likely")
    assert not facts.is_open(THREE)
    worse = applied(facts, THREE, ("recover", 2, 3, "n1", "y", 0, "possible"))
    assert worse.loss == "likely"
    assert refused(worse, ("confirm", 3), ("recover", 3, 4, "n1", "y", 0, "none"))
    told = applied(worse, THREE, ("confirm", 4))
    assert (told.loss, told.version) == ("", 5)
    assert refused(told, ("confirm", 5))


def test_members_change_while_a_majority_of_them_has_a_whole_copy() -> None:
    assert StoreFacts().membership_fault("n0", frozenset({"n1"})) == ""
    facts = opened()
    assert "switchover" in facts.membership_fault("n0", THREE - {"n0"})
    assert facts.membership_fault("n2", THREE - {"n2"}) == "", "what remains is a majority"
    assert facts.membership_fault("", THREE | {"n3"}) == ""
    two = opened("n0.a n1.b")
    why = two.membership_fault("", THREE | {"n3"})
    assert "3 must have a whole copy" in why
    assert "2 have (n0, n1)" in why
    assert two.membership_fault("n2", THREE - {"n2"}) == ""
    assert "2 must" in two.membership_fault("n1", THREE - {"n1"})


@pytest.mark.parametrize("count", range(1, 10))
def test_a_majority_is_more_than_half(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    assert 2 * majority_of(names) > count >= 2 * majority_of(names) - 2

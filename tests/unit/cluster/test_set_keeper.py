"""Who is in the in-sync set, as the primary's node decides from its rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from support.growth import entries

from tidewarden.cluster.replication.set_keeper import Action, Open, Propose, SetKeeper, Yield
from tidewarden.raft.store_facts import StoreFacts, StoreMember, applied, read_set

N0, N1, N2, N3 = (StoreMember(f"n{i}", "abcd"[i]) for i in range(4))
AGAIN = StoreMember("n2", "c2")
THREE = frozenset({"n0", "n1", "n2"})


def facts(*members: StoreMember) -> StoreFacts:
    return StoreFacts(4, "n0", "a", frozenset(members), version=9)


@dataclass
class Rounds:
    """Plays rounds of 0.1 s; a replica acks each round unless ``deaf``."""

    facts: StoreFacts
    keeper: SetKeeper = field(default_factory=lambda: SetKeeper(N0, 4))
    attached: tuple[StoreMember, ...] = (N1, N2)
    deaf: frozenset[StoreMember] = frozenset()
    voters: frozenset[str] = THREE
    leaving: tuple[str, ...] = ()
    joining: tuple[str, ...] = ()
    now_s: float = 50.0
    offset: int = 1000
    acks: dict[StoreMember, int] = field(default_factory=dict)
    text: str = ""

    def play(self, step_s: float = 0.1) -> list[Action]:
        self.now_s += step_s
        self.offset += 10
        self.text = self.keeper.opens(self.facts, self.voters)
        self.acks |= {one: self.offset for one in self.attached if one not in self.deaf}
        shown = {one: at for one, at in self.acks.items() if one in self.attached}
        return self.keeper.round(
            self.now_s, self.facts, self.voters, shown, self.offset, self.leaving, self.joining
        )

    def until(self, kind: type, within: int = 30) -> Action:
        for _ in range(within):
            for action in self.play():
                if isinstance(action, kind):
                    return action
        raise AssertionError(f"no {kind.__name__} in {within} rounds")

    def quiet(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            assert self.play() == []

    def commit(self, action: Action) -> None:
        assert isinstance(action, Propose)
        after = applied(self.facts, self.voters, action.command)
        assert after.version == self.facts.version + 1, (action, self.facts)
        self.facts = after


def proposed(action: Action) -> frozenset[StoreMember]:
    assert isinstance(action, Propose)
    return read_set(action.command[3])


def test_a_whole_set_is_left_alone() -> None:
    world = Rounds(facts(N0, N1, N2))
    world.quiet()
    assert read_set(world.text) == {N0, N1, N2}
    assert world.keeper.next_s(busy=False) == 1.0
    assert world.keeper.next_s(busy=True) == 0.04


def test_a_member_that_is_silent_for_longer_than_the_limit_is_taken_out_but_only_once_committed() -> (
    None
):
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.deaf = frozenset({N2})
    world.quiet(3)
    action = world.until(Propose, 3)
    assert proposed(action) == {N0, N1}
    world.play()
    assert read_set(world.text) == {N0, N1, N2}, "its fate is unknown"
    world.commit(action)
    assert Open("n0.a n1.b") in world.play() or read_set(world.text) == {N0, N1}


def test_a_member_whose_link_was_closed_is_taken_out_at_once() -> None:
    """As that of a store that was killed is, and that of one which is frozen is not."""
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.attached = (N1,)
    (action,) = world.play(0.04)
    assert proposed(action) == {N0, N1}


def test_a_member_that_has_not_attached_yet_has_its_time() -> None:
    """A primary's first rounds are before the others have come to it."""
    world = Rounds(facts(N0, N1, N2), attached=(N1,))
    for _ in range(8):
        assert world.play(0.04) == []
    world.until(Propose, 2)


def test_one_whose_link_was_closed_before_it_was_a_member_has_its_time_too() -> None:
    world = Rounds(facts(N0, N1), attached=(N1, N2), deaf=frozenset({N2}))
    world.play(0.04)
    world.attached = (N1,)
    world.play(0.04)
    world.facts = facts(N0, N1, N2)
    assert world.play(0.04) == []


def test_the_same_is_proposed_again_after_a_second_and_nothing_else() -> None:
    world = Rounds(facts(N0, N1, N2), deaf=frozenset({N2}))
    first = world.until(Propose)
    began_s = world.now_s
    world.deaf = frozenset()
    again = world.until(Propose)
    assert again == first
    assert 0.9 < world.now_s - began_s < 1.2


def test_a_proposal_that_no_leader_took_is_made_again_in_the_next_round() -> None:
    """Raft's leader died with the member: another leads after a tenth of a second."""
    world = Rounds(facts(N0, N1, N2), deaf=frozenset({N2}))
    first = world.until(Propose)
    assert isinstance(first, Propose)
    for _ in range(10):
        assert world.play(0.04) == []
        world.keeper.unanswered(first.command)
        assert world.play(0.04) == [first], "however often: it was not refused"
    world.commit(first)
    world.play(0.04)
    assert world.keeper.pending == ""
    world.keeper.unanswered(first.command)
    world.quiet(3)


def test_who_is_cut_off_itself_takes_nobody_out_and_yields() -> None:
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.deaf = frozenset({N1, N2})
    action = world.until(Yield)
    assert isinstance(action, Yield)
    assert "n1" in action.why
    assert world.keeper.pending == ""


def test_who_falls_silent_one_after_the_other_is_not_taken_out_one_by_one() -> None:
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.deaf = frozenset({N2})
    world.quiet(2)
    world.deaf = frozenset({N1, N2})
    assert isinstance(world.until(Yield), Yield)
    assert world.keeper.pending == ""


def test_two_of_five_that_die_at_once_are_taken_out_together() -> None:
    five = frozenset({"n0", "n1", "n2", "n3", "n4"})
    n4 = StoreMember("n4", "e")
    world = Rounds(facts(N0, N1, N2, N3, n4), attached=(N1, N2, N3, n4), voters=five)
    world.quiet(3)
    world.deaf = frozenset({N2, N3})
    assert proposed(world.until(Propose)) == {N0, N1, n4}


def test_a_set_of_exactly_a_majority_is_not_reduced_but_swaps_its_dead_for_a_learner() -> None:
    world = Rounds(facts(N0, N1), attached=(N1,))
    world.quiet(3)
    world.deaf = frozenset({N1})
    for _ in range(8):
        assert not any(isinstance(action, Propose) for action in world.play())
    world.attached = (N1, AGAIN)
    action = world.until(Propose)
    assert proposed(action) == {N0, AGAIN}
    assert read_set(world.text) == {N0, N1, AGAIN}
    world.commit(action)
    world.play()
    assert read_set(world.text) == {N0, AGAIN}


def test_a_learner_is_named_in_the_data_and_acknowledges_that_before_it_is_proposed() -> None:
    world = Rounds(facts(N0, N1), attached=(N1, N2))
    assert world.play() == [], "it has acknowledged no round before"
    assert world.play() == [Open("n0.a n1.b n2.c")]
    action = world.until(Propose)
    assert read_set(world.text) == {N0, N1, N2}
    world.commit(action)
    world.quiet()


def test_a_learner_that_is_near_but_acknowledges_nothing_is_not_tried() -> None:
    world = Rounds(facts(N0, N1), acks={N2: 1000}, deaf=frozenset({N2}))
    world.quiet()


def test_a_learner_that_stops_acknowledging_is_taken_back_and_tried_later() -> None:
    world = Rounds(facts(N0, N1))
    world.until(Open)
    world.deaf = frozenset({N2})
    assert world.until(Open, 4) == Open("n0.a n1.b")
    began_s = world.now_s
    world.deaf = frozenset()
    world.until(Open)
    assert 0.9 < world.now_s - began_s < 1.3
    assert read_set(world.text) <= {N0, N1}


def test_a_restarted_member_takes_the_place_of_its_earlier_start() -> None:
    world = Rounds(facts(N0, N1, N2), attached=(N1, AGAIN))
    action = world.until(Propose)
    assert proposed(action) in ({N0, N1, AGAIN}, {N0, N1})


def test_nothing_can_be_confirmed_below_a_majority_until_the_growth_is_committed() -> None:
    world = Rounds(facts(N0))
    world.play()
    assert world.text == ""
    action = world.until(Propose)
    assert world.text == ""
    world.commit(action)
    world.play()
    assert read_set(world.text) >= proposed(action)


def test_a_leaver_goes_at_once_if_a_majority_remains_and_is_not_taken_in() -> None:
    world = Rounds(facts(N0, N1, N2), leaving=("n2",))
    assert proposed(world.play()[0]) == {N0, N1}
    world = Rounds(facts(N0, N1), leaving=("n2",))
    world.quiet()
    world = Rounds(facts(N0, N2), leaving=("n2",), attached=(N2,))
    world.quiet()


def test_a_joining_node_is_taken_in_before_it_votes_and_a_stranger_never() -> None:
    alone = frozenset({"n0"})
    world = Rounds(facts(N0), attached=(N1,), voters=alone)
    world.quiet()
    world.joining = ("n1",)
    assert proposed(world.until(Propose)) == {N0, N1}


def test_a_member_that_is_no_member_of_the_cluster_any_more_is_taken_out() -> None:
    world = Rounds(facts(N0, N1, N2, N3), attached=(N1, N2, N3))
    assert proposed(world.play()[0]) == {N0, N1, N2}


def test_slow_rounds_hold_no_silence_against_a_member_that_misses_one() -> None:
    world = Rounds(facts(N0, N1, N2))
    for _ in range(5):
        assert world.play(1.0) == []
    world.deaf = frozenset({N2})
    assert world.play(1.0) == []
    assert world.keeper.next_s(busy=False) == 0.04, "looked at closely from now on"
    world.deaf = frozenset()
    world.quiet()


def test_a_daemon_that_was_frozen_holds_its_own_pause_against_nobody() -> None:
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.deaf = frozenset({N1})
    world.play()
    assert world.play(60.0) == []


def test_no_yield_while_a_change_that_would_help_waits_for_raft() -> None:
    world = Rounds(facts(N0, N1, N2))
    world.quiet(3)
    world.deaf = frozenset({N2})
    for _ in range(40):
        assert not any(isinstance(action, Yield) for action in world.play())


def test_what_is_refused_for_good_is_given_up_by_committing_the_set_as_it_is() -> None:
    world = Rounds(facts(N0, N1, N2), deaf=frozenset({N2}))
    action = world.until(Propose)
    world.voters = frozenset({"n0", "n1", "n2", "n3", "n4"})  # Two more vote: now three are needed.
    while proposed(action) == {N0, N1}:
        assert applied(world.facts, world.voters, action.command) is world.facts
        action = world.until(Propose)
        assert read_set(world.text) == {N0, N1, N2}
    world.commit(action)
    assert world.facts.in_sync == {N0, N1, N2}


def test_a_process_that_found_the_view_open_first_makes_older_proposals_impossible() -> None:
    world = Rounds(facts(N0, N1), SetKeeper(N0, 4, found="n0.a n1.b n2.c"))
    action = world.until(Propose)
    assert proposed(action) == {N0, N1}
    assert read_set(world.text) == {N0, N1, N2}, "it may have been proposed"
    world.commit(action)
    world.play()
    assert read_set(world.text) == {N0, N1}
    assert proposed(world.until(Propose)) == {N0, N1, N2}


def test_a_process_that_found_a_view_in_which_nothing_could_be_confirmed_waits_likewise() -> None:
    world = Rounds(facts(N0, N1), SetKeeper(N0, 4, found=""))
    action = world.until(Propose)
    assert world.text == ""
    world.commit(action)
    world.play()
    assert read_set(world.text) == {N0, N1}


def test_another_primaryship_is_none_of_its_business() -> None:
    world = Rounds(StoreFacts(5, "n1", "b", frozenset({N0, N1}), 10))
    world.quiet()


def test_stores_that_come_and_go_for_ever_leave_nothing() -> None:
    world = Rounds(facts(N0, N1))
    for number in range(500):
        comes = StoreMember("n2", f"start{number}")
        world.attached = (N1, comes)
        world.until(Open)
        world.deaf = frozenset({comes})
        assert world.until(Open, 4) == Open("n0.a n1.b"), "taken back"
        world.deaf = frozenset()
    assert entries(world.keeper) < 100

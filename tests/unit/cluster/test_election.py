"""Who takes over, as the Raft leader chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidewarden.cluster.replication.election import Choice, Election
from tidewarden.cluster.replication.store_report import StoreReport
from tidewarden.raft.store_facts import StoreFacts, StoreMember, applied

VOTERS = frozenset({"n0", "n1", "n2"})
FACTS = StoreFacts(
    4, "n0", "a", frozenset({StoreMember("n0", "a"), StoreMember("n1", "b")}), version=9
)
WHOLE = replace(FACTS, in_sync=FACTS.in_sync | {StoreMember("n2", "c")})


def report(incarnation: str, offset: int = 0, **said: object) -> StoreReport:
    known = {"view": 4, "seq": 10, "founding": "f", "fsync": "everysec"} | said
    return StoreReport(incarnation, offset=offset, **known)


def decide(
    facts: StoreFacts,
    reports: dict[str, StoreReport],
    now_s: float = 100.0,
    election: Election | None = None,
    silence: dict[str, float] | None = None,
    word: str | None = None,
    ended: frozenset[str] = frozenset(),
) -> Choice:
    chooser = election or Election(0.0)
    heard = dict.fromkeys(reports, 0.0) | (silence or {})
    return chooser.decide(facts, VOTERS, reports, heard, now_s, word, ended)


def taken(facts: StoreFacts, choice: Choice) -> StoreFacts:
    assert choice.command is not None, choice.why
    after = applied(facts, VOTERS, choice.command)
    assert after.version == facts.version + 1
    return after


def test_nothing_is_proposed_while_the_primary_is_well() -> None:
    said = {"n0": report("a"), "n1": report("b"), "n2": report("c")}
    assert decide(WHOLE, said) == Choice()


def test_the_member_that_came_furthest_takes_over_from_a_silent_primary_which_is_dropped() -> None:
    said = {"n0": report("a", 99), "n1": report("b", 50), "n2": report("c", 51)}
    assert decide(WHOLE, said, silence={"n0": 0.6}) == Choice()
    choice = decide(WHOLE, said, silence={"n0": 0.8})
    assert choice.command == ("elect", 4, "n2", "c", "c", "n0", 4)
    assert taken(WHOLE, choice).nodes_in_sync == {"n1", "n2"}


def test_a_primary_whose_process_has_ended_is_replaced_once_the_followers_have_said_so() -> None:
    """What they said before may be old: the one that is ahead of the winner copies everything."""
    followers = {"n1": report("b", 50, follows="n0.a"), "n2": report("c", 40, follows="n0.a")}
    said = {"n0": report("a", 60), **followers}
    election, ended = Election(0.0), frozenset({"n0"})
    assert decide(WHOLE, said, 100.0, election, ended=ended) == Choice()
    said |= {"n1": report("b", 50), "n2": report("c", 60)}
    choice = decide(WHOLE, said, 100.02, election, ended=ended)
    assert choice.command == ("elect", 4, "n2", "c", "c", "n0", 4)
    assert choice.why == "the process of n0, whose store is the primary, has ended: n2 takes over"


def test_followers_that_stay_linked_to_a_store_without_a_node_are_not_waited_for_long() -> None:
    said = {"n1": report("b", 50, follows="n0.a"), "n2": report("c", 40, follows="n0.a")}
    election, ended = Election(0.0), frozenset({"n0"})
    assert decide(WHOLE, said, 100.0, election, ended=ended) == Choice()
    assert decide(WHOLE, said, 100.11, election, ended=ended).command is not None


def test_a_store_whose_node_has_ended_does_not_take_over() -> None:
    said = {"n1": report("b", 50), "n2": report("c", 60)}
    choice = decide(WHOLE, said, silence={"n0": 5}, ended=frozenset({"n2"}))
    assert choice.command == ("elect", 4, "n1", "b", "b", "n0", 4)


def test_a_learner_does_not_take_over_however_far_it_came() -> None:
    said = {"n1": report("b", 50), "n2": report("x", 90)}
    assert decide(FACTS, said, silence={"n0": 5}).command == ("elect", 4, "n1", "b", "b", "n0", 4)


def test_a_node_that_was_never_heard_is_silent_since_this_one_leads() -> None:
    said = {"n1": report("b"), "n2": report("c")}
    election = Election(100.0)
    assert decide(WHOLE, said, 100.5, election).command is None
    assert decide(WHOLE, said, 101.3, election).command is not None


def test_a_primary_whose_node_is_heard_but_says_nothing_of_its_store_is_replaced() -> None:
    said = {"n1": report("b"), "n2": report("c")}
    election = Election(0.0)
    assert decide(WHOLE, said, 100.0, election, {"n0": 0.0}).command is None
    assert decide(WHOLE, said, 101.0, election, {"n0": 0.0}).command is not None


def test_a_primary_that_gives_up_is_replaced_once_the_followers_have_said_how_far_they_came() -> (
    None
):
    gone = replace(report(""), another_please=True)
    election = Election(0.0)
    said = {"n0": gone, "n1": report("b", 5, follows="n0.a"), "n2": report("c", 7)}
    assert decide(WHOLE, said, 100.0, election) == Choice()
    said["n1"] = report("b", 9)
    assert decide(WHOLE, said, 100.01, election).command[2] == "n1"
    assert decide(WHOLE, said, 100.02, election) == Choice(), "it is under way"
    assert decide(WHOLE, said, 100.3, election).command[2] == "n1", "it is asked again"


def test_a_winner_that_does_nothing_is_replaced_in_its_own_view() -> None:
    election = Election(0.0)
    said = {"n1": report("b", 9), "n2": report("c", 7)}
    after = taken(WHOLE, decide(WHOLE, said, 100.0, election, {"n0": 9}))
    assert after.primary == "n1"
    said["n1"] = replace(said["n1"], another_please=True)
    assert decide(after, said, 100.05, election, {"n0": 9}).command[2] == "n2"


def test_a_whole_continuation_waits_for_a_member_that_may_live() -> None:
    election = Election(0.0)
    said = {"n1": report("b2", 50, continues=("b0", "b"))}
    quiet = {"n0": 5.0, "n2": 5.0}
    assert decide(WHOLE, said, 100.0, election, quiet) == Choice()
    choice = decide(WHOLE, said, 101.1, election, quiet)
    assert choice.command == ("elect", 4, "n1", "b", "b2", "n0", 4)
    assert StoreMember("n1", "b2") in taken(WHOLE, choice).in_sync


def test_a_whole_continuation_waits_for_nobody_when_all_members_are_known_to_have_ended() -> None:
    said = {
        "n0": report("a2", 9, continues=("a",)),
        "n1": report("b2", 9, continues=("b",)),
        "n2": report("c2", 8, continues=("c",)),
    }
    assert decide(WHOLE, said).command == ("elect", 4, "n1", "b", "b2", "n0", 4)


def test_the_only_store_of_all_goes_on_after_its_restart_at_once() -> None:
    facts = StoreFacts(4, "n0", "a", frozenset({StoreMember("n0", "a")}), 9)
    said = {"n0": report("a2", continues=("a",))}
    choice = Election(0.0).decide(facts, frozenset({"n0"}), said, {"n0": 0.0}, 100.0)
    assert choice.command == ("elect", 4, "n0", "a", "a2", "", 4)


@pytest.mark.parametrize("how", ["leaving", "stopping"])
def test_stores_that_load_do_not_take_over_and_those_that_leave_only_for_want_of_others(
    how: str,
) -> None:
    election = Election(0.0)
    loads = replace(report("b"), loading=True)
    leaves = replace(report("c"), **{how: True})
    said = {"n1": loads, "n2": leaves}
    assert decide(WHOLE, said, 100.0, election, {"n0": 5}) == Choice()
    assert decide(WHOLE, said, 101.1, election, {"n0": 5}).command[2] == "n2"
    said["n1"] = report("b")
    assert decide(WHOLE, said, 102.0, election, {"n0": 5}).command[2] == "n1"


def test_a_primary_that_gives_up_alone_stays_and_the_operator_is_told() -> None:
    said = {"n0": replace(report("a"), another_please=True), "n2": report("x")}
    choice = decide(FACTS, said, silence={"n1": 9})
    assert choice.command is None
    assert "n1" in choice.why


# The first primary.


def test_founding_waits_for_all_and_takes_the_store_that_has_data() -> None:
    facts = StoreFacts()
    empty = StoreReport("a")
    old = StoreReport("b", view=7)
    choice = decide(facts, {"n0": empty, "n1": old})
    assert choice.command is None
    assert "n2" in choice.why
    choice = decide(facts, {"n0": empty, "n1": old, "n2": replace(empty, incarnation="c")})
    assert choice.command == ("found", "n1", "b", 7, "possible"), "who is empty may have had more"
    loads = {"n0": empty, "n1": replace(old, loading=True), "n2": replace(empty, incarnation="c")}
    assert decide(facts, loads).command is None


def test_founding_of_empty_stores_takes_any() -> None:
    said = {node: StoreReport(node) for node in VOTERS}
    after = taken(StoreFacts(), decide(StoreFacts(), said))
    assert (after.view, len(after.in_sync)) == (1, 1)


def test_founding_after_the_loss_of_rafts_folders_goes_on_above_all_views() -> None:
    said = {
        "n0": report("a", view=5, seq=1),
        "n1": report("b", view=5, seq=3),
        "n2": report("c", view=4, seq=8),
    }
    assert decide(StoreFacts(), said).command == ("found", "n1", "b", 5)


def test_two_histories_need_an_operators_word() -> None:
    said = {
        "n0": report("a", founding="one", view=2),
        "n1": report("b", founding="two", view=9),
        "n2": StoreReport("c"),
    }
    choice = decide(StoreFacts(), said)
    assert choice.command is None
    assert "n0 and n1" in choice.why
    assert decide(StoreFacts(), said, word="").command is None
    chosen = taken(StoreFacts(), decide(StoreFacts(), said, word="n0"))
    assert chosen.primary == "n0"
    assert (chosen.view, chosen.loss) == (10, "likely"), "above all views that are heard"
    bare = {node: StoreReport(node, view=3) for node in ("n0", "n1")} | {"n2": StoreReport("c")}
    assert decide(StoreFacts(), bare).command is None


# The last resort.


def test_after_a_power_cut_of_all_the_fullest_store_takes_over_once_all_members_have_said() -> None:
    said = {"n0": report("a2", seq=5), "n2": report("x", seq=9)}
    choice = decide(FACTS, said)
    assert choice.command is None
    assert "n1" in choice.why
    said["n1"] = report("b2", seq=6)
    after = taken(FACTS, decide(FACTS, said))
    assert (after.primary, after.loss) == ("n2", "possible")
    assert after.nodes_in_sync == {"n2"}


def test_nothing_is_lost_if_every_member_had_its_writes_on_its_disk_and_has_its_data() -> None:
    said = {"n0": report("a2", fsync="always", seq=5), "n1": report("b2", fsync="always", seq=6)}
    assert taken(FACTS, decide(FACTS, said)).loss == ""
    said["n0"] = report("a2", seq=5)
    assert taken(FACTS, decide(FACTS, said)).loss == "possible"


def test_a_majority_is_enough_by_an_operators_word_or_a_setting() -> None:
    said = {"n1": report("b2", seq=6), "n2": report("x", seq=9)}
    quiet = {"n0": 99.0}
    assert decide(FACTS, said, silence=quiet).command is None
    assert taken(FACTS, decide(FACTS, said, silence=quiet, word="")).loss == "likely"
    named = taken(FACTS, decide(FACTS, said, silence=quiet, word="n1"))
    assert (named.primary, named.loss) == ("n1", "likely")
    election = Election(0.0, recover_s=60)
    assert decide(FACTS, said, 100.0, election, quiet).command is None
    assert decide(FACTS, said, 159.0, election, quiet).command is None
    assert taken(FACTS, decide(FACTS, said, 160.0, election, quiet)).loss == "likely"
    del said["n2"]
    assert decide(FACTS, said, 170.0, election, quiet, "").command is None, "no majority"


@pytest.mark.parametrize(
    "lost", [StoreReport("x", fsync="always"), report("x", founding="other", fsync="always")]
)
def test_a_member_that_lost_its_data_is_as_good_as_unheard(lost: StoreReport) -> None:
    """A disk that is lost, or was not mounted: what only it had is missing, and may come back."""
    stale = report("z", seq=1, fsync="always")
    empty = {"n0": lost, "n1": replace(lost, incarnation="y"), "n2": stale}
    for said in (empty, empty | {"n1": report("b2", seq=9, fsync="always")}):
        choice = decide(FACTS, said)
        assert choice.command is None
        assert "n0" in choice.why
        assert taken(FACTS, decide(FACTS, said, word="n2")).loss == "likely"


def test_while_the_members_are_not_known_nothing_is_said_of_their_stores() -> None:
    chosen = Election(0.0).decide(StoreFacts(), frozenset(), {"n0": report("a")}, {}, 1.0)
    assert (chosen.command, chosen.why) == (None, "")


def test_a_first_primary_that_is_chosen_before_all_are_heard_may_have_lost_everything() -> None:
    """Two hosts came back empty while the third, which has all data, is away."""
    said = {"n1": StoreReport("b"), "n2": StoreReport("c")}
    assert decide(StoreFacts(), said).command is None
    after = taken(StoreFacts(), decide(StoreFacts(), said, word=""))
    assert (after.view, after.loss) == (1, "likely")
    assert decide(StoreFacts(), {"n1": StoreReport("b")}, word="").command is None, "no majority"
    said["n0"] = StoreReport("a")
    assert taken(StoreFacts(), decide(StoreFacts(), said, word="n2")).loss == "", "nobody has data"
    said["n0"] = report("a")
    assert taken(StoreFacts(), decide(StoreFacts(), said, word="n2")).loss == "likely"
    assert taken(StoreFacts(), decide(StoreFacts(), said, word="n0")).loss == "possible"


def test_the_last_resort_begins_above_every_view_that_is_heard() -> None:
    said = {
        "n0": report("a2", founding="old", view=3, seq=1),
        "n1": report("b2", founding="other", view=17, seq=1),
    }
    assert taken(FACTS, decide(FACTS, said, word="n0")).view == 18


def test_an_election_goes_by_the_views_of_the_winners_history_alone() -> None:
    """A store of another history that is ahead keeps its data until somebody gives them up."""
    said = {
        "n1": report("b", 50, view=6),
        "n2": report("x", 40, view=8),
    }
    assert decide(WHOLE, said, silence={"n0": 5}).command[2:4] == ("n1", "b")
    assert decide(WHOLE, said, silence={"n0": 5}).command[-1] == 8
    said["n2"] = report("x", founding="other", view=99)
    assert decide(WHOLE, said, silence={"n0": 5}).command[-1] == 6


def test_a_store_that_did_not_restart_comes_first_however_far_the_other_came() -> None:
    said = {"n1": report("b2", 90, continues=("b",)), "n2": report("c", 50)}
    assert decide(WHOLE, said, silence={"n0": 5}).command[2] == "n2"


def test_the_time_without_a_store_that_fits_is_counted_anew_after_one_that_did() -> None:
    election = Election(0.0, recover_s=60)
    lost = {"n1": report("b2", seq=6), "n2": report("x", seq=9)}
    fits = {"n1": report("b2", seq=6, continues=("b",)), "n2": report("x", seq=9)}
    quiet = {"n0": 99.0}
    assert decide(FACTS, lost, 100.0, election, quiet).command is None
    assert decide(FACTS, fits, 150.0, election, quiet).command[0] == "elect"
    assert decide(FACTS, lost, 170.0, election, quiet).command is None, "it lost its data since"
    assert decide(FACTS, lost, 229.0, election, quiet).command is None
    assert decide(FACTS, lost, 231.0, election, quiet).command[0] == "recover"


def test_a_node_that_does_not_vote_is_nobodys_choice() -> None:
    facts = replace(WHOLE, in_sync=WHOLE.in_sync | {StoreMember("n9", "z")})
    said = {"n1": report("b", 50), "n2": report("c", 51), "n9": report("z", 99)}
    assert decide(facts, said, silence={"n0": 5}).command[2] == "n2"
    assert decide(FACTS, {"n9": report("z", 99)}, silence={"n0": 5}, word="n9").command is None
    empty = {node: StoreReport(node) for node in VOTERS} | {"n9": report("z", 99)}
    assert decide(StoreFacts(), empty).command[1] in VOTERS


def test_empty_stores_take_over_from_nobody_without_a_word() -> None:
    said = {node: StoreReport(node) for node in VOTERS}
    choice = decide(FACTS, said)
    assert choice.command is None
    assert "empty" in choice.why
    assert taken(FACTS, decide(FACTS, said, word="")).loss == "likely"

"""
No history within small limits loses an answered write; without any one of the rules, some does.

The model (``tests/support/replication/model.py``) plays the product's own facts and decisions.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.replication.model import Limits, Model, Rules, State, begun, unfounded
from support.replication.search import breadth_first, play, walks

STATES_MAX = 4_000

SEARCHES: dict[str, tuple[State, Limits, Rules]] = {
    "a host dies": (begun(3, 3), Limits(starts=1, deaths=1), Rules()),
    "a set of just a majority": (begun(3, 2), Limits(starts=1, versions=3, deaths=1), Rules()),
    "a store loses its tail": (begun(3, 2), Limits(versions=1, crashes=1, lossy=1), Rules()),
    "a process restarts beside its store": (
        begun(3, 2),
        Limits(starts=1, versions=3, processes=1),
        Rules(),
    ),
    "a command comes late": (begun(3, 2), Limits(starts=1, versions=3, late=1), Rules()),
    "a single store becomes several": (
        unfounded(3, 2),
        Limits(writes=2, resorts=True, single=1, deaths=1),
        Rules(),
    ),
    "empty stores are founded": (
        unfounded(2, None),
        Limits(views=1, resorts=True),
        Rules(),
    ),
    "nodes join": (begun(3, 1, 1), Limits(versions=4, changes=2), Rules()),
    "nodes leave": (begun(3, 3), Limits(versions=2, changes=2, deaths=1), Rules()),
    "all hosts lose power": (
        begun(2, 2),
        Limits(crashes=2, boots=2, starts=2, resorts=True, durable=False),
        Rules(always=True),
    ),
    "members come back empty": (
        begun(3, 2),
        Limits(crashes=2, lossy=2, starts=2, versions=2, resorts=True, durable=False),
        Rules(always=True),
    ),
    "Raft's folders are lost": (
        begun(3, 3),
        Limits(writes=2, views=3, versions=1, forgets=1, resorts=True, durable=False),
        Rules(),
    ),
    "nodes forget what was committed": (
        begun(3, 2),
        Limits(versions=2, crashes=1, starts=2),
        Rules(forgetful=True),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("which", SEARCHES)
def test_no_short_history_loses_an_answered_write(which: str) -> None:
    start, limits, rules = SEARCHES[which]
    found = breadth_first(Model(rules, limits), start, STATES_MAX)
    assert not found.fault, found.told()
    assert found.oks, "nothing was answered, so nothing could be lost"


# A rule that is left out, where, and within which limits the shortest loss lies.
LEFT_OUT: dict[str, tuple[dict[str, Any], State, Limits]] = {
    "incarnations": ({}, begun(3, 2), Limits(crashes=1, lossy=1, starts=2)),
    "add_first": ({}, begun(3, 2), Limits(starts=1)),
    "drop_late": ({}, begun(3, 3), Limits(starts=1)),
    "only_members": ({}, begun(3, 2), Limits(starts=1)),
    "elect_members": ({}, begun(3, 2), Limits(starts=1)),
    "keep_set": ({}, begun(3, 3), Limits(starts=1, deaths=1)),
    "floor": ({"empty_below": False}, begun(3, 2), Limits(starts=1, deaths=1)),
    "empty_below": ({}, unfounded(3, None), Limits(starts=1, deaths=1, resorts=True)),
    "set_in_data": ({}, begun(3, 2), Limits(starts=1, versions=3)),
    "set_behind": ({}, begun(3, 2), Limits(starts=1)),
    "place_behind": ({}, begun(3, 3), Limits(starts=1)),
    "same_view": ({}, begun(3, 2), Limits(views=3, versions=1, starts=1)),
    "no_giving_up": ({}, begun(3, 2), Limits(starts=1, versions=3)),
    "lossy_is_other": ({}, begun(3, 2), Limits(crashes=1, lossy=1, starts=2)),
    "whole_loads": ({}, begun(3, 2), Limits(crashes=1, starts=2)),
    "inherit": ({}, begun(3, 2), Limits(starts=1, versions=3, processes=1)),
    "found_all": ({}, unfounded(3, 2), Limits(versions=3, resorts=True, single=1)),
    "members_rule": ({}, begun(3, 1, 1), Limits(starts=1, changes=2, deaths=1)),
    "stamps": ({}, begun(3, 2), Limits(versions=3, late=1, starts=1)),
    "recover_all": (
        {"always": True},
        begun(3, 2),
        Limits(crashes=2, boots=2, starts=2, resorts=True, durable=False),
    ),
}
COSTLY = {
    "incarnations", "elect_members", "keep_set", "floor", "no_giving_up", "whole_loads", "inherit",
    "stamps", "recover_all", "same_view",
}  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.thorough] if rule in COSTLY else [])
        for rule in LEFT_OUT
    ],
)
def test_each_rule_that_is_left_out_is_missed(rule: str) -> None:
    further, start, limits = LEFT_OUT[rule]
    bad = Model(Rules(**{rule: False}, **further), limits)
    found = breadth_first(bad, start, 80_000, labelled=True)
    assert found.fault, f"without {rule} nothing is lost in {found.states} states"
    kept = Rules(**{name: flag for name, flag in further.items() if name == "always"})
    again = breadth_first(Model(kept, limits), start, min(found.states, 2_000))
    assert not again.fault, again.told()


@pytest.mark.thorough
def test_changes_that_do_not_name_the_view_are_missed_on_random_ways() -> None:
    limits, start = Limits(views=3, versions=4, starts=1), begun(3, 3)
    found = walks(Model(Rules(compare_view=False), limits), start, range(400), 80)
    assert found.fault, f"nothing is lost in {found.states} steps"
    again = walks(Model(Rules(), limits), start, range(60), 80)
    assert not again.fault, again.told()


MANY = Limits(
    writes=3, views=5, versions=8, crashes=3, lossy=2, deaths=1, groups=2, starts=4, forgets=1,
    resorts=True,
)  # fmt: skip
SCENES: dict[str, tuple[Rules, str, Rules, str, State, list[str]]] = {
    "a node that forgot Raft's commits follows an older primary": (
        Rules(forgetful=True, no_older=False),
        "MEMBERS",
        Rules(forgetful=True),
        "impossible: 2 follows 0 (full)",
        begun(3, 3),
        [
            "1:1 stands for 2, drop n0", "commit ('elect'", "1 learns", "2 learns", "1:1 promoted",
            "2 follows 1", "2 has -2", "write 1 at 1", "2 has 1", "OK 1", "2 crashes",
            "2 restarts whole, and forgets", "2 follows 0 (full)", "2 has loaded", "2 learns",
            "2:2 stands for 3, drop n1", "commit ('elect'", "2 learns", "2:2 promoted",
        ],
    ),
    "the set is reset to the winner, who then dies": (
        Rules(keep_set=False),
        "DURABLE",
        Rules(),
        "",
        begun(3, 3),
        [
            "write 1 at 0", "1 has 1 of 0", "2 has 1 of 0", "OK 1", "1:1 stands for 2, drop n0",
            "commit ('elect'", "1 dies",
        ],
    ),
    "a member ends between a full sync and its own disk": (
        Rules(note=False),
        "MEMBERS",
        Rules(),
        "",
        begun(3, 2),
        [
            "1 crashes", "1 restarts whole", "write 1 at 0", "1 follows 0 (full)",
            "1 has loaded, not on disk", "0 wants n0.1 n1.2", "0 proposes n0.1 n1.2",
            "commit ('change'", "0 learns", "write 2 at 0", "1 has 2", "OK 2", "1 crashes",
            "1 restarts whole",
        ],
    ),
    "the set comes back empty, and a store that was away takes over": (
        Rules(empty_unheard=False),
        "MEMBERS",
        Rules(),
        "impossible: leader proposes ('recover'",
        begun(3, 3),
        [
            "2 crashes", "0 proposes n0.1 n1.1", "commit ('change'", "0 learns", "write 1 at 0",
            "1 has 1 of 0", "OK 1", "0 crashes", "1 crashes", "0 restarts with ()",
            "1 restarts with ()", "2 restarts whole", "0 reports", "1 reports", "2 reports",
            "leader proposes ('recover'", "commit ('recover'",
        ],
    ),
    "Raft's folders are lost, and views begin below those of the data": (
        Rules(seen=False),
        "impossible: 0:1 promoted in",
        Rules(),
        "",
        begun(3, 3),
        [
            "1:1 stands for 2", "commit ('elect'", "1 learns", "1:1 promoted", "2 learns",
            "2 follows 1", "2 has -2", "0 learns", "0 follows 1", "0 has -2", "Raft's folders",
            "0 reports", "1 reports", "2 reports", "leader proposes ('found'", "commit ('found'",
            "0 learns", "0:1 promoted in",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_a_written_scene_ends_well_by_the_rules_alone(scene: str) -> None:
    bad, fault, good, end, start, labels = SCENES[scene]
    assert play(Model(bad, MANY), start, labels).startswith(fault)
    assert play(Model(good, MANY), start, labels) == end

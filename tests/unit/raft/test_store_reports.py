"""
What members say of their stores: bounded, plain, forgotten with who left, and stood by for no
longer than the loop turns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manual_clock import ManualClock

from tidewarden.raft.store_facts import StoreFacts
from tidewarden.raft.store_queries import BEAT_STANDS_S, StoreQueries
from tidewarden.raft.store_reports import DEPTH_MAX, REPORT_MAX, Report, StoreReports, is_report

REPORT = ("a", 1, 0.5, True, ("b", "c"))
STANDS_S = 0.85
NAME = "n0"


def test_the_last_report_of_each_is_kept_with_when_it_was_heard() -> None:
    reports = StoreReports()
    reports.hear("n0", 1.0, REPORT)
    before = reports.heard
    reports.hear("n0", 2.0, REPORT)
    assert (reports.heard, reports.changes) == ({"n0": (2.0, REPORT)}, 1)
    assert before == {"n0": (1.0, REPORT)}, "who reads it elsewhere sees it change"
    reports.hear("n0", 3.0, ("b",))
    reports.hear("n1", 3.0, ("b",))
    assert reports.changes == 3


def test_who_left_is_forgotten() -> None:
    reports = StoreReports()
    reports.hear("n0", 1.0, REPORT)
    reports.hear("n1", 1.0, REPORT)
    reports.keep({"n0", "n1", "n2"})
    assert reports.changes == 2
    reports.keep({"n1": "somewhere"})
    assert (set(reports.heard), reports.changes) == ({"n1"}, 3)


def nested(depth: int) -> tuple[Any, ...]:
    return (nested(depth - 1),) if depth > 1 else ()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a text",
        ["a", "list"],
        ({},),
        (None,),
        (b"bytes",),
        (math.nan,),
        (math.inf,),
        (2**63,),
        ("x" * REPORT_MAX,),
        tuple(range(REPORT_MAX)),
        (("x" * (REPORT_MAX // 2),),) * 2,
        nested(DEPTH_MAX + 1),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_report_is_not_taken(value: object) -> None:
    reports = StoreReports()
    reports.hear("n0", 1.0, value)
    assert (reports.heard, reports.changes) == ({}, 0)
    assert not is_report(value)


def test_the_longest_report_is_one() -> None:
    assert is_report(("x" * (REPORT_MAX - 2),))
    assert is_report(nested(DEPTH_MAX))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner).map(tuple) | st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=values)
def test_nothing_makes_it_raise(value: object) -> None:
    reports = StoreReports()
    reports.hear("n0", 1.0, value)
    reports.hear("n0", 2.0, value)
    assert reports.changes == len(reports.heard) <= 1


@dataclass
class PlayedVoter:
    """What the stores ask of a voter."""

    stores: StoreFacts = field(default_factory=StoreFacts)
    members: None = None
    ended: frozenset[str] = frozenset()
    reports: StoreReports = field(default_factory=StoreReports)
    stands_until: float = -math.inf
    said: list[Report] = field(default_factory=list)

    def say_store(self, report: Report, now: bool) -> None:
        self.said.append(report)


class PlayedTicker:
    """Its thread does at once what it is asked."""

    def __init__(self, voter: PlayedVoter) -> None:
        self._voter: Any = voter

    def ask_later(self, question: Any) -> None:
        question(self._voter)

    def wake(self) -> None:
        """It is."""


class Scene:
    """One node at rest, which has just said how its store is."""

    def __init__(self, pace: float = 1.0) -> None:
        self.clock, self.voter = ManualClock(), PlayedVoter()
        ticker: Any = PlayedTicker(self.voter)
        voter: Any = self.voter
        proposals: Any = None
        self.stores = StoreQueries(ticker, voter, proposals, self.clock, pace, lambda: None)
        self.stores.say(("fine",), False, STANDS_S * pace)
        self.began_s = self.clock.monotonic()

    def left_s(self) -> float:
        """For how long the thread takes the report as said."""
        return self.voter.stands_until - self.clock.monotonic()

    def silent_s(self) -> float:
        """For how long the node itself was silent, as it sees it."""
        return self.clock.monotonic() - self.stores.reports(NAME)[NAME][0]


@pytest.mark.parametrize("pace", [0.2, 1.0])
async def test_a_loop_that_hangs_falls_silent_within_a_beat_and_a_half(pace: float) -> None:
    scene = Scene(pace)
    assert scene.left_s() == pytest.approx(BEAT_STANDS_S * pace)
    scene.clock.stall(0.1 * pace)
    scene.stores.beat()
    assert scene.left_s() == pytest.approx(BEAT_STANDS_S * pace)
    scene.clock.stall(BEAT_STANDS_S * pace)
    assert scene.left_s() <= 1e-9, "no beat came"


async def test_a_loop_that_turns_without_another_look_stands_by_it_for_so_long() -> None:
    scene = Scene()
    while scene.clock.monotonic() - scene.began_s < 2 * STANDS_S:
        scene.clock.stall(0.1)
        scene.stores.beat()
    assert scene.voter.stands_until == pytest.approx(scene.began_s + STANDS_S)
    assert scene.silent_s() == pytest.approx(scene.clock.monotonic() - scene.began_s - STANDS_S)


async def test_one_that_does_not_rest_stands_by_nothing() -> None:
    scene = Scene()
    scene.stores.say(("fine",), False)
    assert scene.left_s() <= 0


async def test_a_report_from_before_other_facts_is_not_stood_by() -> None:
    """The node was elected, and what it does by that hangs: others have to see its silence."""
    scene = Scene()
    scene.voter.stores = StoreFacts(view=1, primary=NAME, incarnation="a")
    scene.stores.beat()
    assert scene.left_s() < 0
    scene.clock.stall(0.3)
    assert scene.silent_s() == pytest.approx(0.3)
    scene.stores.say(("serves",), True, STANDS_S)
    assert scene.left_s() > 0
    assert scene.voter.said == [("fine",), ("serves",)]


async def test_a_look_that_comes_a_moment_early_is_told() -> None:
    """Looks come at moments that duties share: less than their usual distance may lie between."""
    scene = Scene()
    for early_s in (0.01, -0.01, 0.002, 0.0):
        scene.clock.stall(0.1 - early_s)
        scene.stores.say(("fine",), False)
    assert len(scene.voter.said) == 5
    scene.clock.stall(0.05)
    scene.stores.say(("fine",), False)
    assert len(scene.voter.said) == 5, "nothing is new"

"""What members say of their stores: bounded, plain, and forgotten with who left."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.raft.reports import DEPTH_MAX, REPORT_MAX, Reports, is_report

REPORT = ("a", 1, 0.5, True, ("b", "c"))


def test_the_last_report_of_each_is_kept_with_when_it_was_heard() -> None:
    reports = Reports()
    reports.hear("n0", 1.0, REPORT)
    before = reports.heard
    reports.hear("n0", 2.0, REPORT)
    assert (reports.heard, reports.changes) == ({"n0": (2.0, REPORT)}, 1)
    assert before == {"n0": (1.0, REPORT)}, "who reads it elsewhere sees it change"
    reports.hear("n0", 3.0, ("b",))
    reports.hear("n1", 3.0, ("b",))
    assert reports.changes == 3


def test_who_left_is_forgotten() -> None:
    reports = Reports()
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
    reports = Reports()
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
    reports = Reports()
    reports.hear("n0", 1.0, value)
    reports.hear("n0", 2.0, value)
    assert reports.changes == len(reports.heard) <= 1

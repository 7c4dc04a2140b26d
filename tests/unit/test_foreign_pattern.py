"""Patterns that users write: each match ends soon, and what is refused says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.load import Provider, Secret
from tidewarden.config.placeholders import VALUE_CHARS_MAX, check, faults
from tidewarden.errors import BadArg
from tidewarden.foreign_pattern import PATTERN_CHARS_MAX, fault_of, is_match

SLOW_ELSEWHERE = ("(a+)+b", "(a|aa)+b", "(.*a){20}b", "(a?){100}b", "a*a*a*a*a*a*a*a*b")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", SLOW_ELSEWHERE)
def test_a_pattern_that_backtracks_elsewhere_is_matched_at_once(pattern: str) -> None:
    """With Python's ``re`` this does not end."""
    one = Provider(
        name="p", token_url="https://example.com/t", client_id="c", client_secret=Secret("s"),
        parameters={"x": "{p}"}, account_parameters={"p": pattern},
    )  # fmt: skip
    assert not list(faults(one))
    with pytest.raises(BadArg, match=r"parameters\.p is .*, which its pattern does not match"):
        check(one, {"p": "a" * (VALUE_CHARS_MAX - 1) + "!"})
    good = {"p": "a" * 40 + "b"}
    assert check(one, good) == good


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("[a-z", "missing"),
        (r"(a)\1", "neither references back to a group nor looks ahead or behind"),
        ("(?=a)a", "nor looks ahead"),
        ("(?<!a)b", "nor looks ahead or behind"),
        ("(?>a+)b", "allowed: a regular expression of RE2"),
        ("a{1001}", "repeats at most 1000 times"),
        ("(?:a{100}){100}", "repeats at most 1000 times"),
        ("a{,5}", "without its least number; allowed: {0,5} instead of {,5}"),
        ("a" * (PATTERN_CHARS_MAX + 1), f"allowed: at most {PATTERN_CHARS_MAX}"),
        (r"(?:\pL{9}){99}", "allowed: a regular expression of RE2"),
    ],
)
def test_a_pattern_that_is_refused_is_told_why(pattern: str, fault: str) -> None:
    assert fault in fault_of(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\d{1,9}", "0123", "a1"),
        ("[A-Za-z0-9.-]{1,64}", "a.b-c", "a/b"),
        (r"com|eu|com\.au", "com.au", "com.aux"),
        ("(?i)[a-z]+", "aBc", "a1"),
        (r"\S+@\S+\.example", "a@b.example", "a@b.examples"),
    ],
)
def test_a_pattern_matches_a_text_as_a_whole(pattern: str, yes: str, no: str) -> None:
    assert not fault_of(pattern)
    assert is_match(pattern, yes)
    assert not is_match(pattern, no)


@given(st.text(alphabet="ab09.^$|()[]{}*+?\\,-dDwWsSbBQE", max_size=24), st.text(max_size=30))
def test_no_pattern_is_a_defect(pattern: str, text: str) -> None:
    if not fault_of(pattern):
        assert is_match(pattern, text) in (True, False)

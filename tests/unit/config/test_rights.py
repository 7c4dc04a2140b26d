"""What a user may do, as it is written."""

from __future__ import annotations

import fnmatch
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inspect import kept_of

from tidewarden.config.rights import (
    ALL,
    EVERY_ACCOUNT,
    KEPT_MAX,
    NONE,
    QUEUE_WORDS,
    WORDS,
    Rights,
    fault_of,
    matches,
    parse,
)


@pytest.mark.parametrize(
    "right",
    [
        *WORDS,
        *("put:*", "take:a*b*", "stats:x/y:z", "admin:_tokens:*", "lock:job+1", "schedule:*"),
        *("token:read:shop/*", "token:read:*", "token:write:sh*p/ann:é|*@x", "token:admin:shop"),
    ],
)
def test_these_are_rights(right: str) -> None:
    assert fault_of(right) == ""


@pytest.mark.parametrize(
    ("right", "fault"),
    [
        ("", "allowed is one of all, put, take"),
        ("putt:mails", "did you mean 'put'?"),
        ("PUT", "allowed is one of"),
        ("token", "token:read"),
        ("token:red", "allowed is one of"),
        ("token:read:", "a pattern of 1 to 200 characters"),
        ("token:read:shop/", "after token:read:shop/ is an account's name"),
        ("token:read:/ann", "after token:read: is a provider's name"),
        ("token:read:sh.op", "after token:read: is a provider's name"),
        ("token:read:shop/a b", "after token:read:shop/ is an account's name"),
        ("token:read:shop/e\u0301", "letters together with their accents"),
        ("token:admin:shop:ann", "after token:admin: is a provider's name"),
        ("all:*", "allowed is all alone"),
        ("put:", "a pattern of 1 to 200 characters"),
        ("put:" + "a" * 201, "a pattern of 1 to 200 characters"),
        ("put:a b", "a queue's name"),
        ("put:a?", "a queue's name"),
        ("put:é", "a queue's name"),
        ("take:_tokens*", "are the system's"),
        ("lock:a b", "without blanks"),
    ],
)
def test_these_are_none_and_it_is_said_why(right: str, fault: str) -> None:
    assert fault in fault_of(right)


def test_a_word_is_told_from_its_names() -> None:
    assert parse("token:read") == ("token:read", None)
    assert parse("put:a:b") == ("put", "a:b")
    assert parse("put") == ("put", None)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_a_star_is_any_run_of_characters(pattern: str, name: str) -> None:
    assert matches(pattern, name) == bool(re.fullmatch(fnmatch.translate(pattern), name))


def test_a_pattern_of_many_stars_costs_little() -> None:
    assert not matches("*a" * 100, "a" * 99 + "b" * 1_000_000)


def test_what_is_not_allowed_is_forbidden() -> None:
    rights = Rights(("put:mails.*", "take", "token:read"))
    assert rights.allow("put", "mails.welcome")
    assert not rights.allow("put", "mails")
    assert not rights.allow("admin", "mails.welcome")
    assert rights.allow("take", "anything")
    assert rights.allow_every("take")
    assert not rights.allow_every("put")
    assert rights.allow_every("token:read")
    assert not rights.allow_every("token:write")
    assert not rights.whole


@pytest.mark.parametrize(
    ("right", "name", "allowed"),
    [
        ("token:read", "shop/ann", True),
        ("token:read", "shop", True),
        ("token:read:shop/*", "shop/ann", True),
        ("token:read:shop/*", "shop", True),
        ("token:read:shop/*", "shopping/ann", False),
        ("token:read:shop/*", "shopping", False),
        ("token:read:shop", "shop/ann", True),
        ("token:read:shop", "shop", True),
        ("token:read:shop", "shop2/ann", False),
        ("token:read:shop/ann", "shop/ann", True),
        ("token:read:shop/ann", "shop/ann/2", False),
        ("token:read:shop/ann", "shop", False),
        ("token:read:shop/a*", "shop/ann/2", True),
        ("token:read:shop/a*", "shop", False),
        ("token:read:*/ann", "shop/ann", True),
        ("token:read:*/ann", "shop/x/ann", False),
        ("token:read:sh*", "shop/ann", True),
        ("token:read:sh*/ann", "shop/x/ann", False),
        ("token:write:shop", "shop/ann", False),
        ("token:read:*", "", True),
        ("token:read:shop", "", False),
    ],
)
def test_a_right_to_accounts(right: str, name: str, allowed: bool) -> None:
    rights = Rights((right,))
    assert rights.allow("token:read", name) is allowed
    assert rights.accounts("token:export", "token:read").allow(name) is allowed


@given(
    st.sampled_from(["shop", "shop/*", "shop/**", "s*/*", "*/*", "*"]), st.text("ab/*", min_size=1)
)
def test_who_has_a_whole_provider_has_each_of_its_accounts(pattern: str, account: str) -> None:
    rights = Rights((f"token:admin:{pattern}",))
    assert rights.allow("token:admin", "shop")
    assert rights.allow("token:admin", f"shop/{account}")


def test_rights_to_some_accounts_are_not_to_every_one_but_to_a_part() -> None:
    rights = Rights(("token:read:shop/a*", "token:write:*"))
    assert rights.allow_some("token:read")
    assert not rights.allow_some("token:export")
    assert not rights.allow_every("token:read")
    assert rights.allow_every("token:write")
    assert rights.allow_part("token:read", "shop")
    assert not rights.allow_part("token:read", "bank")
    found = rights.accounts("token:read")
    assert not found.every
    assert (found.allow_part("shop"), found.allow_part("bank")) == (True, False)
    assert rights.accounts("token:read", "token:write").every
    assert EVERY_ACCOUNT.every
    for every in ("token:read", "token:read:*", "token:read:*/*", "token:read:**/*"):
        assert Rights((every,)).allow_every("token:read"), every


def test_who_may_use_a_queue_may_see_it() -> None:
    assert Rights(("put:a",)).see("a")
    assert not Rights(("put:a",)).see("b")
    assert not Rights(("take",)).see("_locks")
    assert Rights(("stats",)).see("_locks")


def test_all_is_everything_and_no_right_nothing() -> None:
    assert ALL.whole
    assert ALL.allow("admin", "x")
    assert ALL.allow_every("what comes later")
    assert not NONE.allow("put", "x")
    assert not NONE.see("x")


def test_names_without_end_are_not_remembered_without_end() -> None:
    rights = Rights(("put:a*",))
    assert all(rights.allow("put", f"a{number}") for number in range(2 * KEPT_MAX))
    assert sum(map(len, kept_of(rights))) <= KEPT_MAX


def words(letters: str, most: int) -> list[str]:
    """Every word of these letters."""
    return ["".join(word) for n in range(most + 1) for word in itertools.product(letters, repeat=n)]


def test_a_pattern_covers_what_its_regular_expression_does() -> None:
    names = words("ab", 5)
    for pattern in words("ab*", 5):
        expected = re.compile(".*".join(map(re.escape, pattern.split("*")))).fullmatch
        for name in names:
            assert matches(pattern, name) is (expected(name) is not None), (pattern, name)


@given(
    patterns=st.lists(st.text(alphabet="ab.*", min_size=1, max_size=6), max_size=6),
    names=st.lists(st.text(alphabet="ab.", min_size=1, max_size=6), max_size=20),
)
def test_many_patterns_are_as_each_of_them(patterns: list[str], names: list[str]) -> None:
    rights = Rights(f"put:{pattern}" for pattern in patterns)
    for name in names * 2:  # what is decided once is remembered
        expected = any(
            re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name)
            for pattern in patterns
        )
        assert rights.allow("put", name) is expected


def test_of_ten_thousand_names_few_are_compared_with_each_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user of 121 patterns: what a decision costs does not grow with their number."""
    compared = 0

    def counting(pattern: str, name: str) -> bool:
        nonlocal compared
        compared += 1
        return matches(pattern, name)

    monkeypatch.setattr("tidewarden.config.rights.matches", counting)
    rights = Rights(f"{QUEUE_WORDS[n % 4]}:q{n}.*" for n in range(121))
    names = [f"q{n % 200}.{n // 200}" for n in range(10_000)]
    assert sum(map(rights.see, names)) == 6050
    assert compared <= 10_000


def test_what_was_decided_lately_is_remembered() -> None:
    rights = Rights(("put:a*",))
    for number in range(KEPT_MAX):
        rights.allow("put", f"a{number}")
        assert rights.allow("put", "a0")
    kept = kept_of(rights)
    assert any(("put", "a0") in some for some in kept)
    assert sum(map(len, kept)) >= KEPT_MAX // 2

"""When to refresh and what to do when that failed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles
from tidewarden.tokens.limits.judgement import Assessment
from tidewarden.tokens.policy.account_state import since_ms, state
from tidewarden.tokens.policy.due_times import due_after, due_before, too_soon
from tidewarden.tokens.policy.failures import Case, after_failure, backoff, replay_after, use_spare
from tidewarden.tokens.provider.token_response import Verdict

NOW_MS = 1_700_000_000_000
REFUSED = Verdict("invalid_grant", "account", "HTTP 400 invalid_grant")
UNKNOWN = Verdict("unknown", "unknown", "reset")


def case(verdict: Verdict, troubles: RefreshTroubles | None = None, **settings: Any) -> Case:
    known: dict[str, Any] = {
        "rotation": "single_use",
        "grace_s": 0,
        "now_ms": NOW_MS,
        "left_s": 300,
    }
    return Case(verdict, troubles or RefreshTroubles(), **(known | settings))


WELL = Assessment(well_ms=NOW_MS - 1, judged_s=3600)


def confirmed(**settings: Any) -> RefreshTroubles:
    """Of an account that two refusals count against, long enough ago for the third."""
    then_ms = NOW_MS - 3_600_000
    return RefreshTroubles(
        tries=2, refusals=2, refused_ms=then_ms, confirmed_ms=then_ms + 600_000, **settings
    )


def provider(**settings: Any) -> Provider:
    return Provider(name="p", **settings)


def test_due_is_a_margin_before_the_end_and_life_counts_from_the_sending() -> None:
    assert due_after(NOW_MS, 3600, provider(), dice=0) == (NOW_MS + 3_600_000, NOW_MS + 3_300_000)
    assert due_after(NOW_MS, 3600, provider(), dice=1) == (NOW_MS + 3_600_000, NOW_MS + 3_270_000)
    assert due_after(NOW_MS, None, provider(default_life_s=1800.0), dice=0)[0] == NOW_MS + 1_800_000
    assert due_after(NOW_MS, 1e12, provider(), dice=0)[0] == NOW_MS + 365 * 86_400_000
    assert due_after(NOW_MS, 1e12, provider(life_s_max=7200.0), dice=0)[0] == NOW_MS + 7_200_000


@pytest.mark.parametrize("life_s", [0.0, 1.0, 9.9])
def test_a_token_that_lives_for_a_moment_is_refreshed_each_ten_seconds(life_s: float) -> None:
    end_ms, due_ms = due_after(NOW_MS, life_s, provider(), dice=1)
    assert (end_ms, due_ms) == (NOW_MS + int(life_s * 1000), NOW_MS + 10_000)
    row = AccountRow(1, 1, NOW_MS, end_ms, due_ms, b"", b"", access=b"sealed", refreshed=True)
    assert too_soon(provider(), row, NOW_MS + 1000) == 9  # whoever asks
    assert too_soon(provider(), row, due_ms) == 0
    assert too_soon(provider(), msgspec.structs.replace(row, refreshed=False), NOW_MS) == 0


@given(st.floats(10.0, 1e9), st.floats(0, 1e8), st.floats(0, 1), st.floats(0, 0.9))
def test_due_is_never_late_and_never_at_once(
    life_s: float, margin_s: float, dice: float, share: float
) -> None:
    made = provider(margin_s=margin_s, margin_share=share)
    expires_at_ms, due_ms = due_after(NOW_MS, life_s, made, dice)
    assert due_ms <= expires_at_ms
    life_ms = expires_at_ms - NOW_MS
    # A third at most, and a tenth of that for the jitter.
    assert due_ms - NOW_MS >= math.floor(life_ms * 0.63)


def test_a_token_that_has_expired_already_is_due_at_its_end() -> None:
    assert due_before(NOW_MS - 5, -0.005, provider(), 1) == NOW_MS - 5


def test_the_margin_may_be_a_share_and_a_refresh_may_be_forbidden_before_it() -> None:
    day = 86_400
    end_ms, due_ms = due_after(NOW_MS, 30 * day, provider(margin_share=0.1), dice=0)
    assert end_ms - due_ms == 3 * day * 1000
    exact = provider(margin_s=30.0, not_before_s=30.0)
    end_ms, due_ms = due_after(NOW_MS, 600, exact, dice=1)
    assert end_ms - due_ms == 30_000  # No jitter ahead of it.
    row = AccountRow(1, 1, NOW_MS, end_ms, due_ms, b"", b"", access=b"sealed", refreshed=True)
    assert too_soon(exact, row, NOW_MS) == 570
    assert too_soon(exact, row, end_ms - 30_000) == 0
    assert too_soon(exact, msgspec.structs.replace(row, access=b"", expires_at_ms=0), NOW_MS) == 0
    slow = provider(account_interval_s=60.0)
    assert too_soon(slow, row, NOW_MS + 1000) == 59
    assert too_soon(slow, msgspec.structs.replace(row, refreshed=False), NOW_MS + 1000) == 0


def test_a_refresh_token_that_dies_when_idle_is_used_in_time() -> None:
    day = 86_400
    _, due_ms = due_after(NOW_MS, 90 * day, provider(keep_alive_s=30.0 * day), dice=0.5)
    assert due_ms == NOW_MS + 30 * day * 1000
    _, due_ms = due_after(NOW_MS, 3600, provider(keep_alive_s=30.0 * day), dice=0)
    assert due_ms == NOW_MS + 3_300_000


@pytest.mark.parametrize(
    ("quarantined", "least_s", "most_s"), [(True, 150, 300), (False, 8192, 86_400)]
)
def test_an_account_that_fails_by_turns_in_a_quarantine_is_asked_again_within_minutes(
    quarantined: bool, least_s: float, most_s: float
) -> None:
    # A fifth of the answers are well, so others were well meanwhile: that shows nothing of it.
    troubles = RefreshTroubles(tries=14, first_ms=NOW_MS - 5_400_000)
    assessment = replace(WELL, quarantined=quarantined)
    verdict = Verdict("unavailable", "account", "HTTP 503")
    case = Case(verdict, troubles, "single_use", 0, NOW_MS, -60.0, assessment=assessment)
    assert least_s <= after_failure(case).delay_s <= most_s


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_backoff_doubles_and_is_bounded(tries: int, dice: float) -> None:
    assert 0.5 <= backoff(tries, dice) <= 60
    wait = backoff(tries, dice, cap_s=86_400)
    assert min(2.0 ** min(tries - 1, 20), 86_400) / 2 <= wait <= 86_400


def test_a_providers_failure_is_tried_again_and_noted() -> None:
    step = after_failure(
        case(
            Verdict("unavailable", "provider", "HTTP 503"), RefreshTroubles(tries=3), left_s=10_000
        )
    )
    assert (step.what, step.troubles.tries, step.troubles.outcome) == ("retry", 4, "unavailable")
    assert 4 <= step.delay_s <= 8
    assert step.troubles.next_ms == NOW_MS + int(step.delay_s * 1000)


@pytest.mark.parametrize("seconds", [0.0, 30.0, 600.0])
def test_never_before_retry_after(seconds: float) -> None:
    for word, scope in (
        ("rate_limited", "provider"),
        ("rejected", "account"),
        ("unknown", "unknown"),
    ):
        step = after_failure(case(Verdict(word, scope, retry_after_s=seconds), left_s=5))  # type: ignore[arg-type]
        assert step.delay_s >= seconds


def test_a_clients_failure_touches_no_account() -> None:
    shared = Assessment(shared=True)
    step = after_failure(case(Verdict("invalid_client", "client"), assessment=shared))
    assert (step.what, step.troubles) == ("hold", RefreshTroubles())
    # What this node cannot make a request of concerns nobody else, and no account either.
    assert after_failure(case(Verdict("misconfigured", "client"))).what == "hold"
    # But a doubt found in an open intent, which has no other place yet, is written down.
    doubted = after_failure(
        case(Verdict("invalid_client", "client"), RefreshTroubles(doubts=1), assessment=shared)
    )
    assert (doubted.what, doubted.troubles.doubts, doubted.troubles.tries) == ("retry", 1, 0)


def test_too_early_is_nobodys_fault_and_too_often_is_waited_for() -> None:
    old = RefreshTroubles()
    early = after_failure(case(Verdict("too_early", "account"), old, left_s=40))
    assert (early.what, early.delay_s, early.troubles) == ("hold", 20, old)
    assert after_failure(case(Verdict("too_early", "account"), old, left_s=-1)).what == "retry"
    often = after_failure(case(Verdict("account_limited", "account"), old, left_s=40))
    assert often.what == "retry"
    assert often.delay_s >= 30


@pytest.mark.parametrize(
    ("rotation", "grace_s", "at_once"),
    [("none", 0, True), ("rolling", 0, True), ("single_use", 60, True), ("single_use", 0, False)],
)
def test_an_unknown_outcome_is_tried_at_once_where_it_is_safe(
    rotation: str, grace_s: float, at_once: bool
) -> None:
    assert (replay_after(case(UNKNOWN, rotation=rotation, grace_s=grace_s)) == 0) == at_once
    step = after_failure(case(UNKNOWN, rotation=rotation, grace_s=grace_s))
    assert step.what == "retry"
    assert (step.troubles.doubts, step.troubles.doubt_ms) == (1, NOW_MS)
    again = after_failure(
        case(UNKNOWN, step.troubles, rotation=rotation, grace_s=grace_s, now_ms=NOW_MS + 1)
    )
    assert again.delay_s > 0  # Never in a tight loop.
    assert (again.troubles.doubts, again.troubles.doubt_ms) == (2, NOW_MS)


def test_a_refused_replay_is_a_lost_rotation() -> None:
    """Told when it is given up; where refresh tokens stay, a lost answer loses nothing."""
    doubted = after_failure(case(UNKNOWN)).troubles
    assert after_failure(case(REFUSED, doubted)).what == "retry"
    for rotation, what, outcome in (
        ("single_use", "lost", "lost_rotation"),
        ("none", "dead", "invalid_grant"),
    ):
        step = after_failure(case(REFUSED, confirmed(doubts=1), rotation=rotation, assessment=WELL))
        assert (step.what, step.troubles.dead, step.troubles.outcome) == (what, True, outcome)


def test_the_spare_is_tried_before_an_account_is_given_up() -> None:
    first = after_failure(case(REFUSED, has_spare=True))
    assert (first.what, first.delay_s) == ("retry", 0)
    assert use_spare(first.troubles, has_spare=True)
    refused = after_failure(case(REFUSED, first.troubles, has_spare=True, used_spare=True))
    assert (refused.what, refused.spare, refused.troubles.refusals) == ("retry", "drop", 1)
    assert not use_spare(refused.troubles, has_spare=True)
    last = after_failure(case(REFUSED, confirmed(), has_spare=True, assessment=WELL))
    assert (last.what, last.delay_s) == ("retry", 0)
    ended = after_failure(
        case(REFUSED, last.troubles, has_spare=True, used_spare=True, assessment=WELL)
    )
    assert (ended.what, ended.spare) == ("dead", "drop")


def test_a_spare_of_unknown_outcome_is_tried_again_until_it_is_refused() -> None:
    """It may be the only refresh token that works: a time-out is no reason to throw it away."""
    step = after_failure(
        case(UNKNOWN, RefreshTroubles(refusals=1), has_spare=True, used_spare=True)
    )
    assert (step.what, step.spare) == ("retry", "keep")
    assert step.delay_s > 0
    assert step.troubles.doubts == 0  # Of the row's token nothing is doubted.
    assert use_spare(step.troubles, has_spare=True)
    refused = after_failure(case(REFUSED, step.troubles, has_spare=True, used_spare=True))
    assert (refused.what, refused.spare) == ("retry", "drop")


def test_a_scope_that_is_refused_says_nothing_of_a_lost_token() -> None:
    doubted = after_failure(case(UNKNOWN)).troubles
    step = after_failure(case(Verdict("invalid_scope", "account"), doubted))
    assert (step.what, step.troubles.outcome) == ("retry", "invalid_scope")


def test_a_spare_is_left_alone_while_the_row_was_not_refused() -> None:
    assert not use_spare(RefreshTroubles(tries=9), has_spare=True)
    assert not use_spare(RefreshTroubles(refusals=1), has_spare=False)


def test_the_step_leaves_the_cases_troubles_as_they_are() -> None:
    old = RefreshTroubles(tries=2, refusals=1)
    before = replace_copy(old)
    for verdict in (REFUSED, UNKNOWN, Verdict("unavailable", "provider")):
        after_failure(case(verdict, old, has_spare=True))
    assert old == before


def test_states() -> None:
    row = AccountRow(1, 1, 0, NOW_MS + 100, NOW_MS + 50, b"", b"")
    assert state(row, None, NOW_MS) == "fresh"
    assert state(row, None, NOW_MS + 50) == "expiring"
    assert state(row, None, NOW_MS + 100) == "late"
    assert state(row, RefreshTroubles(), NOW_MS) == "failing"
    assert state(row, RefreshTroubles(stopped=True), NOW_MS) == "stopped"
    assert state(row, RefreshTroubles(dead=True), NOW_MS) == "dead"
    assert (
        state(row, RefreshTroubles(dead=True, outcome="lost_rotation"), NOW_MS) == "lost_rotation"
    )
    assert (
        state(msgspec.structs.replace(row, expires_at_ms=0, due_ms=0), None, NOW_MS) == "expiring"
    )


def test_since_when_an_account_is_as_it_is() -> None:
    row = AccountRow(1, 1, 5, NOW_MS + 100, NOW_MS + 50, b"", b"")
    for now_ms, since in ((NOW_MS, 5), (NOW_MS + 50, NOW_MS + 50), (NOW_MS + 100, NOW_MS + 100)):
        assert since_ms(row, None, state(row, None, now_ms)) == since
    assert since_ms(row, RefreshTroubles(first_ms=7, last_ms=9), "failing") == 7
    assert since_ms(row, RefreshTroubles(first_ms=7, last_ms=9, dead=True), "dead") == 9
    assert since_ms(row, RefreshTroubles(first_ms=7, last_ms=9, stopped=True), "stopped") == 9


def test_a_quarantine_declares_nobody_dead() -> None:
    assert after_failure(case(REFUSED, confirmed(), assessment=WELL)).what == "dead"
    for troubles in (confirmed(), confirmed(doubts=1)):
        step = after_failure(
            case(REFUSED, troubles, assessment=replace(WELL, quarantined=True, sampled=True))
        )
        assert (step.what, step.troubles.dead, step.troubles.refusals) == ("retry", False, 2)
        assert step.delay_s >= 300


def test_a_fault_of_ours_leaves_the_counters_as_they_are() -> None:
    old = RefreshTroubles(tries=3)
    step = after_failure(case(Verdict("refused", "ours", "no route", answered=False), old))
    assert (step.what, step.troubles.tries, step.troubles.outcome) == ("retry", 3, "refused")
    assert 5 <= step.delay_s <= 10


def replace_copy(troubles: RefreshTroubles) -> RefreshTroubles:
    import copy

    return copy.copy(troubles)

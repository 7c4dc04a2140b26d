"""
How often an account that fails is asked, and when it is given up: whole lives of one, with clocks
handed in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.error_classes import ERROR_CLASSES
from tidewarden.tokens.accounts.account_record import RefreshTroubles
from tidewarden.tokens.limits.judgement import ALONE, Assessment
from tidewarden.tokens.policy.failures import (
    CONFIRM_S,
    Case,
    Step,
    after_doubt,
    after_failure,
    replay_after,
)
from tidewarden.tokens.provider.token_response import Verdict

REFUSALS = frozenset(name for name, row in ERROR_CLASSES.items() if row.ends_grant)

BEGIN_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
REFUSED = Verdict(
    "invalid_grant", "account", "HTTP 400 invalid_grant", brief="HTTP 400 invalid_grant"
)
UNKNOWN = Verdict("unknown", "unknown", "HTTP 504", brief="HTTP 504")
ACCOUNTS_OWN = [
    Verdict("rejected", "account", "HTTP 400 invalid_request"),
    Verdict("unauthorized_client", "client", "HTTP 400 unauthorized_client"),
    Verdict("invalid_client", "client", "HTTP 401"),
    Verdict("misdirected", "client", "HTTP 404"),
    Verdict("unavailable", "provider", "HTTP 500"),
    Verdict("rate_limited", "provider", "HTTP 429"),
    Verdict("rate_limited", "provider", "HTTP 429", retry_after_s=1.0),
    Verdict("account_limited", "account", "HTTP 400 too_often"),
    Verdict("refused", "provider", "no connection", answered=False),
    REFUSED,
    UNKNOWN,
]


def others_well(now_ms: int) -> Assessment:
    """Others are refreshed well all the time."""
    return Assessment(well_ms=now_ms - 1000, judged_s=3600)


def nobody_well(_now_ms: int) -> Assessment:
    """Others were well before, and nobody is since."""
    return Assessment(well_ms=BEGIN_MS - HOUR_MS)


Life = list[tuple[int, Step]]


def live(
    verdict: Verdict | Callable[[int], Verdict],
    for_ms: int,
    assess: Callable[[int], Assessment] = others_well,
    dice: float = 0.0,
    life_ms: int = 300_000,
    **settings: Any,
) -> Life:
    """
    Every try of an account that never succeeds, and what followed from it: until it is given up, or
    for so long.
    """
    now_ms, troubles = BEGIN_MS, RefreshTroubles()
    known: dict[str, Any] = {"rotation": "single_use", "grace_s": 0.0} | settings
    found: Life = []
    while now_ms < BEGIN_MS + for_ms:
        answer = verdict if isinstance(verdict, Verdict) else verdict(now_ms)
        left_s = (BEGIN_MS + life_ms - now_ms) / 1000
        step = after_failure(
            Case(
                answer,
                troubles,
                now_ms=now_ms,
                left_s=left_s,
                dice=dice,
                assessment=assess(now_ms),
                **known,
            )
        )
        found.append((now_ms, step))
        if step.what in ("dead", "lost", "stop"):
            assert step.troubles.next_ms == 0
            break
        troubles = step.troubles
        now_ms += max(1, int(step.delay_s * 1000))
    return found


@pytest.mark.parametrize(
    "verdict", ACCOUNTS_OWN, ids=lambda verdict: f"{verdict.outcome} {verdict.message}"
)
@pytest.mark.parametrize("dice", [0.0, 1.0])
def test_an_account_that_always_fails_is_asked_seldom_and_comes_to_an_end(
    verdict: Verdict, dice: float
) -> None:
    life = live(verdict, 30 * DAY_MS, dice=dice)
    at, step = life[-1]
    assert step.what in ("dead", "lost", "stop")
    assert at <= BEGIN_MS + 6 * DAY_MS
    assert len([at for at, _ in life if at < BEGIN_MS + DAY_MS]) <= 60
    assert len([at for at, _ in life if at < BEGIN_MS + 42_000]) <= 8
    ends = step.what != "stop"
    assert ends == (verdict.outcome in REFUSALS)


@pytest.mark.parametrize(
    "verdict", ACCOUNTS_OWN, ids=lambda verdict: f"{verdict.outcome} {verdict.message}"
)
def test_where_nobody_is_known_to_be_well_it_is_asked_each_five_minutes_and_ends_later(
    verdict: Verdict,
) -> None:
    life = live(verdict, 30 * DAY_MS, nobody_well)
    at, step = life[-1]
    assert step.what == "stop"
    assert 4 * DAY_MS <= at - BEGIN_MS <= 10 * DAY_MS
    waits_s = [(after - before) / 1000 for (before, _), (after, _) in itertools.pairwise(life)]
    if verdict.outcome not in REFUSALS:
        assert max(waits_s) <= 300
        # Full jitter halves a wait at most.
        assert len([at for at, _ in life if at < BEGIN_MS + DAY_MS]) <= 660
    else:
        assert len(life) <= 20


def counted(life: Life) -> list[int]:
    """At which minutes a refusal counted towards the end."""
    refusals = itertools.pairwise([0, *(step.troubles.refusals for _, step in life)])
    return [
        (at - BEGIN_MS) // MINUTE_MS
        for (at, _), (before, after) in zip(life, refusals, strict=True)
        if after > before
    ]


def test_a_grant_ends_after_three_refusals_that_lie_apart_while_others_do_well() -> None:
    for outcome in sorted(REFUSALS):
        life = live(Verdict(outcome, "account"), 10 * DAY_MS)
        assert counted(life) == [0, 10, 60]
        assert {step.what for _, step in life[:-1]} == {"retry"}
        assert life[-1][1].what == "dead"
        assert life[-1][1].troubles.outcome == outcome


@pytest.mark.parametrize(("life_s", "most"), [(300, 8), (86_400, 3), (0, 3)])
def test_a_refused_account_is_asked_at_half_of_what_its_token_lives(life_s: int, most: int) -> None:
    """A wrong answer leaves no reader without a token: what is asked sooner does not count."""
    life = live(REFUSED, DAY_MS, life_ms=life_s * 1000)
    living = [at for at, _ in life if at < BEGIN_MS + life_s * 1000]
    left_s = [life_s - (at - BEGIN_MS) / 1000 for at in living]
    waits_s = [(after - before) / 1000 for before, after in itertools.pairwise(living)]
    assert all(wait <= max(10, left / 2) + 1 for wait, left in zip(waits_s, left_s, strict=False))
    assert len(living) <= most + 8 * (life_s == 300)
    assert counted(life) == [0, 10, 60]


def test_a_proven_account_without_a_token_is_asked_again_after_a_minute() -> None:
    life = live(REFUSED, DAY_MS, life_ms=0, refreshed=True)
    minutes = [(at - BEGIN_MS) // MINUTE_MS for at, _ in life]
    assert minutes[:4] == [0, 1, 2, 4]
    assert counted(life) == [0, 10, 60]
    assert len(life) <= 12


def test_who_is_refused_beside_others_is_given_up_after_a_day() -> None:
    """They may be a part of the provider's, too small for a quarantine."""

    def assess(now_ms: int) -> Assessment:
        beside = now_ms < BEGIN_MS + HOUR_MS
        return replace(others_well(now_ms), clustered=beside)

    life = live(REFUSED, 10 * DAY_MS, assess)
    assert life[-1][1].what == "dead"
    assert DAY_MS <= life[-1][0] - BEGIN_MS <= 2 * DAY_MS


def test_a_slow_client_shows_later_that_it_is_well() -> None:
    """An hour's answers are few: what fifty show since the first refusal counts."""

    def assess(now_ms: int) -> Assessment:
        return Assessment(well_ms=now_ms - 1000, judged_s=7 * 3600)

    life = live(REFUSED, 10 * DAY_MS, assess)
    assert life[-1][1].what == "dead"
    assert 7 * HOUR_MS <= life[-1][0] - BEGIN_MS <= DAY_MS


@pytest.mark.parametrize(
    "verdict",
    [
        REFUSED,
        Verdict("rate_limited", "provider"),
        Verdict("unavailable", "provider"),
        Verdict("rejected", "account"),
    ],
    ids=lambda verdict: verdict.outcome,
)
def test_a_grace_is_never_given_away(verdict: Verdict) -> None:
    """Whatever the replay is answered: again within half of what is left, uncounted, first."""
    troubles, now_ms = RefreshTroubles(doubts=1, doubt_ms=BEGIN_MS), BEGIN_MS + 1000
    end_ms, asked = BEGIN_MS + 20_000, 0
    while now_ms < end_ms - 1000:
        left_s = (end_ms - now_ms) / 1000
        step = after_failure(
            Case(verdict, troubles, "single_use", 20.0, now_ms, 300, assessment=others_well(now_ms))
        )
        assert (step.what, step.until_ms) == ("retry", end_ms)
        assert step.delay_s <= max(1.0, left_s / 2)
        assert (step.troubles.refusals, step.troubles.tries) == (0, 0)
        troubles, now_ms, asked = step.troubles, now_ms + int(step.delay_s * 1000), asked + 1
    assert 7 <= asked <= 12


def test_a_time_to_wait_that_ends_within_the_grace_is_kept() -> None:
    troubles = RefreshTroubles(doubts=1, doubt_ms=BEGIN_MS)
    for named_s, least_s, most_s in ((15.0, 15, 15), (60.0, 1, 10)):
        told = Verdict("rate_limited", "provider", retry_after_s=named_s)
        step = after_failure(Case(told, troubles, "single_use", 20.0, BEGIN_MS + 1000, 300))
        assert least_s <= step.delay_s <= most_s
        assert step.until_ms == BEGIN_MS + 20_000


def test_a_short_grace_is_used_up_in_its_place() -> None:
    """A rate for all, or a queue, may outlast it; a hold of all may not be passed by."""
    troubles = RefreshTroubles(doubts=1, doubt_ms=BEGIN_MS, outcome="unknown")
    limited = Verdict("rate_limited", "provider")
    now_ms, asked = BEGIN_MS + 500, 0
    while True:
        case = Case(
            limited, troubles, "single_use", 20.0, now_ms, 0, assessment=Assessment(shared=True)
        )
        wait = replay_after(case)
        if wait is None:
            break
        troubles, now_ms, asked = after_doubt(case), now_ms + int(wait * 1000) + 100, asked + 1
    assert 7 <= asked <= 12
    assert now_ms >= BEGIN_MS + 17_000
    assert (troubles.doubts, troubles.doubt_ms) == (1, BEGIN_MS)
    held = replace(case, verdict=Verdict("unavailable", "provider"), now_ms=BEGIN_MS + 500)
    assert replay_after(held) is None
    assert replay_after(replace(held, assessment=Assessment())) is not None
    assert replay_after(replace(case, now_ms=BEGIN_MS + 500, grace_s=600.0)) is None


@pytest.mark.parametrize("grace_s", [3600.0, 7 * 86_400.0])
def test_a_long_grace_silences_nobody(grace_s: float) -> None:
    doubted = RefreshTroubles(doubts=1, doubt_ms=BEGIN_MS - 600_000, outcome="unknown")
    for verdict in (Verdict("unavailable", "provider"), Verdict("rate_limited", "provider")):
        case = Case(verdict, doubted, "single_use", grace_s, BEGIN_MS, -60)
        step = after_failure(case)
        assert step.delay_s <= 60
        assert step.until_ms == case.safe_until_ms
        assert (step.troubles.outcome, doubted.outcome) == (verdict.outcome, "unknown")
        assert step.troubles.last_ms == BEGIN_MS


def test_a_grant_that_ended_is_found_within_a_grace_of_weeks() -> None:
    def answer(now_ms: int) -> Verdict:
        return UNKNOWN if now_ms == BEGIN_MS else REFUSED

    life = live(answer, 3 * DAY_MS, grace_s=30 * 86_400.0)
    assert life[-1][1].what == "lost"
    assert counted(life)[-1] >= 60


def test_where_nobody_was_ever_well_nobody_is_given_up() -> None:
    """The client's settings may be wrong; its accounts are asked ever more rarely."""
    life = live(REFUSED, 3 * DAY_MS, lambda _: Assessment(others=True))
    assert {step.what for _, step in life} == {"retry"}
    assert life[-1][1].delay_s >= HOUR_MS / 1000
    assert len(life) <= 30


def test_a_refused_replay_is_a_lost_rotation_after_the_same_three() -> None:
    first = after_failure(Case(UNKNOWN, RefreshTroubles(), "single_use", 0, BEGIN_MS, 300)).troubles
    troubles, now_ms, found = first, BEGIN_MS + 500, []
    while not troubles.given_up:
        step = after_failure(
            Case(
                REFUSED,
                troubles,
                "single_use",
                0,
                now_ms,
                0,
                dice=0,
                assessment=others_well(now_ms),
            )
        )
        found.append((round((now_ms - BEGIN_MS) / MINUTE_MS), step.what))
        troubles, now_ms = step.troubles, now_ms + int(step.delay_s * 1000)
    assert found == [(0, "retry"), (10, "retry"), (60, "lost")]
    assert troubles.outcome == "lost_rotation"


def test_a_refresh_by_hand_shows_the_answer_and_does_not_count() -> None:
    troubles = RefreshTroubles()
    for second in range(0, 600, 5):
        now_ms = BEGIN_MS + second * 1000
        step = after_failure(
            Case(REFUSED, troubles, "single_use", 0, now_ms, 0, assessment=others_well(now_ms))
        )
        assert (step.what, step.troubles.refusals) == ("retry", 1)
        assert step.troubles.last_ms == now_ms
        # The next one that counts comes when it would have come without anybody's hand.
        assert BEGIN_MS + 600_000 <= step.troubles.next_ms <= BEGIN_MS + 630_001
        troubles = step.troubles
    assert len(troubles.asked) == 8
    assert troubles.asked[-1] == (BEGIN_MS + 595_000, "invalid_grant", "HTTP 400 invalid_grant")


def test_nobody_is_given_up_before_somebody_else_was_refreshed_well() -> None:
    well_ms = BEGIN_MS - 1

    def assess(_now_ms: int) -> Assessment:
        return Assessment(well_ms=well_ms)

    life = live(REFUSED, 2 * DAY_MS, assess)
    assert {step.what for _, step in life} == {"retry"}
    troubles = life[-1][1].troubles
    now_ms = troubles.next_ms
    case = Case(REFUSED, troubles, "single_use", 0, now_ms, 0, assessment=others_well(now_ms))
    assert after_failure(case).what == "dead"


@pytest.mark.parametrize(("after_ms", "what"), [(0, "retry"), (30_000, "retry"), (90_000, "dead")])
def test_who_was_well_right_after_the_first_refusal_is_no_proof_of_a_well_provider(
    after_ms: int, what: str
) -> None:
    """Nodes tell late: that refresh may have been before the provider's trouble."""
    life = live(REFUSED, 2 * DAY_MS, lambda _now_ms: Assessment(well_ms=BEGIN_MS - 1))
    troubles = life[-1][1].troubles
    assert troubles.refused_ms == BEGIN_MS
    found = Assessment(well_ms=troubles.refused_ms + after_ms, judged_s=3600)
    case = Case(REFUSED, troubles, "single_use", 0, troubles.next_ms, 0, assessment=found)
    assert after_failure(case).what == what


def test_the_only_account_of_a_client_is_given_up_after_a_day_of_refusals() -> None:
    for own_ms, assess in (
        (0, lambda _: ALONE),
        (BEGIN_MS - HOUR_MS, lambda _: Assessment(well_ms=BEGIN_MS - HOUR_MS + 1000)),
    ):
        life = live(REFUSED, 10 * DAY_MS, assess, stored_ms=own_ms)
        assert life[-1][1].what == "dead"
        assert DAY_MS <= life[-1][0] - BEGIN_MS <= 2 * DAY_MS
        assert len(life) <= 20


def test_a_quarantine_has_its_accounts_asked_and_counts_nothing() -> None:
    """By turns, see ``ClientRecord.claim_sample``: none asks for itself meanwhile."""
    held = Assessment(shared=True, quarantined=True, sampled=True, well_ms=BEGIN_MS + 1)
    before = RefreshTroubles(
        tries=2,
        refusals=2,
        confirmed_ms=BEGIN_MS - 2 * DAY_MS,
        refused_ms=BEGIN_MS - 3 * DAY_MS,
    )
    case = Case(REFUSED, before, "single_use", 0, BEGIN_MS, 0, assessment=held)
    step = after_failure(case)
    assert (step.what, step.delay_s) == ("retry", 86_400)
    now = step.troubles
    assert (now.tries, now.refusals, now.confirmed_ms, now.own_ms) == (2, 2, before.confirmed_ms, 0)
    # Once some are well again nobody waits for a turn that does not come.
    ending = after_failure(replace(case, assessment=replace(held, sampled=False), refreshed=True))
    assert (ending.what, ending.troubles.refusals) == ("retry", 2)
    assert ending.delay_s <= 600
    # An operator who says that the refusals are true has each account given up by its next one.
    told = Assessment(released_ms=BEGIN_MS - HOUR_MS)
    case = Case(REFUSED, RefreshTroubles(), "single_use", 0, BEGIN_MS, 0, assessment=told)
    assert after_failure(case).what == "dead"
    # Nothing was said of one that was well, or was put, since then: what refuses it is another
    # matter.
    assert after_failure(replace(case, stored_ms=BEGIN_MS - HOUR_MS + 1)).what == "retry"


@pytest.mark.parametrize(
    "verdict", ACCOUNTS_OWN, ids=lambda verdict: f"{verdict.outcome} {verdict.message}"
)
def test_what_is_shared_counts_against_nobody(verdict: Verdict) -> None:
    quarantined = verdict.outcome in REFUSALS and verdict.scope == "account"
    shared = Assessment(shared=True, quarantined=quarantined, well_ms=BEGIN_MS - 1)
    life = live(verdict, HOUR_MS, lambda _: shared)
    assert {step.what for _, step in life} <= {"retry", "hold"}
    last = life[-1][1].troubles
    assert (last.tries, last.refusals, last.own_ms, last.given_up) == (0, 0, 0, False)
    if not quarantined:
        for dice in (0.0, 1.0):
            case = Case(
                verdict,
                RefreshTroubles(),
                "single_use",
                0,
                BEGIN_MS,
                300,
                assessment=shared,
                dice=dice,
            )
            assert 1 <= after_failure(case).delay_s <= 23


@pytest.mark.parametrize(
    "verdict", [one for one in ACCOUNTS_OWN if one.answered and "limited" not in one.outcome]
)
def test_what_a_quarantine_is_for_is_sampled_whatever_it_is_called(verdict: Verdict) -> None:
    """
    Errors for a part of the accounts, and words that refuse our client, as refusals: seldom, and
    nothing counts.
    """
    refused = verdict.outcome in REFUSALS or verdict.scope == "client"
    held = Assessment(shared=not refused, quarantined=True, sampled=True, well_ms=BEGIN_MS - 1)
    life = live(verdict, 30 * DAY_MS, lambda _: held, dice=0.5)
    waits_s = [(after - before) / 1000 for (before, _), (after, _) in itertools.pairwise(life)]
    assert {round(wait) for wait in waits_s} == {86_400}
    last = life[-1][1].troubles
    assert (last.tries, last.refusals, last.own_ms, last.given_up) == (0, 0, 0, False)
    # Too many requests, or silence, are another matter: it is tried again soon.
    for other in (
        Verdict("rate_limited", "provider"),
        Verdict("refused", "provider", answered=False),
    ):
        case = Case(
            other,
            RefreshTroubles(),
            "none",
            0,
            BEGIN_MS,
            0,
            assessment=Assessment(True, True, sampled=True),
        )
        assert after_failure(case).delay_s <= 23


def test_a_quarantine_stops_nobody_either() -> None:
    """Whatever it is that an account meets with meanwhile."""
    long = RefreshTroubles(
        tries=20,
        own_ms=5 * DAY_MS,
        first_ms=BEGIN_MS - 9 * DAY_MS,
        last_ms=BEGIN_MS,
        next_ms=BEGIN_MS,
    )
    limited = Verdict("rate_limited", "provider")
    for assessment, what in (
        (Assessment(quarantined=True), "retry"),
        (others_well(BEGIN_MS), "stop"),
    ):
        case = Case(limited, long, "none", 0, BEGIN_MS, 0, assessment=assessment)
        assert after_failure(case).what == what


@pytest.mark.thorough
def test_an_outage_of_four_days_stops_nobody() -> None:
    """
    Its own failures before and after it are counted, and the time in between, in which the queue is
    held, is not.
    """

    def assess(now_ms: int) -> Assessment:
        out = BEGIN_MS + HOUR_MS <= now_ms < BEGIN_MS + 6 * DAY_MS
        return Assessment(shared=out, well_ms=BEGIN_MS + HOUR_MS if out else now_ms - 1000)

    life = live(Verdict("unavailable", "provider"), 7 * DAY_MS, assess)
    assert {step.what for _, step in life} == {"retry"}
    assert life[-1][1].troubles.own_ms < 2 * DAY_MS


def test_waiting_in_a_held_queue_is_no_time_of_asking_in_vain() -> None:
    wrong = Verdict("unavailable", "provider")
    first = after_failure(Case(wrong, RefreshTroubles(), "single_use", 0, BEGIN_MS, 0)).troubles
    late_ms = BEGIN_MS + 9 * DAY_MS
    step = after_failure(
        Case(wrong, first, "single_use", 0, late_ms, 0, assessment=others_well(late_ms))
    )
    assert step.what == "retry"


def test_too_many_requests_hold_that_account_as_long_as_it_was_told() -> None:
    told = Verdict("rate_limited", "provider", retry_after_s=90.0)
    assert (
        90
        <= after_failure(Case(told, RefreshTroubles(), "single_use", 0, BEGIN_MS, 5)).delay_s
        <= 91
    )
    assert (
        4
        <= after_failure(
            Case(Verdict("rate_limited", "provider"), RefreshTroubles(), "none", 0, BEGIN_MS, 5)
        ).delay_s
        <= 8
    )


@pytest.mark.parametrize(("rotation", "grace_s"), [("none", 0), ("rolling", 0), ("single_use", 60)])
def test_a_replay_that_is_safe_is_sent_in_place_a_time_or_two(
    rotation: Any, grace_s: float
) -> None:
    troubles, waits, now_ms = RefreshTroubles(), [], BEGIN_MS
    for _ in range(5):
        case = Case(UNKNOWN, troubles, rotation, grace_s, now_ms, 300, begun_ms=BEGIN_MS)
        wait = replay_after(case)
        if wait is None:
            break
        waits.append(wait)
        troubles = after_doubt(case)
        now_ms += 100
    assert len(waits) == 2
    assert waits[0] == 0
    assert 0.5 <= waits[1] <= 1.5
    assert (troubles.doubts, troubles.doubt_ms, troubles.tries) == (2, BEGIN_MS, 0)
    step = after_failure(Case(UNKNOWN, troubles, rotation, grace_s, now_ms, 300, begun_ms=BEGIN_MS))
    # Where only the grace saves it, it goes before all others until that is over.
    assert step.until_ms == (BEGIN_MS + 60_000 if grace_s else 0)
    assert step.delay_s <= 30


def test_a_replay_is_not_sent_in_place_where_it_may_do_harm() -> None:
    def wait(
        verdict: Verdict = UNKNOWN, troubles: RefreshTroubles | None = None, **settings: Any
    ) -> float | None:
        known: dict[str, Any] = {
            "rotation": "single_use",
            "grace_s": 20,
            "now_ms": BEGIN_MS + 15_000,
            "left_s": 300,
        }
        return replay_after(
            Case(verdict, troubles or RefreshTroubles(), begun_ms=BEGIN_MS, **(known | settings))
        )

    assert wait() == 0
    # It counts from before the request, which may have been processed at once.
    assert wait(grace_s=15) is None
    assert wait(grace_s=0) is None
    assert wait(REFUSED) is None
    assert wait(used_spare=True, has_spare=True) is None
    assert wait(troubles=RefreshTroubles(refusals=1)) is None
    # Others fare so: it would only add to the load.
    assert wait(assessment=Assessment(shared=True)) is None
    assert wait(Verdict("unknown", "unknown", retry_after_s=5)) is None


VERDICTS = st.sampled_from(
    [*ACCOUNTS_OWN, Verdict("invalid_scope", "account"), Verdict("dns", "ours", answered=False)]
)
MOMENTS = st.tuples(
    VERDICTS,
    st.floats(0, 1),
    st.sampled_from(["alone", "shared", "quarantined", "well"]),
    st.sampled_from([0, 0, 0, 5, 600, 3600]),
)


@given(
    st.lists(MOMENTS, min_size=1, max_size=60),
    st.sampled_from(["none", "rolling", "single_use"]),
    st.sampled_from([0.0, 60.0]),
)
def test_no_sequence_of_answers_gives_an_account_up_too_soon(
    moments: list[Any], rotation: Any, grace_s: float
) -> None:
    """
    Whatever is answered and whatever is known of others: each step has a next try or an end, and an
    end is earned. A hand that asks sooner than its next try is in it.
    """
    troubles, now_ms, well_ms = RefreshTroubles(), BEGIN_MS, 0
    counted: list[int] = []
    asked_in_vain_ms = 0
    for verdict, dice, known, by_hand_s in moments:
        if known == "well":
            well_ms = now_ms
        assessment = Assessment(
            known == "shared",
            known == "quarantined",
            sampled=known == "quarantined",
            judged_s=3600,
            well_ms=well_ms,
        )
        step = after_failure(
            Case(
                verdict,
                troubles,
                rotation,
                grace_s,
                now_ms,
                0,
                dice=dice,
                assessment=assessment,
                begun_ms=now_ms - 500,
            )
        )
        after = step.troubles
        if after.refusals > troubles.refusals:
            assert known not in ("shared", "quarantined")
            counted.append(now_ms)
        if step.what in ("dead", "lost"):
            assert after.dead
            assert known not in ("shared", "quarantined")
            assert len(counted) >= 3
            assert counted[1] - counted[0] >= CONFIRM_S * 1000
            assert now_ms - counted[0] >= HOUR_MS
            assert well_ms > counted[0] or (well_ms == 0 and now_ms - counted[0] >= DAY_MS)
            return
        if step.what == "stop":
            assert after.stopped
            assert known not in ("shared", "quarantined")
            assert asked_in_vain_ms >= 4 * DAY_MS
            return
        assert step.delay_s >= 0
        assert step.what == "hold" or after.next_ms == now_ms + int(step.delay_s * 1000)
        asked_in_vain_ms += int(step.delay_s * 1000)
        assert not after.given_up
        assert len(after.asked) <= 8
        troubles = after
        now_ms += by_hand_s * 1000 if by_hand_s else max(1, int(step.delay_s * 1000))


@given(
    VERDICTS,
    st.lists(st.floats(0, 1), min_size=8, max_size=8),
    st.sampled_from(["none", "rolling", "single_use"]),
)
def test_one_that_fails_for_ever_costs_few_requests(
    verdict: Verdict, dice: list[float], rotation: Any
) -> None:
    if verdict.scope == "ours":
        return
    for throw in dice:
        life = live(verdict, DAY_MS, dice=throw, rotation=rotation)
        assert len(life) <= 60

"""
Days of whole fleets at providers that are wrong in part, in time that is handed in: nobody whose
grant lives is given up, and whose grant ended is found.
"""

from __future__ import annotations

from random import Random

import pytest
from support.tokens.fleets import (
    BEGIN_MS,
    DAY_MS,
    HOUR_MS,
    REFUSED,
    WELL,
    Account,
    Answers,
    Fleet,
)

from tidewarden.tokens.provider.token_response import Verdict

WRONG_MS = 2 * HOUR_MS
"""When a provider begins to be wrong."""


def part(share: float, hours: float) -> Answers:
    """Always the same accounts, spread over the fleet, are refused for so long."""

    def answers(account: Account, now_ms: int) -> Verdict:
        wrong = WRONG_MS <= now_ms - BEGIN_MS < WRONG_MS + hours * HOUR_MS
        return REFUSED if wrong and account.number * 7919 % 1000 < 1000 * share else WELL

    return answers


def at_random(share: float) -> Answers:
    """Whoever is asked is refused by chance."""
    dice = Random(5)
    return lambda _account, _now_ms: REFUSED if dice.random() < share else WELL


ERRING = Verdict("unavailable", "provider", "HTTP 503", brief="HTTP 503")
FLEETS = [(12, 1), (60, 8), (200, 8), (500, 24), (2000, 1)]
PARTS = [(0.4, 3), (0.9, 3), (0.4, 6), (0.08, 1.5), (0.05, 1.5), (0.02, 3), (0.15, 1.5)]
QUICK = [
    (1000, 1, 0.02, 3),
    (60, 24, 0.4, 6),
    (12, 1, 0.4, 3),
    (60, 8, 0.9, 3),
    (200, 8, 0.4, 3),
    (500, 24, 0.4, 6),
]
REST = [
    (accounts, life_h, share, hours)
    for accounts, life_h in [*FLEETS, (12, 24), (60, 1), (200, 1), (2000, 8), (20_000, 1)]
    for share, hours in PARTS
    # One account alone that is refused for hours is taken for its own matter.
    if (accounts, life_h, share, hours) not in QUICK and accounts * share > 2
]


@pytest.mark.parametrize(
    ("accounts", "life_h", "share", "hours"),
    [*QUICK, *[pytest.param(*one, marks=pytest.mark.soak) for one in REST]],
)
def test_a_part_that_is_refused_for_hours_is_not_given_up(
    accounts: int, life_h: int, share: float, hours: float
) -> None:
    """Begun, told once, and over within the day: whatever the size, the pace and the part."""
    fleet = Fleet(accounts, life_h * 3600, part(share, hours), revoked_a_day=0.001).run(DAY_MS)
    assert not fleet.given_up
    assert fleet.events["quarantine_begun"] <= 1
    assert fleet.events["quarantine_over"] == fleet.events["quarantine_begun"]
    asked = {one.number for one in fleet.all if one.number * 7919 % 1000 < 1000 * share}
    refused_an_hour = len(asked) / life_h
    if refused_an_hour * hours >= 6 and share >= 0.05:
        assert fleet.events["quarantine_begun"] == 1
    assert all(one.troubles is None for one in fleet.all if one.revoked_ms > fleet.now_ms)


@pytest.mark.parametrize(
    ("accounts", "pause_m", "then"),
    [
        (300, 10, 0.4),
        *[
            pytest.param(1000, *one, marks=pytest.mark.soak)
            for one in ((10, 0.4), (5, 0.4), (20, 0.08))
        ],
    ],
)
def test_an_incident_that_pauses_ends_nobody(accounts: int, pause_m: int, then: float) -> None:
    """Whoever is well again after the first part of it takes nothing off the second."""
    first_ms, hours = WRONG_MS + HOUR_MS, 4

    def answers(account: Account, now_ms: int) -> Verdict:
        at_ms, place = now_ms - BEGIN_MS, account.number * 7919 % 1000
        again_ms = first_ms + pause_m * 60_000
        if WRONG_MS <= at_ms < first_ms and place < 400:
            return REFUSED
        again = again_ms <= at_ms < again_ms + hours * HOUR_MS and place < 1000 * then
        return REFUSED if again else WELL

    fleet = Fleet(accounts, 3600, answers).run(12 * HOUR_MS)
    assert not fleet.given_up
    assert fleet.events["quarantine_begun"] <= 2
    assert all(one.troubles is None for one in fleet.all)


def test_accounts_with_errors_of_their_own_do_not_starve_the_sample() -> None:
    def answers(account: Account, now_ms: int) -> Verdict:
        at_ms = now_ms - BEGIN_MS
        if account.number < 20 and at_ms > WRONG_MS + 600_000:
            return ERRING
        return REFUSED if WRONG_MS <= at_ms < WRONG_MS + HOUR_MS else WELL

    fleet = Fleet(1000, 3600, answers).run(WRONG_MS + HOUR_MS + 300_000)
    assert fleet.record.quarantine is not None
    assert fleet.record.quarantine.ending_ms


def test_a_part_that_is_refused_for_minutes_is_well_minutes_later() -> None:
    """Two accounts are no incident; their readers do not wait for an hour."""

    def answers(account: Account, now_ms: int) -> Verdict:
        wrong = account.number < 2 and account.due_ms - BEGIN_MS >= 0
        until_ms = (account.troubles.first_ms if account.troubles else now_ms) + 720_000
        return REFUSED if wrong and now_ms < until_ms and account.stored_ms < BEGIN_MS else WELL

    fleet = Fleet(500, 3600, answers).run(4 * HOUR_MS)
    assert len(fleet.late) <= 2
    assert max(one.late_ms for one in fleet.all) <= 1_200_000


@pytest.mark.parametrize(
    ("accounts", "life_h", "within_h"),
    [
        (200, 8, 24),
        *[
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in ((12, 1, 24), (60, 8, 24), (500, 24, 30))
        ],
    ],
)
def test_whose_grant_ended_is_found(accounts: int, life_h: int, within_h: int) -> None:
    """One in a thousand a day, and ten times as many."""
    for a_day, days in ((0.001, 10), (0.01, 3)):
        fleet = Fleet(
            accounts, life_h * 3600, lambda _account, _now_ms: WELL, revoked_a_day=a_day
        ).run(days * DAY_MS)
        ended = [one for one in fleet.all if one.revoked_ms < fleet.now_ms]
        # It is refused when its token is renewed next: from then on.
        found = [one.ended_ms - one.revoked_ms - life_h * HOUR_MS for one in ended if one.ended_ms]
        pending = [one for one in ended if not one.ended_ms]
        assert all(late_ms <= within_h * HOUR_MS for late_ms in found)
        limit_ms = (life_h + within_h) * HOUR_MS
        assert all(fleet.now_ms - one.revoked_ms < limit_ms for one in pending)
        assert not fleet.events


@pytest.mark.parametrize(
    "share", [0.01, 0.15, *[pytest.param(one, marks=pytest.mark.soak) for one in (0.001, 0.05)]]
)
def test_single_wrong_refusals_leave_no_reader_without_a_token(share: float) -> None:
    fleet = Fleet(500, 3600, at_random(share)).run(DAY_MS)
    assert not fleet.given_up
    assert len(fleet.late) <= 0.001 * fleet.accounts
    assert fleet.events["quarantine_begun"] <= (share >= 0.05)  # The first few may mislead.
    assert fleet.record.quarantine is None
    need = fleet.accounts * 24 / (1 - 300 / 3600)
    assert fleet.requests <= need * (1.05 + 1.3 * share)


@pytest.mark.parametrize("crowd", [True, False])
def test_a_minute_of_refusals_for_all_costs_a_minute(crowd: bool) -> None:
    def answers(_account: Account, now_ms: int) -> Verdict:
        return REFUSED if now_ms < BEGIN_MS + 60_000 else WELL

    fleet = Fleet(1000, 3600, answers, crowd=crowd).run(60_000)
    if crowd:
        assert fleet.sampled_ms[0] - BEGIN_MS <= 15_000
        assert fleet.record.quarantine is not None
    fleet.run(60_000)
    well = [one for one in fleet.all if one.troubles is None]
    assert len(well) >= 900
    fleet.run(3 * HOUR_MS)
    assert not fleet.late
    assert not fleet.given_up


@pytest.mark.parametrize("accounts", [2, 3, 100])
def test_a_fleet_that_was_never_well_here_is_held(accounts: int) -> None:
    fleet = Fleet(accounts, 3600, lambda _account, _now_ms: REFUSED, refreshed=False)
    fleet.run(HOUR_MS)
    assert (fleet.events["quarantine_begun"] == 1) == (accounts >= 6)
    fleet.run(3 * DAY_MS - HOUR_MS)
    assert not fleet.given_up
    asked = fleet.requests
    fleet.run(HOUR_MS)
    assert fleet.requests - asked <= max(10, accounts / 10)  # Ever more rarely.


def test_the_only_account_of_a_client_ends() -> None:
    fleet = Fleet(1, 3600, lambda _account, _now_ms: REFUSED, refreshed=False).run(2 * DAY_MS)
    assert fleet.all[0].ended_ms
    assert fleet.requests <= 20


def test_a_client_that_was_deleted_there_is_asked_little() -> None:
    def answers(_account: Account, now_ms: int) -> Verdict:
        return REFUSED if now_ms > BEGIN_MS + HOUR_MS else WELL

    fleet = Fleet(1000, 3600, answers).run(12 * HOUR_MS)
    assert fleet.events == {"quarantine_begun": 1}
    assert not fleet.given_up
    assert fleet.requests <= 7 * fleet.accounts  # Instead of twelve, had all been well.

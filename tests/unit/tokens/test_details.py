"""What is known of an account beside its tokens, after puts and refreshes: pure decisions."""

from __future__ import annotations

from typing import Any

import pytest

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts import details
from tidewarden.tokens.accounts.account_record import AccountDetails, AccountRow
from tidewarden.tokens.accounts.names import Grant
from tidewarden.tokens.provider.token_response import HttpAnswer, TokenPair, classify, rules_of

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 1_800_000_000_000


def pair(consent_s: float | None = None, refresh_token: str = "", **extras: Any) -> TokenPair:
    return TokenPair("a", refresh_token, "Bearer", None, 3600.0, consent_s, extras)


def provider(**settings: Any) -> Provider:
    return Provider(name="p", client_id="c", **settings)


def ends(found: AccountDetails) -> tuple[int, str]:
    return found.consent_expires_ms, found.consent_end


def test_extras_are_kept_until_they_are_said_anew() -> None:
    first = details.refreshed(provider(), AccountDetails(), pair(api="x", hub=7), NOW_MS)
    assert first.extras == {"api": "x", "hub": 7}
    assert details.refreshed(provider(), first, pair(), NOW_MS) is first
    assert details.refreshed(provider(), first, pair(api="x"), NOW_MS) is first
    assert details.refreshed(provider(), first, pair(api="y"), NOW_MS).extras == {
        "api": "y",
        "hub": 7,
    }


def test_extras_have_a_bound_together() -> None:
    first = AccountDetails(extras={"a": "x" * 2000})
    big = dict.fromkeys("bcdef", "x" * 2000)
    assert details.refreshed(provider(), first, pair(**big), NOW_MS) is first


def row(known: AccountDetails, stored_ms: int = NOW_MS) -> AccountRow:
    return AccountRow(1, 1, stored_ms, 0, 0, b"", b"", details=known)


def told(day_by_day: list[int], life_days: float, step_ms: int = DAY_MS) -> AccountDetails:
    """
    After refreshes ``step_ms`` apart, each told that the refresh token lives that much longer than
    ``life_days`` from the first.
    """
    known = AccountDetails()
    for number, moved_ms in enumerate(day_by_day):
        now_ms = NOW_MS + number * step_ms
        left_s = (life_days * DAY_MS + moved_ms - number * step_ms) / 1000
        known = details.refreshed(provider(), known, pair(left_s), now_ms)
    return known


def test_two_answers_tell_whether_the_end_moves() -> None:
    assert ends(told([0], 90)) == (NOW_MS + 90 * DAY_MS, "unknown")
    assert ends(told([0, 0], 90)) == (NOW_MS + 90 * DAY_MS, "fixed")
    assert ends(told([0, DAY_MS, 2 * DAY_MS], 90)) == (
        NOW_MS + 91 * DAY_MS,
        "moves",
    ), "as of when it was noted"
    minutes = [n * 60_000 for n in range(12)]
    assert ends(told(minutes, 30, 60_000))[1] == "moves", "refreshed every minute, too"
    assert ends(told([0] * 12, 30, 60_000))[1] == "fixed"


def test_an_end_that_is_put_off_once_a_day_moves() -> None:
    by_hours = [hour // 24 * DAY_MS for hour in range(24 * 20)]
    for number in range(26, len(by_hours), 7):
        assert ends(told(by_hours[:number], 30, HOUR_MS))[1] == "moves", number


def test_a_session_that_slides_up_to_its_end_is_fixed_at_last() -> None:
    known = told([0, DAY_MS, 2 * DAY_MS, 2 * DAY_MS, 2 * DAY_MS, 2 * DAY_MS], 30)
    assert ends(known) == (NOW_MS + 32 * DAY_MS, "fixed")


def test_what_has_hardly_changed_is_not_noted_anew() -> None:
    fixed = told([0, 0], 90)
    again = details.refreshed(
        provider(), fixed, pair((90 * DAY_MS - 2 * DAY_MS) / 1000 + 90), NOW_MS + 2 * DAY_MS
    )
    assert again is fixed
    moving = told([0, DAY_MS], 90)
    for days in (2, 20, 200):
        assert (
            details.refreshed(provider(), moving, pair(90 * 86_400 + 60), NOW_MS + days * DAY_MS)
            is moving
        )


def test_settings_say_what_answers_do_not() -> None:
    grant = Grant("r")
    fixed, sliding = provider(consent_fixed_s=86_400.0), provider(consent_life_s=86_400.0)
    known = details.put(fixed, AccountDetails(), grant, NOW_MS, renewed=True)
    assert ends(known) == (NOW_MS + DAY_MS, "fixed")
    assert details.refreshed(fixed, known, pair(refresh_token="n"), NOW_MS + HOUR_MS) is known
    known = details.put(sliding, AccountDetails(), grant, NOW_MS, renewed=True)
    assert known == AccountDetails(), "nothing is stored of what follows from the row"
    assert details.consent_of(sliding, row(known)) == (NOW_MS + DAY_MS, True)
    told = details.refreshed(sliding, known, pair(7_200), NOW_MS + HOUR_MS)
    assert details.consent_of(sliding, row(told)) == (
        NOW_MS + 3 * HOUR_MS,
        False,
    ), "answers are believed first"


def test_an_end_that_moves_counts_from_the_last_refresh() -> None:
    moving = told([0, DAY_MS], 90)
    assert details.consent_of(provider(), row(moving, NOW_MS + 10 * DAY_MS)) == (
        NOW_MS + 100 * DAY_MS,
        True,
    )
    assert details.consent_of(provider(), row(AccountDetails())) == (0, False)


def test_whoever_puts_an_account_says_it_best() -> None:
    known = details.put(
        provider(consent_fixed_s=86_400.0),
        AccountDetails(),
        Grant("r", consent_expires_ms=NOW_MS + 5),
        NOW_MS,
        renewed=True,
    )
    assert ends(known) == (NOW_MS + 5, "fixed")
    first = details.put(
        provider(), AccountDetails(), Grant("r", consent_s=60.0), NOW_MS, renewed=True
    )
    assert ends(first) == (NOW_MS + 60_000, "unknown")
    assert ends(details.refreshed(provider(), first, pair(), NOW_MS)) == (
        NOW_MS + 60_000,
        "unknown",
    )
    assert ends(details.refreshed(provider(), first, pair(refresh_token="new"), NOW_MS))[0] == 0, (
        "of another token"
    )


def test_parameters_are_the_accounts_and_the_rest_is_its_grants() -> None:
    old = AccountDetails({"shop": "a"}, {"api": "x"}, NOW_MS, "fixed", NOW_MS)
    assert details.put(provider(), old, Grant("r"), NOW_MS, renewed=True) == AccountDetails(
        {"shop": "a"}
    )
    assert details.put(
        provider(), old, Grant("r", parameters={"shop": "b"}), NOW_MS, renewed=True
    ).parameters == {"shop": "b"}
    assert details.put(provider(), old, Grant("r"), NOW_MS, renewed=False) == old
    same = details.put(provider(), old, Grant("r", parameters={"shop": "b"}), NOW_MS, renewed=False)
    assert (same.parameters, same.extras, ends(same)) == (
        {"shop": "b"},
        {"api": "x"},
        (NOW_MS, "fixed"),
    )


@pytest.mark.parametrize(
    ("body", "consent_s"),
    [
        ('"refresh_token_expires_in": 60', 60.0),
        ('"refresh_expires_in": "1800"', 1800.0),
        ('"x_refresh_token_expires_in": 8726400', 8_726_400.0),
        ('"refresh_expires_in": 0', None),
        ('"refresh_expires_in": -1', None),
        ('"refresh_token_expires_in": "soon"', None),
        ('"refresh_token_expires_in": 1e300', None),
        ('"expires_in": 3600', None),
    ],
)
def test_the_refresh_tokens_life_is_read_under_each_name_in_use(
    body: str, consent_s: float | None
) -> None:
    answer = HttpAnswer(
        200, {"content-type": "application/json"}, f'{{"access_token": "a", {body}}}'.encode()
    )
    found = classify(answer, NOW_MS).pair
    assert found is not None
    assert found.consent_s == consent_s


def test_members_that_are_named_are_read_wherever_they_lie() -> None:
    body = b"""{"access_token": "a", "instance_url": "https://x", "org": {"id": 7, "all": [1]}, "ok": true, "f": 1.5,
               "a.b": "dotted", "long": "%s", "odd": "a\\u0000b", "nothing": null, "life": {"refresh": 9}}""" % (
        b"x" * 3000
    )
    names = (
        "instance_url",
        "org.id",
        "org.all",
        "ok",
        "f",
        "a.b",
        "long",
        "odd",
        "nothing",
        "gone",
    )
    rules = rules_of({"refresh_expires_in": "life.refresh"}, {}, names)
    found = classify(
        HttpAnswer(200, {"content-type": "application/json"}, body), NOW_MS, rules
    ).pair
    assert found is not None
    assert found.extras == {
        "instance_url": "https://x",
        "org.id": 7,
        "ok": True,
        "f": 1.5,
        "a.b": "dotted",
    }
    assert found.consent_s == 9

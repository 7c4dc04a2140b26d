"""What a person is told to do: something for every class of failure, and of whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidewarden.config.error_classes import ERROR_CLASSES
from tidewarden.config.provider import GRANTS, Provider
from tidewarden.tokens.provider import advice

PROVIDER = Provider(name="shop", token_url="https://me:secret@auth.example.org:8443/token?x=1")


@pytest.mark.parametrize("error", [*ERROR_CLASSES, "one of tomorrow"])
def test_every_failure_has_its_advice(error: str) -> None:
    text = advice.of_account(PROVIDER, "failing", error)
    assert text[:1].isupper()
    assert not text.endswith(".")
    assert "me:" not in text
    assert "{" not in text
    assert advice.standing(error) in advice.STANDING
    assert advice.of_provider(PROVIDER, error)


def test_who_has_to_do_something() -> None:
    assert "https://auth.example.org:8443 is up" in advice.of_account(
        PROVIDER, "failing", "refused"
    )
    assert "[providers.shop.errors]" in advice.of_account(PROVIDER, "failing", "rejected")
    assert "client_id" in advice.of_provider(PROVIDER, "invalid_client")
    for state in ("dead", "lost_rotation"):
        assert "consent again" in advice.of_account(PROVIDER, state, "invalid_grant")
    stopped = advice.of_account(PROVIDER, "stopped", "unavailable")
    assert "`token refresh` asks again" in stopped
    assert "consent" not in stopped
    assert "consent again" in advice.of_account(PROVIDER, "stopped", "rejected")
    for state in ("fresh", "expiring", "late"):
        assert advice.of_account(PROVIDER, state, "") == ""


@pytest.mark.parametrize("grant", GRANTS[1:])
def test_nobody_is_asked_to_consent_to_what_needs_no_consent(grant: str) -> None:
    provider = replace(PROVIDER, grant=grant)
    for state in ("dead", "stopped", "failing"):
        text = advice.of_account(provider, state, "invalid_grant")
        assert text
        assert "consent" not in text
        assert "{" not in text
    for error in ("unauthorized_client", "unsupported_grant_type"):
        assert f"the grant type {grant}" in advice.of_provider(provider, error)


def test_in_a_quarantine_nobody_is_told_to_ask_for_consent() -> None:
    for error in ("invalid_grant", "rejected", "unauthorized_client"):
        text = advice.of_account(PROVIDER, "failing", error, quarantined=True)
        assert text.startswith("Nothing for this account")
        assert "`token why shop`" in text
    for state, error in (("dead", "invalid_grant"), ("failing", "unavailable")):
        plain = advice.of_account(PROVIDER, state, error)
        assert advice.of_account(PROVIDER, state, error, quarantined=True) == plain


def test_who_fails_while_others_do_not_is_told_of_alone() -> None:
    for error in ("unavailable", "unknown", "unauthorized_client"):
        text = advice.of_account(PROVIDER, "failing", error, alone=True)
        assert text.startswith("Other accounts of shop are refreshed well"), error
    assert advice.of_account(PROVIDER, "failing", "rate_limited", alone=True).startswith("Nothing")
    for error in ("invalid_grant", "rejected", "unsealable", "refused"):
        text = advice.of_account(PROVIDER, "failing", error)
        assert advice.of_account(PROVIDER, "failing", error, alone=True) == text


def test_an_answer_that_is_kept_is_told_of_first() -> None:
    for state in ("lost_rotation", "failing"):
        text = advice.of_account(PROVIDER, state, "unknown", "n1")
        assert text.startswith(
            "n1 keeps an answer that cannot be read: `token answers PROVIDER/ACCOUNT` shows it; "
        )
        assert text.endswith(advice.of_account(PROVIDER, state, "unknown"))
    assert advice.of_account(PROVIDER, "fresh", "", "n1") == ""


def test_each_standing_has_its_failures() -> None:
    found = {
        advice.standing(error)
        for error in ("refused", "unavailable", "rate_limited", "invalid_client", "journal")
    }
    assert found == advice.STANDING.keys() - {"answers"}

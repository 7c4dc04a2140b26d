"""What a person is told to do: something for every class of failure, and of whom."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tidewarden.config.error_classes import ERROR_CLASSES, class_of
from tidewarden.config.provider import GRANTS, Provider
from tidewarden.tokens.provider import advice

PROVIDER = Provider(name="shop", token_url="https://me:secret@auth.example.org:8443/token?x=1")


@pytest.mark.parametrize("error", [*ERROR_CLASSES, "one of tomorrow"])
def test_every_failure_has_its_advice(error: str) -> None:
    for name in ("account_advice", "alone_advice", "provider_advice"):
        text = advice.filled(getattr(class_of(error), name), PROVIDER)
        assert text[:1].isupper() or (name != "provider_advice" and not text)
        assert not re.search(r"\.$|me:|\{", text)
    assert advice.of_provider(PROVIDER, error)
    assert advice.standing(error) in advice.STANDING


def test_who_has_to_do_something() -> None:
    assert "https://auth.example.org:8443 is up" in advice.of_provider(PROVIDER, "refused")
    assert "client_id" in advice.of_provider(PROVIDER, "invalid_client")
    assert "consent again" in advice.after_refusal(PROVIDER)


@pytest.mark.parametrize("grant", GRANTS[1:])
def test_nobody_is_asked_to_consent_to_what_needs_no_consent(grant: str) -> None:
    provider = replace(PROVIDER, grant=grant)
    assert not re.search(r"consent|\{", advice.after_refusal(provider))
    for error in ("unauthorized_client", "unsupported_grant_type"):
        assert f"the grant type {grant}" in advice.of_provider(provider, error)


def test_each_standing_has_its_failures() -> None:
    found = {
        advice.standing(error)
        for error in ("refused", "unavailable", "rate_limited", "invalid_client", "journal")
    }
    assert found == advice.STANDING.keys() - {"answers"}

"""The presets as data; that each can be used is shown beside the reading of providers."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from tidewarden.config.presets import PRESETS
from tidewarden.config.provider import Provider
from tidewarden.tokens.provider.token_response import HttpAnswer, classify, rules_of

DAY_S = 86_400


def verdict_of(name: str, status: int, body: Any) -> tuple[str, str]:
    settings = PRESETS[name].settings
    rules = rules_of(settings.get("paths", {}), settings.get("errors", {}))
    verdict = classify(HttpAnswer(status, {}, json.dumps(body).encode()), 0, rules)
    return verdict.outcome, verdict.scope


def lives_of(name: str) -> tuple[float, float]:
    settings = PRESETS[name].settings
    return settings.get("consent_life_s", 0), settings.get("consent_fixed_s", 0)


def test_presets_say_only_what_a_provider_may_have() -> None:
    known = {item.name for item in dataclasses.fields(Provider) if item.metadata}
    for preset in PRESETS.values():
        assert set(preset.settings) <= known - {"preset", "client_id"}, preset.name
        assert "rotation" in preset.settings, preset.name


def test_what_nobody_says_of_rotation_is_the_careful_one() -> None:
    for preset in PRESETS.values():
        if "rotation" in preset.unconfirmed:
            assert preset.settings["rotation"] == "single_use", preset.name


def test_a_refresh_token_of_a_preset_lives_longer_than_an_access_token() -> None:
    for preset in PRESETS.values():
        access_s = preset.settings.get("default_life_s", 0)
        for life_s in lives_of(preset.name):
            assert life_s == 0 or life_s >= max(DAY_S, access_s), preset.name


@pytest.mark.parametrize(
    ("name", "life_days", "fixed_days"),
    [("box", 60, 0), ("microsoft", 90, 0), ("atlassian", 90, 365), ("spotify", 0, 180), ("linkedin", 0, 365)],
)  # fmt: skip
def test_how_long_a_refresh_token_lives(name: str, life_days: int, fixed_days: int) -> None:
    assert lives_of(name) == (life_days * DAY_S, fixed_days * DAY_S)


def test_the_most_used_are_there() -> None:
    wanted = (
        "google microsoft github slack hubspot quickbooks xero zoom atlassian dropbox linkedin zoho"
        " shopify okta auth0 notion zendesk salesforce x exact-online gitlab bitbucket spotify"
        " discord strava fitbit asana airtable docusign pipedrive box linear miro calendly ebay"
        " twitch ringcentral adobe-sign square reddit"
    )
    assert set(wanted.split()) <= set(PRESETS)


@pytest.mark.parametrize(
    ("name", "status", "body", "word"),
    [
        (
            "microsoft",
            400,
            {"error": "interaction_required", "suberror": "basic_action"},
            "invalid_grant",
        ),
        ("microsoft", 400, {"error": "consent_required"}, "invalid_grant"),
        ("microsoft", 400, {"error": "login_required"}, "invalid_grant"),
        ("slack", 200, {"ok": False, "error": "account_inactive"}, "invalid_grant"),
        ("slack", 200, {"ok": False, "error": "invalid_refresh_token"}, "invalid_grant"),
        ("hubspot", 400, {"status": "BAD_HUB", "message": "no such hub"}, "invalid_grant"),
        (
            "hubspot",
            400,
            {"status": "BAD_REFRESH_TOKEN", "error": "invalid_request"},
            "invalid_grant",
        ),
        (
            "strava",
            400,
            {"errors": [{"field": "refresh_token", "code": "invalid"}]},
            "invalid_grant",
        ),
        (
            "fitbit",
            400,
            {"errors": [{"errorType": "invalid_grant"}], "success": False},
            "invalid_grant",
        ),
        ("github", 200, {"error": "bad_refresh_token"}, "invalid_grant"),
        ("x", 400, {"error": "invalid_request"}, "invalid_grant"),
    ],
)
def test_what_they_say_of_a_grant_that_has_ended(
    name: str, status: int, body: Any, word: str
) -> None:
    assert verdict_of(name, status, body) == (word, "account")


def test_salesforce_uses_no_refresh_token_up_unless_its_app_says_so() -> None:
    preset = PRESETS["salesforce"]
    assert (preset.settings["rotation"], "rotation" in preset.unconfirmed) == ("none", False)
    assert "single_use" in preset.note


@pytest.mark.parametrize(
    ("name", "host"), [("shopify", "acme.myshopify.com"), ("zendesk", "acme.zendesk.com")]
)
def test_where_each_tenant_has_an_address_of_its_own_it_is_the_accounts(
    name: str, host: str
) -> None:
    settings = PRESETS[name].settings
    ((parameter, pattern),) = settings["account_parameters"].items()
    assert settings["token_url"].format(**{parameter: "acme"}).startswith(f"https://{host}/")
    for bad in ("", "a.b", "evil.example/x", "-a", "a@b"):
        assert not re.fullmatch(pattern, bad)


@pytest.mark.parametrize("name", ["okta", "auth0"])
def test_where_a_tenant_may_have_any_address_the_note_says_so(name: str) -> None:
    assert "token_url" not in PRESETS[name].settings
    assert "section" in PRESETS[name].note


def test_most_presets_say_where_people_consent() -> None:
    """By an encrypted address, in the tenant's own place where its tokens are."""
    told = {name: one.settings.get("authorization_url", "") for name, one in PRESETS.items()}
    assert len([url for url in told.values() if url]) >= 30
    for name, url in told.items():
        assert not url or url.startswith("https://"), name
        names = set(re.findall(r"{\w+}", url))
        assert names <= set(re.findall(r"{\w+}", PRESETS[name].settings.get("token_url", ""))), name

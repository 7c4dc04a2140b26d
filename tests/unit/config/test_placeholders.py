"""Placeholders in a provider's settings: where they may stand, and what may stand for them."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tidewarden.config.load import Provider, Secret
from tidewarden.config.placeholders import check, faults, filled, pattern_fault
from tidewarden.errors import BadArg

SHOP = "[a-z0-9][a-z0-9-]*"


def provider(
    url: str = "https://{shop}.myshopify.com/token", shop: str = SHOP, **settings: object
) -> Provider:
    patterns = settings.pop("account_parameters", {"shop": shop})
    whole = {
        "name": "p",
        "token_url": url,
        "client_id": "c",
        "client_secret": Secret("s"),
    } | settings
    return Provider(account_parameters=patterns, **whole)  # type: ignore[arg-type]


def said(one: Provider) -> str:
    return "\n".join(f"{key}: {fault}" for key, fault in faults(one))


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("https://{shop}.myshopify.com/admin/oauth/access_token", SHOP),
        ("https://{shop}.myshopify.com:8443/t", r"[a-z0-9.-]+"),
        ("https://login.example.com/{shop}/oauth2/v2.0/token", r"[A-Za-z0-9.-]{1,64}"),
        ("https://example.com/token?tenant={shop}", r"\d{1,9}"),
        ("https://accounts.zoho.{shop}/oauth/v2/token", r"com|eu|com\.au"),
        ("https://{shop}/token", r"a\.example\.com|b\.example\.org"),
        ("http://{shop}.localhost:8080/token", SHOP),
        ("https://eu-{shop}.api.example.com/token", "(?:a|b)[0-9]+"),
    ],
)
def test_a_placeholder_may_stand_where_its_values_lead_nowhere_else(url: str, pattern: str) -> None:
    assert said(provider(url, pattern)) == ""


@pytest.mark.parametrize(
    ("url", "pattern", "fault"),
    [
        ("https://{shop}/token", SHOP, "could make the host another's"),
        ("https://{shop}.com/token", SHOP, "could make the host another's"),
        ("https://{shop}myshopify.com/token", SHOP, "could make the host another's"),
        ("https://{shop}myshopify.co.uk/token", SHOP, "could make the host another's"),
        ("https://a.{shop}/token", r"[a-z]+\.com", "could make the host another's"),
        ("https://{shop}.{dc}/token", SHOP, "could make the host another's"),
        ("https://{shop}..com/token", SHOP, "could make the host another's"),
        ("https://{shop}@example.com/token", SHOP, "in the host, the path or the query alone"),
        ("https://example.com:{shop}/token", r"\d+", "in the host, the path or the query alone"),
        ("{shop}://example.com/token", "https?", "in the host, the path or the query alone"),
        ("https://example.com/token#{shop}", SHOP, "in the host, the path or the query alone"),
        (
            "https://{tenant}.example.com/token",
            SHOP,
            "token_url: found {tenant}; allowed: a placeholder with a pattern",
        ),
        (
            "https://example.com/token",
            SHOP,
            "account_parameters shop: found 'shop', which no address",
        ),
        (
            "https://{shop}.example.com/{Tenant}/token",
            SHOP,
            "a brace that is of no placeholder; allowed: {NAME}, of 1 to",
        ),
        ("https://{shop}.example.com/{}", SHOP, "a brace that is of no placeholder"),
        ("https://{shop}.example.com/token", "[a-z", "allowed: a regular expression"),
        ("https://{shop}.example.com/token", "[[]", "which may let through"),
    ],
)
def test_a_placeholder_that_could_lead_elsewhere_is_refused(
    url: str, pattern: str, fault: str
) -> None:
    patterns = {"shop": pattern} | ({"dc": "com|eu"} if "{dc}" in url else {})
    assert fault in said(provider(url, account_parameters=patterns))


def test_a_password_in_an_address_with_placeholders_is_not_quoted() -> None:
    for url in (
        "https://u:hunter2@{shop}.example.com/t",
        "https://u:hunter2@example.com/{shop}",
        "https://u:hunter2@x/{",
    ):
        assert "hunter2" not in said(provider(url))
        assert "an @, which is not shown" in said(provider(url))


@pytest.mark.parametrize(
    "pattern",
    [
        ".*", "[^.]+", r"\S+", r"\w+", "[a-z/]+", "[.-9]+", "[+-9]+", "[A-z]+", "[--9]", "a/b", r"a\/b", "a@b", "a:b", "a%2f",
        "[a-z-9]", r"[\w]", r"\x2f", "(?i)[a-z]", "(?=a).", r"[\s\S]", "a#b", "a?b/", r"\D", "[a-z]+\n", "[ä]", "(?s:.)", "a b",
        r"[\.-9]", r"[a\--z]", "[]/]", r"\u002f", r"(?P<x>.)",
    ],
)  # fmt: skip
def test_a_pattern_that_could_let_a_part_of_an_address_end_is_refused_in_one(pattern: str) -> None:
    assert pattern_fault(pattern)
    assert "account_parameters shop: found" in said(provider(shop=pattern))


@given(st.text(alphabet="abz09AZ_.~-[]()|?*+{},:\\di/@#%^", max_size=14))
def test_no_pattern_that_is_taken_matches_what_ends_a_part_of_an_address(pattern: str) -> None:
    if pattern_fault(pattern):
        return
    try:
        known = re.compile(pattern, re.ASCII)
    except re.error:
        return
    for char in set(string.printable) - set(string.ascii_letters + string.digits + "._~-"):
        for text in (char, f"a{char}", f"{char}a", f"0{char}0", char * 3):
            assert not known.fullmatch(text)


TRICKS = (
    "evil.com/", "evil.com#", "evil.com?", "a@evil.com", "evil.com:443", "a\\b", "a%2fb", "a\nb", "a\0b", "", "a b", "..", "a..b", ".a",
    "a.", "evil.com\u2044", "\u0430", "a\u3002b", "A" * 201, "[::1]", "a;b", "a,b", "a&b=c",
)  # fmt: skip


@pytest.mark.parametrize("value", TRICKS)
def test_whatever_its_pattern_allows_a_value_stays_a_part_of_the_host(value: str) -> None:
    """
    As of a pattern that was never looked at: what is stored is looked at each time that something
    is sent.
    """
    loose = provider(account_parameters={"shop": r"(?s:.*)"})
    with pytest.raises(BadArg, match=r"parameters\.shop"):
        filled(loose, {"shop": value})


@pytest.mark.parametrize("value", [".", "..", "a/../b", "a?b", "a#b", "%2e%2e"])
def test_a_value_stays_a_part_of_the_path(value: str) -> None:
    with pytest.raises(BadArg, match=r"parameters\.tenant"):
        filled(
            provider(
                "https://example.com/{tenant}/token", account_parameters={"tenant": r"(?s:.*)"}
            ),
            {"tenant": value},
        )


@given(st.text(min_size=1, max_size=30))
def test_no_value_changes_whose_host_it_is(value: str) -> None:
    try:
        url = filled(provider(account_parameters={"shop": r"(?s:.*)"}), {"shop": value}).token_url
    except BadArg:
        return
    for host in (urlsplit(url).hostname, URL(url).host):
        assert host is not None
        assert host.endswith(".myshopify.com")
    assert (URL(url).user, URL(url).port, URL(url).path) == (None, 443, "/token")


def test_a_provider_is_filled_in_everywhere() -> None:
    one = provider(
        client_id="app-{shop}", parameters={"resource": "https://{shop}.x/", "plain": "{}"}, headers={"X-Shop": "{shop}"},
        revocation_url="https://{shop}.myshopify.com/revoke",
    )  # fmt: skip
    its = filled(one, {"shop": "a-1", "gone": "since"})
    assert (its.token_url, its.revocation_url) == (
        "https://a-1.myshopify.com/token", "https://a-1.myshopify.com/revoke"
    )  # fmt: skip
    assert (its.client_id, its.parameters, its.headers, its.own_hosts) == (
        "app-a-1", {"resource": "https://a-1.x/", "plain": "{}"}, {"X-Shop": "a-1"}, True,
    )  # fmt: skip
    assert not filled(provider("https://example.com/{shop}/t"), {"shop": "a"}).own_hosts
    plain = replace(one, account_parameters={})
    assert filled(plain, {"shop": "x"}) is plain


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("a", "parameters is no JSON object"),
        ({}, r"parameters.shop is missing; p allows \[a-z0-9\]"),
        ({"shop": "a", "x": "1"}, "parameters has 'x'; p knows shop"),
        ({"shop": 7}, "parameters.shop is not a text but int"),
        ({"shop": ""}, "parameters.shop has 0 characters"),
        ({"shop": "EVIL"}, "parameters.shop is 'EVIL', which its pattern does not match; p allows"),
        ({"shop": "a\n"}, "not printable ASCII"),
        ({"shop": "a.evil.com/"}, "does not match"),
    ],
)
def test_what_is_wrong_with_parameters_is_said(given: object, fault: str) -> None:
    with pytest.raises(BadArg, match=fault):
        check(provider(), given)
    assert check(provider(), {"shop": "a-1"}) == {"shop": "a-1"}

"""A consent in a browser, without I/O: the request, what comes back, what was given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.providers.consenting_provider import unsigned
from support.tokens import harness

from tidewarden.config.egress import Reach
from tidewarden.tokens.accounts.names import parse_grant
from tidewarden.tokens.connect.authorization_request import (
    address_with,
    challenge_of,
    code_grant,
    request_members,
    wants_identity,
)
from tidewarden.tokens.connect.callback import code_of, issuers_of_others, read_callback
from tidewarden.tokens.connect.claims import Claims
from tidewarden.tokens.connect.device_codes import (
    DeviceCode,
    poll_of,
    read_device_code,
    refuses_client,
)
from tidewarden.tokens.connect.granted import check_scope, pair_of, put_fields, subject_of
from tidewarden.tokens.connect.id_token import fault_of, read_id_token
from tidewarden.tokens.connect.link_checks import settings_digest
from tidewarden.tokens.connect.outcomes import ENDINGS, ConsentFailed
from tidewarden.tokens.connect.sealed_visits import Link, Visit
from tidewarden.tokens.provider.token_response import (
    HttpAnswer,
    NoAnswer,
    RequestNotSent,
    classify,
)

PROVIDER = harness.provider("https://p.example/token", authorization_url="https://p.example/auth")
OTHER = {"name": "q", "authorization_url": "https://q.example/auth"}
STATE = "S" * 32
NOW_MS = 1_000_000
LINK = Link("l", 2_000_000, "https://app.example.com/", "read write", {}, "admin")
VISIT = Visit("p", "a", LINK, 2_000_000, "https://auth.example.com/cb", "v", "n", "", False)
CLAIMS = {"iss": "https://p.example", "aud": "c0", "sub": "ada", "exp": 2000, "nonce": "n"}


def failing(word: str) -> Any:
    """Expect a failure with that word, which people can be told."""
    assert word in ENDINGS
    return pytest.raises(ConsentFailed, check=lambda error: error.word == word)


def test_the_challenge_is_that_of_the_rfc() -> None:
    """RFC 7636, appendix B."""
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_request_has_what_it_needs_and_what_its_provider_wants() -> None:
    provider = replace(PROVIDER, authorization_parameters={"access_type": "offline"})
    members = request_members(provider, "https://a/cb", "openid x", STATE, "v", "n")
    assert members == {
        "response_type": "code",
        "client_id": "c0",
        "redirect_uri": "https://a/cb",
        "state": STATE,
        "scope": "openid x",
        "code_challenge": challenge_of("v"),
        "code_challenge_method": "S256",
        "nonce": "n",
        "access_type": "offline",
    }
    bare = request_members(PROVIDER, "https://a/cb", "", STATE, "", "")
    assert bare.keys() == {"response_type", "client_id", "redirect_uri", "state"}
    assert address_with("https://p/auth?x=1", {"scope": "a b"}) == "https://p/auth?x=1&scope=a%20b"
    for query in ("state=x", "x=1&Code_Challenge=y", "x=1;nonce=y", "redirect%5Furi=y", "request"):
        with failing("provider_error"):
            address_with(f"https://p/auth?{query}", {})
    assert code_grant("https://a/cb", "c", "") == {
        "grant_type": "authorization_code",
        "code": "c",
        "redirect_uri": "https://a/cb",
    }
    assert code_grant("https://a/cb", "c", "v")["code_verifier"] == "v"
    assert wants_identity("email openid")
    assert not wants_identity("openid2 xopenid")


def test_a_callback_is_read_and_what_else_it_has_is_not() -> None:
    query = [("state", STATE), ("code", "c"), ("scope", "x"), ("scope", "y"), ("session_state", "")]
    callback = read_callback(query)
    assert code_of(callback, VISIT, (), NOW_MS) == "c"
    assert "c'" not in repr(callback)


@pytest.mark.parametrize(
    "query",
    [
        [("code", "c")],
        [("state", ""), ("code", "c")],
        [("state", "S" * 31), ("code", "c")],
        [("state", "S" * 31 + "/"), ("code", "c")],
        [("state", "S" * 31 + "\n"), ("code", "c")],
        [("state", STATE), ("state", STATE), ("code", "c")],
        [("state", STATE), ("code", "c"), ("code", "d")],
        [("state", STATE), ("code", "c"), ("iss", "a"), ("iss", "b")],
    ],
)
def test_a_callback_without_one_state_of_ours_is_nobodys(query: list[tuple[str, str]]) -> None:
    with failing("unknown_browser"):
        read_callback(query)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({}, "no_code"),
        ({"code": ""}, "no_code"),
        ({"code": "c\n"}, "no_code"),
        ({"code": "\u00e4"}, "no_code"),
        ({"code": "c" * 4097}, "no_code"),
        ({"error": "access_denied"}, "denied"),
        ({"error": "access_denied", "code": "c"}, "denied"),
        ({"error": "server_error"}, "provider_error"),
        ({"error": "<script>"}, "provider_error"),
    ],
)
def test_a_callback_without_a_code(query: dict[str, str], word: str) -> None:
    with failing(word) as told:
        code_of(read_callback([("state", STATE), *query.items()]), VISIT, (), NOW_MS)
    assert "script" not in str(told.value)


def test_a_callback_comes_in_time() -> None:
    callback = read_callback([("state", STATE), ("code", "c")])
    with failing("expired"):
        code_of(callback, VISIT, (), VISIT.until_ms)


@pytest.mark.parametrize(
    ("issuer", "announced", "said", "fits"),
    [
        ("https://p", False, "https://p", True),
        ("https://p", False, "", True),
        ("https://p", True, "https://p", True),
        ("https://p", True, "", False),
        ("https://p", False, "https://p/", False),
        ("https://p", False, "https://other", False),
        ("", False, "https://anybody", True),
        ("", False, "https://other", False),
        ("", True, "", False),
    ],
)
def test_the_issuer_of_a_callback(issuer: str, announced: bool, said: str, fits: bool) -> None:
    visit = Visit("p", "a", LINK, 2_000_000, "https://a/cb", "v", "n", issuer, announced)
    query = [("state", STATE), ("code", "c"), *([("iss", said)] if said else [])]
    if fits:
        assert code_of(read_callback(query), visit, ("https://other",), NOW_MS) == "c"
    else:
        with failing("wrong_issuer"):
            code_of(read_callback(query), visit, ("https://other",), NOW_MS)


@pytest.mark.parametrize(
    ("other", "counts"),
    [
        ({"token_url": "https://q.example/token", "consent_issuer": "https://i.example"}, True),
        ({"token_url": "", "issuer": "https://i.example"}, True),
        ({"token_url": "https://P.example/other", "consent_issuer": "https://i.example"}, False),
        (
            {
                "token_url": "https://q.example/token",
                "authorization_url": "https://p.example/auth?x=1",
                "consent_issuer": "https://i.example",
            },
            False,
        ),
        (
            {
                "token_url": "https://q.example/token",
                "consent_issuer": "https://i.example",
                "reach": Reach(),
            },
            False,
        ),
    ],
)
def test_whose_issuers_are_others(other: dict[str, Any], counts: bool) -> None:
    """Those of providers of the files, at other servers."""
    found = issuers_of_others(PROVIDER, [PROVIDER, replace(PROVIDER, **OTHER | other)])
    assert ("https://i.example" in found) == counts


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"aud": ["c0"]}, ""),
        ({"aud": ["c0", "x"], "azp": "c0"}, ""),
        ({"exp": 801}, ""),
        ({"nonce": "m"}, "its nonce is not that of the request"),
        ({"nonce": ""}, "its nonce is not that of the request"),
        ({"aud": "c1"}, "it is for another client"),
        ({"aud": []}, "it is for another client"),
        ({"aud": ["c0", "x"]}, "it was issued to another client"),
        ({"azp": "x"}, "it was issued to another client"),
        ({"iss": "https://q.example"}, "it is of another issuer"),
        ({"exp": 699}, "it has expired"),
        ({"sub": ""}, "it names nobody"),
        ({"sub": "x" * 256}, "it names nobody"),
        ({"sub": "a\nb"}, "it names nobody"),
    ],
)
def test_the_claims_of_an_id_token(change: dict[str, Any], fault: str) -> None:
    token = read_id_token(unsigned(CLAIMS | change))
    assert fault_of(token, "c0", "https://p.example", "n", NOW_MS / 1000) == fault


def test_an_issuer_that_nobody_knows_is_not_compared() -> None:
    assert fault_of(read_id_token(unsigned(CLAIMS)), "c0", "", "n", 1000) == ""


@pytest.mark.parametrize(
    "text", ["", "a.b", "a.b.c.d", "a.!.c", "a.bm8.c", "a.W10.c", "a.\u00e4.c"]
)
def test_what_is_no_id_token(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is no signed|its claims cannot be read"):
        read_id_token(text)


def answer(**members: Any) -> HttpAnswer:
    return HttpAnswer(200, {"content-type": "application/json"}, json.dumps(members).encode())


def test_who_consented() -> None:
    right = answer(access_token="a", id_token=unsigned(CLAIMS))
    of = "https://p.example", "n"
    assert subject_of(PROVIDER, right, *of, "", 1000) == "ada"
    assert subject_of(PROVIDER, right, *of, "ada", 1000) == "ada"
    with failing("other_subject"):
        subject_of(PROVIDER, right, *of, "bob", 1000)
    for wrong in (answer(access_token="a"), answer(id_token=7), answer(id_token="x")):
        with failing("wrong_id_token"):
            subject_of(PROVIDER, wrong, *of, "", 1000)


@pytest.mark.parametrize(
    ("asked", "granted", "fits"),
    [
        ("read write", None, True),
        ("read write", "", True),
        ("read write", "write read more", True),
        ("read,write", "write,read", True),
        ("openid email offline_access read", "read", True),
        ("read write", "read", False),
        ("read", "readonly", False),
        ("", "read", True),
    ],
)
def test_the_scope_that_was_granted(asked: str, granted: str | None, fits: bool) -> None:
    check_scope(replace(PROVIDER, narrower_scope="accept"), asked, granted)
    if fits:
        check_scope(PROVIDER, asked, granted)
    else:
        with failing("scope_missing"):
            check_scope(PROVIDER, asked, granted)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (RequestNotSent("refused", "no connection"), "unavailable"),
        (NoAnswer("cut"), "outcome_unknown"),
        (HttpAnswer(502, {}, b""), "outcome_unknown"),
        (HttpAnswer(200, {}, b"<html>"), "outcome_unknown"),
        (HttpAnswer(503, {}, b""), "unavailable"),
        (HttpAnswer(429, {}, b""), "unavailable"),
        (HttpAnswer(400, {}, b'{"error": "invalid_grant"}'), "refused"),
        (HttpAnswer(401, {}, b'{"error": "invalid_client"}'), "refused"),
        (answer(access_token="a"), "no_refresh_token"),
        (answer(access_token="a", refresh_token=""), "no_refresh_token"),
    ],
)
def test_an_answer_without_a_pair(outcome: Any, word: str) -> None:
    with failing(word):
        pair_of(outcome, classify(outcome, 0))


def test_what_is_put() -> None:
    outcome = answer(
        access_token="a",
        refresh_token="r",
        expires_in=60,
        scope="read",
        refresh_token_expires_in=90,
    )
    pair = pair_of(outcome, classify(outcome, 0))
    assert put_fields(pair, "read write", {"shop": "x"}, "ada", 5000) == {
        "parameters": {"shop": "x"},
        "refresh_token": "r",
        "access_token": "a",
        "token_type": "Bearer",
        "scope": "read",
        "subject": "ada",
        "expires_at_ms": 65_000,
        "consent_expires_ms": 95_000,
        "consent_end": "unknown",
    }
    endless = answer(access_token="a", refresh_token="r", expires_in=10**11)
    pair = pair_of(endless, classify(endless, 0))
    told = put_fields(pair, "", {}, "", 5000)
    assert parse_grant(told, PROVIDER).expires_at_ms == 2**42 - 1
    bare = answer(access_token="a", refresh_token="r")
    pair = pair_of(bare, classify(bare, 0))
    told = put_fields(pair, "read write", {}, "", 5000)
    assert told["scope"] == "read write"
    assert not told.keys() & {"subject", "parameters", "expires_at_ms", "consent_expires_ms"}


async def test_a_link_is_remembered_for_its_longest_life_whatever_a_clock_says() -> None:
    asked = []

    async def script(_name: str, _queue: str, _shard: int, args: Any) -> list[Any]:
        asked.append(args)
        return [b"NEW", b"", 0]

    over = Link("l", 0, "", "", {}, "")
    state, link = await Claims(script, 900_000).use_up(STATE, over, 20.0)
    assert asked[0][:2] == (state, link)
    assert asked[0][2] > 86_400_000 + 900_000


def test_a_provider_is_known_by_its_addresses_its_client_and_who_set_it() -> None:
    own = settings_digest(PROVIDER)
    assert settings_digest(replace(PROVIDER, consent_scope="x", timeout_s=1.0)) == own
    changes: list[dict[str, Any]] = [
        {"client_id": "c1"},
        {"token_url": "https://q.example/token"},
        {"issuer": "https://p.example"},
        {"consent_issuer": "https://p.example"},
        {"authorization_url": "https://q.example/auth"},
        {"par_url": "https://p.example/par"},
        {"reach": Reach()},
    ]
    digests = {settings_digest(replace(PROVIDER, **change)) for change in changes}
    assert len({own} | digests) == len(changes) + 1


def test_nothing_that_is_shown_has_a_secret() -> None:
    assert repr(VISIT) == "Visit(p/a)"


DEVICE = {
    "device_code": "long",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://p.example/device",
    "expires_in": 1800,
}


def test_a_code_for_another_device_is_read() -> None:
    found = read_device_code(answer(**DEVICE))
    known = ("long", "WDJB-MJHT", "https://p.example/device")
    assert found == DeviceCode(*known, "", 1800.0, 5.0)
    assert "long" not in repr(found)
    whole = {"verification_uri_complete": "https://p.example/device?c=x", "interval": 7}
    found = read_device_code(answer(**DEVICE | whole))
    assert (found.verification_uri_complete, found.interval_s) == (*whole.values(),)
    odd = read_device_code(answer(**DEVICE | {"interval": "x", "expires_in": 10**8}))
    assert (odd.interval_s, odd.life_s) == (5.0, 3600.0)
    assert read_device_code(answer(**DEVICE | {"interval": 1000})).interval_s == 60.0
    # Else one code would be asked for hundreds of times a second.
    assert read_device_code(answer(**DEVICE | {"interval": 1e-9})).interval_s == 1.0


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (answer(**DEVICE | {"device_code": ""}), "device_code is no text"),
        (answer(**DEVICE | {"user_code": "x" * 65}), "user_code is no text"),
        (answer(**DEVICE | {"user_code": "a\nb"}), "user_code is no text"),
        (answer(**DEVICE | {"verification_uri": None}), "verification_uri is no text"),
        (answer(**DEVICE | {"verification_uri": "javascript:x"}), "none of https://"),
        (answer(**DEVICE | {"verification_uri_complete": "ftp://x"}), "none of https://"),
        (HttpAnswer(200, {}, b"[]"), "no JSON object"),
        (HttpAnswer(200, {}, b"<html>"), "no JSON object"),
        (HttpAnswer(400, {}, b'{"error": "unauthorized_client"}'), "HTTP 400 unauthorized_client"),
        (HttpAnswer(400, {}, b'{"error": "no s3cret"}', secrets=("s3cret",)), "HTTP 400$"),
        (HttpAnswer(400, {}, b'{"error": "a\\r\\nb"}'), "HTTP 400$"),
        (HttpAnswer(201, {}, b"{}"), "HTTP 201$"),
    ],
)
def test_what_is_no_code_for_another_device(given: HttpAnswer, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_device_code(given)


def error(word: str, status: int = 400) -> HttpAnswer:
    return HttpAnswer(status, {}, json.dumps({"error": word}).encode())


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (answer(access_token="a", refresh_token="r"), "given"),
        (error("authorization_pending"), "waiting"),
        (error("authorization_pending", 428), "waiting"),
        (error("slow_down"), "slower"),
        (error("slow_down", 429), "slower"),
        (RequestNotSent("refused", "no connection"), "slower"),
        (HttpAnswer(503, {}, b""), "slower"),
        (NoAnswer("cut"), "lost"),
        (HttpAnswer(502, {}, b""), "lost"),
        (HttpAnswer(200, {}, b"<html>"), "lost"),
    ],
)
def test_what_is_answered_while_nobody_has_consented(outcome: Any, told: str) -> None:
    assert poll_of(outcome, classify(outcome, 0)) == told


@pytest.mark.parametrize(
    ("word", "ending"),
    [
        ("access_denied", "denied"),
        ("expired_token", "expired"),
        ("invalid_grant", "refused"),
        ("unsupported_grant_type", "refused"),
    ],
)
def test_when_no_device_is_asked_for_any_more(word: str, ending: str) -> None:
    with failing(ending):
        poll_of(error(word), classify(error(word), 0))


@pytest.mark.parametrize(
    ("outcome", "refused"),
    [
        (error("invalid_client", 401), True),
        (error("invalid_client"), True),
        (HttpAnswer(401, {}, b""), True),
        (error("authorization_pending", 401), False),
        (error("slow_down", 401), False),
        (error("invalid_grant"), False),
        (NoAnswer("cut"), False),
    ],
)
def test_when_another_secret_is_tried_for_a_device(outcome: Any, refused: bool) -> None:
    assert refuses_client(outcome, classify(outcome, 0)) == refused

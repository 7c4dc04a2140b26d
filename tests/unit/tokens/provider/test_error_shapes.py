"""
What answers say of an error, in the shapes that token endpoints give it, and where they were seen.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.provider.error_shapes import NOTHING, ErrorReport, read_error
from tidewarden.tokens.provider.token_response import HttpAnswer, classify, rules_of

NOW_MS = 1_700_000_000_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "code", "data", "message", "field", "token", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def verdict_of(
    status: int, body: Any, content_type: str = "application/json", **errors: str
) -> Any:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    rules = rules_of({}, {name.replace("_", ":"): word for name, word in errors.items()})
    return classify(HttpAnswer(status, {"content-type": content_type}, raw), NOW_MS, rules)


STRAVA = {
    "message": "Bad Request",
    "errors": [{"resource": "RefreshToken", "field": "refresh_token", "code": "invalid"}],
}
STRAVA_CLIENT = {
    "message": "Bad Request",
    "errors": [{"resource": "Application", "field": "client_id", "code": "invalid"}],
}
FITBIT = {
    "errors": [{"errorType": "invalid_grant", "message": "Refresh token invalid: ------."}],
    "success": False,
}
FACEBOOK = {
    "error": {
        "message": "Error validating access token: Session has expired",
        "type": "OAuthException",
        "code": 190,
        "error_subcode": 463,
        "fbtrace_id": "EJplcsCHuLu",
    }
}
APIGEE = {
    "fault": {
        "faultstring": "Invalid Refresh Token",
        "detail": {"errorcode": "keymanagement.service.invalid_refresh_token"},
    }
}
MICROSOFT = {
    "error": "invalid_grant",
    "error_description": "AADSTS65001: The user or administrator has not consented. Trace ID: x",
    "error_codes": [65001],
    "timestamp": "2016-04-11 18:59:01Z",
    "trace_id": "255d1aef-8c98-452f-ac51-23d051240864",
    "suberror": "consent_required",
    "error_uri": "https://login.microsoftonline.com/error?code=65001",
}
HUBSPOT = {
    "status": "BAD_REFRESH_TOKEN",
    "message": "missing or unknown refresh token",
    "error": "invalid_request",
}
GOOGLE_API = {
    "error": {"code": 400, "message": "Request had bad arguments.", "status": "INVALID_ARGUMENT"}
}
PROBLEM = {
    "type": "about:blank",
    "title": "Forbidden",
    "status": 403,
    "detail": "The grant was withdrawn.",
}
ZOOM = {"reason": "Invalid Token!", "error": "invalid_request"}


@pytest.mark.parametrize(
    ("status", "body", "word", "scope", "brief"),
    [
        # github.com/dreeveapp/dreeve/issues/1449 and /372
        (400, STRAVA, "invalid_grant", "account", "HTTP 400 refresh_token:invalid"),
        (400, STRAVA_CLIENT, "invalid_client", "client", "HTTP 400 client_id:invalid"),
        # github.com/home-assistant/core/issues/141223
        (400, FITBIT, "invalid_grant", "account", "HTTP 400 invalid_grant"),
        # developers.facebook.com/docs/graph-api/guides/error-handling
        (400, FACEBOOK, "rejected", "account", "HTTP 400 oauthexception 190 463"),
        # an Apigee gateway, as a client of one tests for it
        (
            400,
            APIGEE,
            "invalid_grant",
            "account",
            "HTTP 400 keymanagement.service.invalid_refresh_token",
        ),
        # MicrosoftDocs/entra-docs, identity-platform/reference-error-codes.md
        (
            400,
            MICROSOFT,
            "invalid_grant",
            "account",
            "HTTP 400 invalid_grant consent_required 65001",
        ),
        # seen in 2026-10; the generic word is no reason to overlook the particular one
        (400, HUBSPOT, "invalid_grant", "account", "HTTP 400 invalid_request bad_refresh_token"),
        # Zoom, as its clients read it
        (400, ZOOM, "invalid_grant", "account", "HTTP 400 invalid_request"),
        # AIP-193; its `code` is the status again
        (400, GOOGLE_API, "rejected", "account", "HTTP 400 invalid_argument"),
        (403, PROBLEM, "rejected", "account", "HTTP 403"),  # RFC 9457
        (400, {"code": 10001, "message": "no such grant"}, "rejected", "account", "HTTP 400 10001"),
        (400, {"message": "no such grant"}, "rejected", "account", "HTTP 400"),
        (400, {"error": True, "message": "no"}, "rejected", "account", "HTTP 400"),
        (400, {"error": {"refresh_token": ["is bad"]}}, "rejected", "account", "HTTP 400"),
        (
            400,
            [{"errorCode": "INVALID_SESSION_ID"}],
            "rejected",
            "account",
            "HTTP 400 invalid_session_id",
        ),
        (400, [], "rejected", "account", "HTTP 400"),
        (403, "no", "rejected", "account", "HTTP 403"),
        (409, {"errors": ["invalid_grant"]}, "invalid_grant", "account", "HTTP 409 invalid_grant"),
        (400, {"error": "Invalid Refresh Token."}, "invalid_grant", "account", "HTTP 400"),
        (400, {"error": "x" * 80}, "rejected", "account", "HTTP 400"),
        (401, {"code": 10001, "message": "no"}, "invalid_client", "client", "HTTP 401 10001"),
        (
            401,
            {"errors": [{"errorType": "invalid_token"}]},
            "invalid_grant",
            "account",
            "HTTP 401 invalid_token",
        ),
        (404, {"message": "no route"}, "misdirected", "client", "HTTP 404"),
    ],
)
def test_a_refusal_is_the_accounts_matter_in_whatever_shape(
    status: int, body: Any, word: str, scope: str, brief: str
) -> None:
    verdict = verdict_of(status, body)
    assert (verdict.outcome, verdict.scope, verdict.brief) == (word, scope, brief)


@pytest.mark.parametrize(
    ("body", "word", "brief"),
    [
        # WeChat, as its clients quote it
        ({"errcode": 40030, "errmsg": "invalid refresh_token"}, "rejected", "HTTP 200 40030"),
        ({"code": 20026, "msg": "refresh token not supported"}, "rejected", "HTTP 200 20026"),
        (
            {"data": {"error_code": 10008, "description": "expired"}, "message": "error"},
            "rejected",
            "HTTP 200 10008",
        ),
        (
            {"error": {"type": "OAuthException", "code": 190}},
            "rejected",
            "HTTP 200 oauthexception 190",
        ),
        (
            {"errors": [{"errorType": "invalid_grant"}], "success": False},
            "invalid_grant",
            "HTTP 200 invalid_grant",
        ),
        ({"success": False, "message": "no"}, "rejected", "HTTP 200"),
        ({"ok": False, "error": "token_revoked"}, "invalid_grant", "HTTP 200 token_revoked"),
    ],
)
def test_a_refusal_inside_a_success_too(body: Any, word: str, brief: str) -> None:
    verdict = verdict_of(200, body)
    assert (verdict.outcome, verdict.scope, verdict.brief, verdict.keep_body) == (
        word,
        "account",
        brief,
        False,
    )


@pytest.mark.parametrize(
    "body",
    [
        {"code": 0, "data": {}},
        {"code": 200, "message": "fine"},
        {"code": "0000", "message": "fine"},
        {"status": 1, "message": "fine"},
        {"error": 0, "errcode": 0},
        {"error": None, "errors": []},
        {"error": False, "error_description": ""},
        {"success": True},
        {"error": "false"},
        {"error": "none", "errcode": "0"},
        {"code": 1, "message": "Success"},
        {"code": 1, "message": "fine", "data": {"jwt": "ey"}},
        {"code": 1, "message": "ok", "data": {"accessToken": "a", "refreshToken": "r"}},
        {"errcode": 1, "result": [{"token": "a"}]},
        {"success": False, "warning": "x", "refresh_token": "r"},
    ],
)
def test_a_success_that_is_not_understood_is_no_refusal(body: Any) -> None:
    verdict = verdict_of(200, body)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", True)


@pytest.mark.parametrize(
    ("body", "kind", "word", "scope"),
    [
        (b"<!DOCTYPE html><p>blocked", "application/json", "unavailable", "provider"),
        (b"\xef\xbb\xbf \n<html>blocked", "", "unavailable", "provider"),
        (b"Request blocked", "text/html; charset=utf-8", "unavailable", "provider"),
        (b"The refresh token is invalid", "text/plain", "rejected", "account"),
        # What PHP says unless it is told.
        (b' {"message": "no"}', "text/html", "rejected", "account"),
        (b'{"error": "inval', "application/json", "rejected", "account"),
        (b"", "", "rejected", "account"),
    ],
)
def test_a_page_is_of_somebody_before_the_server_and_a_text_is_the_servers(
    body: bytes, kind: str, word: str, scope: str
) -> None:
    verdict = verdict_of(400, body, kind)
    assert (verdict.outcome, verdict.scope, verdict.brief) == (word, scope, "HTTP 400")


def test_what_is_said_is_told_without_secrets() -> None:
    assert verdict_of(400, STRAVA).message == "HTTP 400 refresh_token:invalid Bad Request"
    assert verdict_of(400, APIGEE).message.endswith("invalid_refresh_token Invalid Refresh Token")
    assert (
        verdict_of(400, PROBLEM | {"status": 403}).message
        == "HTTP 400 403 The grant was withdrawn."
    )
    assert verdict_of(400, b"Token t0ken-0123456789abcdef is bad", "text/plain").message == (
        "HTTP 400 Token … is bad"
    )
    assert verdict_of(400, b"\x00\x01" * 99, "application/octet-stream").message == "HTTP 400"
    raw = json.dumps({"fault": {"code": "hunter2", "message": "not Hunter2"}}).encode()
    found = classify(HttpAnswer(400, {}, raw, secrets=("hunter2", "Hunter2")), NOW_MS)
    assert (found.message, found.brief) == ("HTTP 400 … not …", "HTTP 400")
    url = {"type": "https://example.com/errors/smith", "title": "No"}
    assert verdict_of(400, url).message == "HTTP 400 No"


def test_a_map_of_errors_meets_each_code_and_the_most_particular_counts() -> None:
    body = json.dumps(FACEBOOK).encode()
    for errors, word in (
        ({"190": "invalid_grant"}, "invalid_grant"),
        ({"190": "invalid_grant", "463": "too_early"}, "too_early"),
        ({"oauthexception": "invalid_client"}, "invalid_client"),
        ({"400 190": "invalid_scope", "463": "too_early"}, "invalid_scope"),
        ({"400": "account_limited"}, "account_limited"),
    ):
        assert classify(HttpAnswer(400, {}, body), NOW_MS, rules_of({}, errors)).outcome == word
    fixed = rules_of({"error": "error.code"}, {"190": "invalid_grant", "463": "too_early"})
    assert classify(HttpAnswer(400, {}, body), NOW_MS, fixed).outcome == "invalid_grant"
    assert classify(HttpAnswer(200, {}, body), NOW_MS, fixed).outcome == "invalid_grant"


def test_an_answer_without_an_error_says_none() -> None:
    assert read_error({}, 200) == NOTHING
    assert read_error({"expires_in": 5, "state": "x"}, 200) == NOTHING
    assert read_error({"error": "Oh"}, 400) == ErrorReport(("oh",), "", True)


@given(JSON, st.sampled_from([200, 400, 401, 403]))
def test_no_shape_is_an_exception(body: Any, status: int) -> None:
    found = read_error(body if isinstance(body, dict) else {"error": body}, status)
    assert len(found.codes) <= 4
    verdict = classify(HttpAnswer(status, {}, json.dumps(body).encode()), NOW_MS)
    assert verdict.message.isprintable()
    assert verdict.brief.startswith(f"HTTP {status}")

"""What answers mean: a table of what token endpoints are seen to say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.error_classes import CONFIGURABLE
from tidewarden.tokens.provider.token_response import (
    HttpAnswer,
    NoAnswer,
    RequestNotSent,
    classify,
    rules_of,
    scrub,
)

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


def answer(status: int, body: Any = b"", **headers: str) -> HttpAnswer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpAnswer(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, raw
    )


def microsoft(error: str, number: int, suberror: str = "", status: int = 400) -> HttpAnswer:
    said = f"AADSTS{number}: It is so. Trace ID: 0000aaaa-11bb-cccc-dd33-eeeeee333333"
    more = {"suberror": suberror} if suberror else {}
    return answer(
        status, {"error": error, "error_description": said, "error_codes": [number], **more}
    )


@pytest.mark.parametrize(
    ("outcome", "word", "scope"),
    [
        (answer(400, {"error": "invalid_grant"}), "invalid_grant", "account"),
        (answer(403, {"error": "invalid_grant"}), "invalid_grant", "account"),  # Auth0, Atlassian.
        (answer(200, {"error": "bad_refresh_token"}), "invalid_grant", "account"),  # GitHub.
        (answer(400, {"status": "BAD_REFRESH_TOKEN"}), "invalid_grant", "account"),  # HubSpot.
        (answer(200, {"error": "invalid_code"}), "invalid_grant", "account"),  # Zoho.
        (answer(400, {"error": "invalid_scope"}), "invalid_scope", "account"),
        (answer(400, {"error": "invalid_request"}), "rejected", "account"),
        (answer(400, {"error": "something_new"}), "rejected", "account"),
        (answer(401, {"error": "invalid_client"}), "invalid_client", "client"),
        (answer(401), "invalid_client", "client"),
        (answer(400, {"error": "unauthorized_client"}), "unauthorized_client", "client"),
        (answer(400, {"error": "unsupported_grant_type"}), "unsupported_grant_type", "client"),
        (answer(200, {"error": "incorrect_client_credentials"}), "invalid_client", "client"),
        (answer(200, {"ok": False, "error": "ratelimited"}), "rate_limited", "provider"),  # Slack.
        # One account's trouble, told as if it were the client's: the scope is a hint
        # (MicrosoftDocs/entra-docs, reference-error-codes.md: "isn't added to the user's Microsoft
        # Entra tenant").
        (microsoft("unauthorized_client", 700016), "unauthorized_client", "client"),
        (microsoft("unauthorized_client", 7000112), "unauthorized_client", "client"),
        (
            answer(401, {"error": "unauthorized_client", "error_description": "Unauthorized"}),
            "unauthorized_client",
            "client",
        ),
        (microsoft("invalid_grant", 50173), "invalid_grant", "account"),
        (microsoft("invalid_grant", 65001, "consent_required"), "invalid_grant", "account"),
        (microsoft("invalid_grant", 70043, "bad_token"), "invalid_grant", "account"),
        (microsoft("interaction_required", 50076, "basic_action"), "invalid_grant", "account"),
        (microsoft("consent_required", 65001), "invalid_grant", "account"),
        (microsoft("login_required", 50058), "invalid_grant", "account"),
        (microsoft("invalid_resource", 500011), "rejected", "account"),
        (microsoft("invalid_request", 90002), "rejected", "account"),  # The tenant is gone.
        (microsoft("invalid_client", 7000222, status=401), "invalid_client", "client"),
        (microsoft("temporarily_unavailable", 90033), "unavailable", "provider"),
        (answer(302, b"", location="https://elsewhere/"), "misdirected", "client"),
        (answer(404, b"<html>"), "misdirected", "client"),
        (answer(405), "misdirected", "client"),
        (answer(429), "rate_limited", "provider"),
        (answer(408), "unavailable", "provider"),
        (answer(500, {"error": "invalid_grant"}), "unavailable", "provider"),
        (answer(503, b"<html>"), "unavailable", "provider"),
        (answer(400, {"error": "temporarily_unavailable"}), "unavailable", "provider"),
        (answer(403, b"<html>blocked by the firewall</html>"), "unavailable", "provider"),
        (answer(502), "unknown", "unknown"),
        (answer(504), "unknown", "unknown"),
        (answer(200, b"<html>"), "unknown", "unknown"),
        (answer(200, {}), "unknown", "unknown"),
        (answer(200, {"status": "ok"}), "unknown", "unknown"),
        (answer(200, [1]), "unknown", "unknown"),
        (answer(200, {"access_token": ""}), "unknown", "unknown"),
        (answer(200, {"access_token": 7}), "unknown", "unknown"),
        (answer(200, b'{"access_token": "cut'), "unknown", "unknown"),
        (answer(200, b"[" * 60_000), "unknown", "unknown"),
        (RequestNotSent("refused", "no"), "refused", "provider"),
        (RequestNotSent("dns", "no"), "dns", "ours"),
        (RequestNotSent("tls", "no"), "tls", "provider"),
        (RequestNotSent("connect_timeout", "no"), "connect_timeout", "provider"),
        (RequestNotSent("bad_url", "no"), "bad_url", "client"),
        (NoAnswer("reset"), "unknown", "unknown"),
    ],
)
def test_the_class_of_an_outcome(outcome: Any, word: str, scope: str) -> None:
    verdict = classify(outcome, NOW_MS)
    assert (verdict.outcome, verdict.scope) == (word, scope)
    assert verdict.pair is None


def test_a_pair_is_read() -> None:
    verdict = classify(
        answer(200, {"access_token": "a", "refresh_token": "r", "token_type": "bearer", "expires_in": 3600, "scope": "x"}),
        NOW_MS,
    )  # fmt: skip
    assert (verdict.outcome, verdict.scope) == ("ok", "ok")
    pair = verdict.pair
    assert pair is not None
    assert (pair.access_token, pair.refresh_token, pair.token_type) == ("a", "r", "bearer")
    assert (pair.life_s, pair.scope) == (3600, "x")
    assert "'a'" not in repr(verdict)


@pytest.mark.parametrize(
    ("told", "life_s"),
    [(3600, 3600), ("3600", 3600), (3599.5, 3599.5), (0, 0), (-5, 0), ("-1", 0), (-(10**400), None), ("soon", None), (None, None), (True, None),
     (float("inf"), None), (10**400, None), ([], None)],
)  # fmt: skip
def test_lives_as_they_are_told(told: Any, life_s: float | None) -> None:
    pair = classify(answer(200, {"access_token": "a", "expires_in": told}), NOW_MS).pair
    assert pair is not None
    assert pair.life_s == life_s
    assert pair.refresh_token == ""  # None came: the old one goes on.
    assert pair.token_type == "Bearer"


@pytest.mark.parametrize(
    ("told", "scope"),
    [
        ("a b", "a b"),
        (["a", "b"], "a b"),
        ([], ""),
        (["a", 1], None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_a_scope_is_read_also_from_a_list(told: Any, scope: str | None) -> None:
    pair = classify(answer(200, {"access_token": "a", "scope": told}), NOW_MS).pair
    assert pair is not None
    assert pair.scope == scope


def test_a_form_is_read_where_it_says_so() -> None:
    body = b"access_token=a&expires_in=28800&refresh_token=r&scope=&token_type=bearer"
    pair = classify(
        answer(200, body, content_type="application/x-www-form-urlencoded; charset=utf-8"), NOW_MS
    ).pair
    assert pair is not None
    assert (pair.access_token, pair.refresh_token, pair.life_s) == ("a", "r", 28800)


def test_a_success_that_cannot_be_read_is_kept() -> None:
    assert classify(answer(200, b'{"access_token": "a", "refresh_tok'), NOW_MS).keep_body
    assert not classify(answer(502, b"<html>"), NOW_MS).keep_body


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252"])
def test_a_pair_is_read_in_whichever_encoding_it_comes(encoding: str) -> None:
    raw = '{"access_token": "a", "refresh_token": "r", "name": "Zoë", "expires_in": 60}'.encode(
        encoding
    )
    pair = classify(
        answer(200, raw, content_type="application/json;charset=ISO-8859-1"), NOW_MS
    ).pair
    assert pair is not None
    assert (pair.access_token, pair.refresh_token, pair.life_s) == ("a", "r", 60)
    broken = classify(HttpAnswer(200, {}, raw[:-2], "it broke off"), NOW_MS).pair
    assert encoding.startswith("utf-16") or broken is not None


@pytest.mark.parametrize("odd", [12345, {"value": "r"}, ["r"], True, "rö", "\ud800", "\x01r"])
def test_a_refresh_token_that_cannot_be_used_is_not_thrown_away(odd: Any) -> None:
    verdict = classify(answer(200, {"access_token": "a", "refresh_token": odd}), NOW_MS)
    assert verdict.pair is not None
    assert (verdict.pair.refresh_token, verdict.keep_body) == ("", True)
    assert verdict.message == "its refresh token is no text of ASCII characters"
    for usual in ("r", "", None):
        verdict = classify(answer(200, {"access_token": "a", "refresh_token": usual}), NOW_MS)
        assert (verdict.keep_body, verdict.message) == (False, "")


CUT = b'{"access_token": "a,}", "x": {"y": [1, 2]}, "refresh_token": "r", "id_token": "ey'


@pytest.mark.parametrize("end", range(CUT.index(b'"id_token"'), len(CUT) + 1))
def test_a_pair_that_had_come_before_the_answer_broke_off_is_saved(end: int) -> None:
    verdict = classify(HttpAnswer(200, {}, CUT[:end], "it broke off"), NOW_MS)
    assert verdict.pair is not None
    assert (verdict.pair.access_token, verdict.pair.refresh_token) == ("a,}", "r")


@pytest.mark.parametrize("end", range(1, CUT.index(b'"r"') + 3))
def test_a_pair_of_which_a_part_is_missing_is_none(end: int) -> None:
    verdict = classify(HttpAnswer(200, {}, CUT[:end], "it broke off"), NOW_MS)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", True)
    # Not cut, and still no JSON: who knows what it is.
    assert classify(answer(200, CUT), NOW_MS).outcome == "unknown"


def test_error_texts_lose_what_looks_like_a_token() -> None:
    verdict = classify(
        answer(400, {"error": "invalid_grant", "error_description": "Token 1//0gabcDEF-ghiJKL_mno was\nrevoked"}), NOW_MS
    )  # fmt: skip
    assert verdict.message == "HTTP 400 invalid_grant Token … was revoked"
    assert classify(answer(400, {"error": "x" * 64}), NOW_MS).message == "HTTP 400 …"


def test_error_texts_lose_what_was_sent_whatever_it_looks_like() -> None:
    token, secret = "1|abc def:ghi!", "hunter2"
    for status in (200, 400, 401):
        body = {
            "error": "rejected",
            "error_description": f"{token} of client c ({secret}) is no good",
        }
        raw = json.dumps(body).encode()
        verdict = classify(HttpAnswer(status, {}, raw, secrets=(token, secret, "c", "")), NOW_MS)
        assert verdict.message == f"HTTP {status} rejected … of client c (…) is no good"
        assert token not in repr(HttpAnswer(status, {}, raw, secrets=(token,)))


def test_error_texts_lose_whose_account_it_is() -> None:
    said = "User o'brien+x@mail.example.com (or a.very.long.name%40example.com) is gone"
    assert scrub(said) == "User … (or …) is gone"
    assert scrub("call +49 (0)151 234-5678, (555) 123-4567 or 5551234567") == "call …, … or …"
    assert scrub("of t0ken-0123456789abcdef!") == "of …!"
    kept = "AADSTS7000112 at 2024-01-31 10:00:59Z: error 190, subcode 463 of 1,000, v2.0"
    assert scrub(kept) == kept


def test_a_long_error_text_is_cut_between_words() -> None:
    assert scrub("x " * 2000 + "k3y") == ("x " * 2000)[:240]
    for length in (900, 1000, 5000):
        hidden = scrub(" ".join(["t0ken" * 5] * (length // 26)) + " " + "k3y" * 4)
        assert "t0k" not in hidden


SMITH = "Mr. Smith is gone"


@pytest.mark.parametrize(
    ("outcome", "brief"),
    [
        (
            answer(401, {"error": "Invalid_Client", "error_description": SMITH}),
            "HTTP 401 invalid_client",
        ),
        (
            answer(200, {"error": "invalid_code", "error_description": SMITH}),
            "HTTP 200 invalid_code",
        ),
        (answer(400, {"error": "AADSTS7000112"}), "HTTP 400 aadsts7000112"),
        (microsoft("unauthorized_client", 7000112), "HTTP 400 unauthorized_client 7000112"),
        (answer(400, {"error": "1//0gabcDEF-ghiJKL_mno"}), "HTTP 400"),
        (answer(400, {"error": SMITH}), "HTTP 400"),
        (answer(400, {"error": "smith@example.com"}), "HTTP 400"),
        (answer(400, {"error": "5551234567"}), "HTTP 400"),
        # Named by a map of errors.
        (answer(400, {"error": "Access Denied"}), "HTTP 400 access denied"),
        (HttpAnswer(400, {}, b'{"error": "Hunter2"}', secrets=("", "c", "hunter2")), "HTTP 400"),
        (answer(503, b"<html>Mr. Smith</html>"), "HTTP 503"),
        (answer(200, b"<html>", content_type="text/smith"), "HTTP 200 without an access_token"),
        (answer(200, {"access_token": "a"}), "HTTP 200"),
        (RequestNotSent("refused", "no connection: Broken pipe"), "no connection: Broken pipe"),
        (NoAnswer("no whole answer within 5 s"), "no whole answer within 5 s"),
    ],
)
def test_what_may_stand_in_a_record_of_the_provider(outcome: Any, brief: str) -> None:
    rules = rules_of({}, {"access denied": "account_limited"})
    assert classify(outcome, NOW_MS, rules).brief == brief


def test_a_code_loses_what_was_sent_too() -> None:
    verdict = classify(
        HttpAnswer(400, {}, b'{"error": "no Hunter2 here"}', secrets=("Hunter2",)), NOW_MS
    )
    assert (verdict.message, verdict.brief) == ("HTTP 400 no … here", "HTTP 400")


@given(st.text(max_size=600))
def test_error_texts_are_one_short_line(text: str) -> None:
    line = scrub(text)
    assert len(line) <= 240
    assert line.isprintable()


@given(
    st.integers(100, 599),
    st.binary(max_size=200),
    st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text(max_size=30)),
)
def test_nothing_that_comes_is_an_exception(
    status: int, body: bytes, headers: dict[str, str]
) -> None:
    assert classify(HttpAnswer(status, headers, body), NOW_MS).scope in (
        "ok",
        "account",
        "client",
        "provider",
        "unknown",
    )


def test_a_map_of_errors_goes_before_what_is_usual_and_the_closest_entry_counts() -> None:
    rules = rules_of(
        {}, {"400 Invalid_Request": "invalid_grant", "invalid_request": "rejected", "409": "too_early", "access denied": "account_limited"}
    )  # fmt: skip
    assert (
        classify(answer(400, {"error": "invalid_request"}), NOW_MS, rules).outcome
        == "invalid_grant"
    )
    assert classify(answer(401, {"error": "invalid_request"}), NOW_MS, rules).outcome == "rejected"
    assert classify(answer(409, {"error": "else"}), NOW_MS, rules).outcome == "too_early"
    assert classify(answer(409, b"<html>"), NOW_MS, rules).outcome == "too_early"
    found = classify(answer(200, {"error": "Access Denied"}), NOW_MS, rules)  # Zoho.
    assert (found.outcome, found.scope) == ("account_limited", "account")
    assert (
        classify(
            answer(200, {"access_token": "a"}), NOW_MS, rules_of({}, {"200": "unknown"})
        ).outcome
        == "ok"
    )


def test_members_may_lie_elsewhere() -> None:
    paths = {
        "access_token": "authed_user.access_token",
        "refresh_token": "tokens.0.value",
        "error": "fault.code",
    }
    body = {
        "access_token": "bot",
        "authed_user": {"access_token": "user"},
        "tokens": [{"value": "r"}],
        "expires_in": 5,
    }
    pair = classify(answer(200, body), NOW_MS, rules_of(paths, {})).pair
    assert pair is not None
    assert (pair.access_token, pair.refresh_token, pair.life_s) == ("user", "r", 5)
    refused = answer(200, {"fault": {"code": "invalid_grant"}, "error": "else"})
    assert classify(refused, NOW_MS, rules_of(paths, {})).outcome == "invalid_grant"
    for odd in ({"authed_user": 5}, {"authed_user": {}}, {"authed_user": [1]}, {}):
        assert classify(answer(200, odd), NOW_MS, rules_of(paths, {})).outcome == "unknown"


def test_every_class_of_a_map_has_a_scope() -> None:
    for word in CONFIGURABLE:
        assert classify(answer(418), NOW_MS, rules_of({}, {"418": word})).outcome == word


ENDING = rules_of({"expires_at": "end"}, {})


@pytest.mark.parametrize(
    ("end", "headers", "life_s"),
    [
        ("2026-11-22T15:00:00Z", {"date": "Sun, 22 Nov 2026 14:00:00 GMT"}, 3600),
        ("2026-11-22T16:00:00+01:00", {"date": "Sun, 22 Nov 2026 14:30:00 GMT"}, 1800),
        (1_795_359_600, {"date": "Sun, 22 Nov 2026 14:00:00 GMT"}, 3600),
        ("1795359600", {"date": "Sun, 22 Nov 2026 14:00:00 GMT"}, 3600),
        (NOW_MS // 1000 + 60, {}, 60),
        ("2026-11-22T15:00:00", {}, None),  # In whose zone?
        ("2026-11-22T13:00:00Z", {"date": "Sun, 22 Nov 2026 14:00:00 GMT"}, 0),
        ("soon", {}, None),
        (None, {}, None),
        (True, {}, None),
    ],
)
def test_an_end_tells_a_life_where_a_path_names_it(
    end: Any, headers: dict[str, str], life_s: float | None
) -> None:
    body = {"access_token": "a", "end": end}
    pair = classify(answer(200, body, **headers), NOW_MS, ENDING).pair
    assert pair is not None
    assert (
        pair.life_s == pytest.approx(life_s, abs=1) if life_s is not None else pair.life_s is None
    )
    told = classify(answer(200, {**body, "expires_in": 77}, **headers), NOW_MS, ENDING).pair
    assert told is not None
    assert told.life_s == 77
    plain = classify(answer(200, {"access_token": "a", "expires_at": end}, **headers), NOW_MS).pair
    assert plain is not None
    assert plain.life_s is None


@given(
    st.text(max_size=30)
    | st.floats()
    | st.integers()
    | st.datetimes().map(lambda moment: f"{moment.isoformat()}Z")
)
def test_no_end_is_an_exception(end: Any) -> None:
    pair = classify(answer(200, {"access_token": "a", "end": end}), NOW_MS, ENDING).pair
    assert pair is not None
    assert pair.life_s is None or pair.life_s >= 0


def test_without_refresh_tokens_nothing_of_an_answer_can_be_lost() -> None:
    rules = rules_of({}, {}, renews=False)
    for odd in ("unasked", "é", 7):
        verdict = classify(answer(200, {"access_token": "a", "refresh_token": odd}), NOW_MS, rules)
        assert verdict.pair is not None
        assert (verdict.pair.refresh_token, verdict.message, verdict.keep_body) == ("", "", False)
    verdict = classify(answer(200, b"<html>"), NOW_MS, rules)
    assert (verdict.outcome, verdict.keep_body) == ("unknown", False)
    assert classify(answer(200, b"<html>"), NOW_MS).keep_body

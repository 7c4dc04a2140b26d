"""What a request of each grant type says, and what an account brings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.manual_clock import ManualClock
from support.providers.certificate import make
from support.providers.scripted_provider import claims_of

from tidewarden.config.load import Provider, Secret
from tidewarden.tokens.accounts.names import brought, parse_grant
from tidewarden.tokens.provider.client_auth import Credentials
from tidewarden.tokens.provider.grant_request import (
    AHEAD_S,
    JWT_BEARER,
    TOKEN_EXCHANGE,
    Asking,
    Unfit,
    asking,
    check_fit,
    fields_of,
    granted_scope,
    own_of,
)

ENDPOINT = "https://as.example/token"
CLOCK = ManualClock()


def provider(grant: str, **settings: Any) -> Provider:
    return Provider(
        name="p", token_url=ENDPOINT, client_id="c0", grant=grant, rotation="none", **settings
    )


def text_of(one: Provider, **fields: Any) -> str:
    return brought(one, parse_grant(fields, one))


def said(one: Provider, account: str = "a", **fields: Any) -> Asking:
    return asking(one, account, text_of(one, **fields), ENDPOINT, Credentials(CLOCK), CLOCK)


def test_a_refresh_token_is_sent_as_it_is() -> None:
    asked = said(Provider(name="p", client_id="c0"), refresh_token="r-1")
    assert asked.members == {"grant_type": "refresh_token", "refresh_token": "r-1"}
    assert asked.secrets == ("r-1",)


@pytest.mark.parametrize(
    ("section", "own", "sent"),
    [("", "", {}), ("mail", "", {"scope": "mail"}), ("mail", "files", {"scope": "files"})],
)
def test_client_credentials_ask_for_the_accounts_scope_or_the_sections(
    section: str, own: str, sent: dict[str, str]
) -> None:
    asked = said(provider("client_credentials", scope=section), scope=own)
    assert asked.members == {"grant_type": "client_credentials", **sent}
    assert not asked.headers


def test_an_assertion_says_who_for_whom_and_until_when(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    one = provider(
        "jwt_bearer", jwt_key_file=key, scope="mail", jwt_claims={"box_sub": "u:{account}"}
    )
    first, second = said(one, "ann@x"), said(one, "ann@x")
    assert {name: first.members[name] for name in ("grant_type", "scope")} == {
        "grant_type": JWT_BEARER,
        "scope": "mail",
    }
    claims, later = claims_of(first.members["assertion"]), claims_of(second.members["assertion"])
    assert claims.pop("jti") != later.pop("jti")
    now_s = CLOCK.unix_ms() // 1000
    assert claims == later
    assert claims == {
        "iss": "c0", "sub": "ann@x", "aud": ENDPOINT, "iat": now_s - AHEAD_S, "exp": now_s + 120, "box_sub": "u:ann@x",
    }  # fmt: skip
    assert first.secrets == (first.members["assertion"],)
    assert "ey" not in repr(first)


def test_a_scope_may_be_a_claim_and_a_subject_may_be_absent(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    settings = {
        "jwt_subject": "",
        "jwt_issuer": "svc@x",
        "jwt_audience": "urn:aud",
        "scope_in": "assertion",
    }
    asked = said(provider("jwt_bearer", jwt_key_file=key, **settings), scope="cal")
    assert set(asked.members) == {"grant_type", "assertion"}
    claims = claims_of(asked.members["assertion"])
    assert (claims["iss"], claims["aud"], claims["scope"]) == ("svc@x", "urn:aud", "cal")
    assert "sub" not in claims


def test_a_bearer_assertion_stands_in_the_header_alone(tmp_path: Path) -> None:
    _, key = make(tmp_path)
    asked = said(provider("jwt_bearer", jwt_key_file=key, auth="bearer"))
    assert asked.members == {}
    assert claims_of(asked.headers["Authorization"].removeprefix("Bearer "))["iss"] == "c0"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [("jwt", "urn:ietf:params:oauth:token-type:jwt"), ("urn:my:kind", "urn:my:kind")],
)
def test_a_token_is_exchanged(kind: str, sent: str) -> None:
    one = provider("token_exchange", subject_token_type=kind)
    assert said(one, subject_token="st-1", scope="mail").members == {
        "grant_type": TOKEN_EXCHANGE, "subject_token": "st-1", "subject_token_type": sent, "scope": "mail",
    }  # fmt: skip


def test_a_subject_token_of_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "subject"
    one = provider("token_exchange", subject_token_file=str(path))
    with pytest.raises(ValueError, match="subject_token_file cannot be read: No such file"):
        said(one)
    for token in ("first", "second"):
        path.write_text(f"{token}\n")
        asked = said(one)
        assert (asked.members["subject_token"], asked.secrets) == (token, (token,))
    path.write_text("\n")
    with pytest.raises(ValueError, match="subject_token_file is empty"):
        said(one)


def test_the_sections_subject_token_is_sent_for_all(tmp_path: Path) -> None:
    one = provider("token_exchange", subject_token=Secret("shared"))
    assert one.brings == ""
    assert said(one).members["subject_token"] == "shared"


def test_a_token_is_for_what_the_answer_says_or_else_for_what_was_asked() -> None:
    one = provider("client_credentials", scope="base")
    assert granted_scope(one, text_of(one, scope="mail"), "less", "before") == "less"
    assert granted_scope(one, text_of(one, scope="mail"), None, "less") == "mail"
    assert granted_scope(one, text_of(one), None, "less") == "base"
    assert granted_scope(REFRESHING, "r-1", None, "before") == "before"
    assert granted_scope(REFRESHING, "r-1", "", "before") == ""


NEEDING_NONE = [
    provider("client_credentials"),
    provider("jwt_bearer"),
    provider("token_exchange", subject_token=Secret("x")),
]
OWN = provider("token_exchange")
REFRESHING = Provider(name="p", client_id="c0")


@pytest.mark.parametrize("one", NEEDING_NONE, ids=lambda one: one.grant)
def test_what_was_put_for_another_grant_does_not_fit(one: Provider) -> None:
    refresh, nothing = text_of(REFRESHING, refresh_token="{}"), text_of(one)
    assert check_fit(one, nothing) == nothing
    assert check_fit(REFRESHING, refresh) == refresh
    for chosen, text in ((one, refresh), (REFRESHING, nothing), (OWN, nothing), (OWN, refresh)):
        with pytest.raises(Unfit, match="put for another kind of grant: put it anew"):
            check_fit(chosen, text)


SCOPES = st.text("ab ", max_size=5)
TOKENS = st.text("st{}\"'", max_size=5)


@given(st.tuples(SCOPES, TOKENS.filter(bool)), st.tuples(SCOPES, TOKENS.filter(bool)))
def test_two_accounts_that_ask_alike_are_alike_and_others_are_not(
    one: tuple[str, str], two: tuple[str, str]
) -> None:
    texts = [text_of(OWN, scope=scope, subject_token=token) for scope, token in (one, two)]
    assert (texts[0] == texts[1]) == (one == two)
    own = own_of(texts[0])
    assert own is not None
    assert (own.scope, own.subject_token) == one
    assert repr(own) == f"Own(scope={one[0]!r})"
    assert text_of(OWN, **fields_of(texts[0])) == texts[0]
    assert fields_of(one[1]) == {"refresh_token": one[1]}

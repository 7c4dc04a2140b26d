"""Names of accounts, queues of clients, fields of a grant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.config.provider import Provider, queue_of
from tidewarden.config.secret import Secret
from tidewarden.errors import BadArg
from tidewarden.tokens.accounts.names import check_name, parse_grant, split


@pytest.mark.parametrize("name", ["a", "alice+tag@example.org", "0/1/2", "x=y:z.-_", "a" * 200])
def test_names_that_are_allowed(name: str) -> None:
    assert split(f"google/{name}") == ("google", name)


@pytest.mark.parametrize(
    ("account", "says"),
    [
        ("alice", "not of the form provider/account"),
        ("/alice", "not of the form provider/account"),
        ("google/", "account is empty"),
        ("google/a b", "contains ' '"),
        ("google/a\u0308", "holds letters and their accents apart"),
        ("google/a\u202eb", r"contains '\\u202e'"),
        ('google/a"b', "contains '\"'"),
        ("google/a~1", "contains '~'"),
        ("google/" + "ä" * 101, "account has 202 bytes"),
        ("google/a\n", r"contains '\\n'"),
        ("google/" + "a" * 201, "has 201 bytes"),
    ],
)
def test_names_that_are_not(account: str, says: str) -> None:
    with pytest.raises(BadArg, match=says):
        split(account)


def test_a_plain_client_is_its_own_name() -> None:
    assert (
        queue_of("google", "12-ab.apps.googleusercontent.com")
        == "_tokens:google:12-ab.apps.googleusercontent.com"
    )
    assert queue_of("p", "c:0/x_y") == "_tokens:p:c:0/x_y"
    assert queue_of("p", "a b+ä") == "_tokens:p:a_x20b_x2B_xC3_xA4"
    assert queue_of("p", "a_x20b") == "_tokens:p:a_x5Fx20b"


CLIENT = st.text("_x2B05F aä+", min_size=1, max_size=12)  # with what codes are made of


@given(CLIENT, CLIENT)
def test_no_two_clients_share_a_queue(one: str, two: str) -> None:
    assert (queue_of("p", one) == queue_of("p", two)) == (one == two)


P = Provider(
    name="p", client_id="c", account_parameters={"shop": "[a-z]+"}, extras=("api", "org.id")
)


def test_what_is_known_of_an_account_is_put_with_its_grant() -> None:
    fields = {
        "parameters": {"shop": "a"},
        "extras": {"api": "https://x", "org.id": 7},
        "consent_expires_ms": 2**41,
        "subject": "ada|1",
    }
    grant = parse_grant({"refresh_token": "r", "refresh_token_expires_in": "86400"} | fields, P)
    assert grant.subject == "ada|1"
    assert (grant.parameters, grant.extras) == ({"shop": "a"}, {"api": "https://x", "org.id": 7})
    assert (grant.consent_expires_ms, grant.consent_end, grant.consent_s) == (
        2**41,
        "fixed",
        86_400,
    )
    bare = parse_grant({"refresh_token": "r"}, P)
    assert (bare.parameters, bare.extras, bare.consent_expires_ms, bare.consent_s) == (
        None,
        None,
        0,
        0,
    )


def test_a_grant_with_everything() -> None:
    grant = parse_grant(
        {"refresh_token": "r", "access_token": "a", "token_type": "DPoP", "scope": "x y", "expires_at_ms": "1700", "client": "c"},
        P,
    )  # fmt: skip
    assert (grant.refresh_token, grant.access_token, grant.token_type) == ("r", "a", "DPoP")
    assert (grant.scope, grant.expires_at_ms) == ("x y", 1700)


def test_empty_cells_count_as_absent() -> None:
    grant = parse_grant(
        {"refresh_token": "r", "access_token": "", "expires_at_ms": "", "scope": None}, P
    )
    assert (grant.access_token, grant.expires_at_ms, grant.token_type) == ("", 0, "Bearer")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "refresh_token is missing"),
        ({"refresh_token": ""}, "refresh_token is missing"),
        ({"refresh_token": 7}, "refresh_token is not a text but int"),
        (
            {"refresh_token": "r", "password": "x"},
            "unknown field 'password'; allowed are access_token, ",
        ),
        (
            {"refresh_token": "secret-é"},
            "refresh_token holds characters other than printable ASCII: the first is number 8 of 8",
        ),
        ({"refresh_token": "r" * 32_769}, "refresh_token has 32769 bytes; at most 32768"),
        (
            {"refresh_token": "r", "expires_at_ms": "soon"},
            "expires_at_ms is 'soon'; allowed is 0 to",
        ),
        ({"refresh_token": "r", "expires_at_ms": -1}, "expires_at_ms is '-1'"),
        (
            {"refresh_token": "r", "expires_at_ms": 1_795_287_209},
            "expires_at_ms is 1795287209, which looks like seconds",
        ),
        ({"refresh_token": "r", "expires_in": True}, "expires_in is 'True'"),
        (
            {"refresh_token": "r", "client": "other"},
            "client is 'other'; the provider's client is 'c'",
        ),
        ({"refresh_token": "r", "token_type": "Bea rer"}, "token_type must be"),
        (
            {"refresh_token": "r", "parameters": {"shop": "A"}},
            "parameters.shop is 'A', which its pattern does not match",
        ),
        (
            {"refresh_token": "r", "parameters": {"shop": "a", "x": "y"}},
            "parameters has 'x'; p knows shop",
        ),
        ({"refresh_token": "r", "parameters": "a"}, "parameters is no JSON object"),
        ({"refresh_token": "r", "extras": {"other": 1}}, "extras has 'other'; p keeps api, org.id"),
        ({"refresh_token": "r", "extras": {"api": ["x"]}}, "extras.api is no number"),
        ({"refresh_token": "r", "extras": ["api"]}, "extras is no JSON object"),
        ({"refresh_token": "r", "subject": 7}, "subject must be a printable text of 255"),
        ({"refresh_token": "r", "subject": "x" * 256}, "subject must be a printable text of 255"),
        ({"refresh_token": "r", "subject": "a\nb"}, "subject must be a printable text of 255"),
        (
            {"refresh_token": "r", "consent_end": "soon"},
            "consent_end is 'soon'; allowed are unknown, fixed, moves",
        ),
        (
            {"refresh_token": "r", "consent_expires_ms": 1_795_287_209},
            "consent_expires_ms is 1795287209, which looks",
        ),
        ({"refresh_token": "r", "scope": "s" * 9000}, "scope must be a text of at most 8192 bytes"),
    ],
)
def test_grants_that_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(BadArg, match=says) as raised:
        parse_grant(fields, P)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "brings", "fields", "says"),
    [
        (
            "client_credentials", "", {"refresh_token": "secret"},
            "^refresh_token is not used: the provider's grant is client_credentials, which asks without one; leave it out",
        ),
        ("jwt_bearer", "", {"subject_token": "secret"}, "^subject_token is not used: the provider's grant is jwt_bearer"),
        (
            "token_exchange", "subject_token", {"refresh_token": "secret", "subject_token": "s"},
            "^refresh_token is not used: .* token_exchange, which asks by a subject_token",
        ),
        ("token_exchange", "subject_token", {}, "^subject_token is missing"),
        ("token_exchange", "", {"subject_token": "secret"}, "^subject_token is not used: .*token_exchange, which asks without"),
        ("refresh_token", "refresh_token", {"subject_token": "secret", "refresh_token": "r"}, "^subject_token is not used"),
        ("token_exchange", "subject_token", {"subject_token": "secret-é"}, "^subject_token holds characters"),
    ],
)  # fmt: skip
def test_each_grant_demands_what_it_needs_and_refuses_what_it_cannot_use(
    kind: str, brings: str, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(BadArg, match=says) as raised:
        parse_grant(fields, asking(kind, brings))
    assert "secret" not in str(raised.value)


def asking(kind: str, brings: str) -> Provider:
    own = Secret("" if brings else "given") if kind == "token_exchange" else Secret()
    found = Provider(name="p", client_id="c", grant=kind, subject_token=own)
    assert found.brings == brings
    return found


def test_a_grant_may_need_nothing() -> None:
    grant = parse_grant({}, asking("client_credentials", ""))
    assert (grant.refresh_token, grant.subject_token, grant.scope) == ("", "", "")
    assert "hush" not in repr(
        parse_grant({"subject_token": "hush"}, asking("token_exchange", "subject_token"))
    )


def test_tokens_stay_out_of_repr() -> None:
    assert "hush" not in repr(parse_grant({"refresh_token": "hush-r", "access_token": "hush-a"}, P))


@pytest.mark.parametrize(
    "name",
    ["o'brien@example.org", "auth0|5f7c", "müller@bücher.example", "Ωμέγα", "日本/東京", "a+b%c"],
)
def test_names_as_identity_providers_give_them(name: str) -> None:
    assert split(f"google/{name}") == ("google", name)


def test_a_name_is_checked_alone_too() -> None:
    check_name("alice@example.org")
    with pytest.raises(BadArg, match="account is empty; allowed are 1 to 200 bytes of letters"):
        check_name("")

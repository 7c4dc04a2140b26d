"""
Makes the members of a token request, by the provider's grant type and what the account brings.

What an account brings is sealed in its row in the place of a refresh token: that token itself, or,
of the grants that have none, a short text of ours, so that fingerprints, keys and exports go on as
they are.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from tidewarden.clock import Clock
from tidewarden.config.load import Provider
from tidewarden.config.secret import Secret, secret_of_file
from tidewarden.errors import Internal

from .client_auth import ASSERTION_LIFE_S, Credentials

OWN_MARK = "\x01"
"""The beginning of a text of ours: no refresh token holds such a character."""
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"  # RFC 7523, 2.1
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # RFC 8693, 2.1
TYPE_PREFIX = "urn:ietf:params:oauth:token-type:"
AHEAD_S = (
    # So much earlier an assertion says it was issued: a server whose clock is behind refuses one of
    # the future.
    60
)


class Unfit(Internal):
    """Says that the account was put for another grant than its provider's section names now."""


class Own(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    Holds the credentials of an account if they are not a refresh token alone.

    Secrets stay out of its ``repr``.
    """

    scope: str = ""
    subject_token: str = ""
    refresh_token: str = ""
    client_secret: str = ""
    """The secret of its own client, if its provider's ``account_secret`` says so."""

    def __repr__(self) -> str:
        return f"Own(scope={self.scope!r})"


@dataclass(frozen=True, slots=True)
class Asking:
    """Holds the members of one request beside the proof of our client."""

    members: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The parts of the request that no error text may quote."""


def text_of(own: Own) -> str:
    """Return the text to seal of what an account brings."""
    return OWN_MARK + msgspec.json.encode(own).decode()


def own_of(text: str) -> Own | None:
    """Read what an account brings from its sealed text; None: a refresh token and no more."""
    return msgspec.json.decode(text[1:], type=Own) if text.startswith(OWN_MARK) else None


def marked(text: str) -> str:
    """Return the text that identifies a grant: its refresh token, where there is one."""
    own = own_of(text)
    return own.refresh_token if own is not None and own.refresh_token else text


def following(text: str, refresh_token: str) -> str:
    """
    Return what the account brings to the next refresh, from what it brought now.

    ``refresh_token``: a new one, empty: none came.
    """
    own = own_of(text)
    if not refresh_token or own is None:
        return refresh_token or text
    return text_of(replace(own, refresh_token=refresh_token))


def as_account(provider: Provider, text: str) -> tuple[Provider, str]:
    """
    Return the provider with the account's own client secret, and the credential for its next pair.

    The account brings ``text``.
    """
    own = own_of(text)
    if own is None:
        return provider, text
    if provider.account_secret:
        provider = dataclasses.replace(provider, client_secret=Secret(own.client_secret))
    return provider, own.refresh_token if provider.renews else text


def fields_of(text: str) -> dict[str, str]:
    """Return what an account brings as fields of a put, for an export."""
    own = own_of(text)
    if own is None or own.refresh_token:
        return {"refresh_token": text} if own is None else msgspec.to_builtins(own)
    return {"scope": "", **msgspec.to_builtins(own)}


def check_fit(provider: Provider, text: str) -> str:
    """
    Return ``text``, if an account that brings it can be refreshed by the provider's grant.

    Raises: Unfit: it was put for another.
    """
    own = own_of(text)
    if provider.account_secret and not (own is not None and own.client_secret):
        raise Unfit("it was put without a client_secret of its own: put it anew")
    if provider.renews != (own is None or bool(own.refresh_token)) or (
        provider.brings == "subject_token" and own is not None and not own.subject_token
    ):
        raise Unfit("it was put for another kind of grant: put it anew")
    return text


def asking(
    provider: Provider,
    account: str,
    text: str,
    endpoint: str,
    credentials: Credentials,
    clock: Clock,
) -> Asking:
    """
    Return the request to ``endpoint`` for ``account`` (its name within the provider).

    ``text`` is what the account brings. Raises: ValueError, OSError: a key or a file cannot be
    used.
    """
    own = own_of(text)
    if own is None:
        return Asking({"grant_type": "refresh_token", "refresh_token": text}, secrets=(text,))
    scope = own.scope or provider.scope
    said = (
        {"scope": scope}
        if scope and (provider.grant != "jwt_bearer" or provider.scope_in == "body")
        else {}
    )
    if provider.grant == "token_exchange":
        token = own.subject_token if provider.brings else _subject_token(provider)
        kind = provider.subject_token_type
        kind = kind if ":" in kind else TYPE_PREFIX + kind
        members = {"grant_type": TOKEN_EXCHANGE, "subject_token": token, "subject_token_type": kind}
        return Asking({**members, **said}, secrets=(token,))
    if provider.grant == "jwt_bearer":
        assertion = credentials.sign(
            provider, claims_of(provider, account, scope, endpoint, clock.unix_ms() // 1000)
        )
        if provider.auth == "bearer":
            return Asking(said, {"Authorization": f"Bearer {assertion}"}, (assertion,))
        return Asking(
            {"grant_type": JWT_BEARER, "assertion": assertion, **said}, secrets=(assertion,)
        )
    return Asking({"grant_type": provider.grant, **said})


def granted_scope(provider: Provider, text: str, told: str | None, before: str) -> str:
    """
    Return the scope of a token that was got with ``text``.

    It is the answer's, else the requested one (RFC 6749, 5.1).
    """
    if told is not None:
        return told
    own = None if provider.renews else own_of(text)
    return before if own is None else own.scope or provider.scope


def claims_of(
    provider: Provider, account: str, scope: str, endpoint: str, now_s: int
) -> dict[str, Any]:
    """Return the claims of an assertion that asks for an access token (RFC 7523, 3)."""
    subject = provider.jwt_subject.replace("{account}", account)
    return {
        "iss": provider.jwt_issuer or provider.client_id,
        **({"sub": subject} if subject else {}),
        "aud": provider.jwt_audience or provider.issuer or endpoint,
        "iat": now_s - AHEAD_S,
        "exp": now_s + ASSERTION_LIFE_S,
        "jti": uuid.uuid4().hex,
        **({"scope": scope} if scope and provider.scope_in == "assertion" else {}),
        **{name: text.replace("{account}", account) for name, text in provider.jwt_claims.items()},
    }


def _subject_token(provider: Provider) -> str:
    if not provider.subject_token_file:
        return provider.subject_token.reveal()
    try:
        token = secret_of_file(provider.subject_token_file).strip()
    except OSError as error:
        raise ValueError(f"subject_token_file cannot be read: {error.strerror}") from None
    if not token:
        raise ValueError("subject_token_file is empty")
    return token

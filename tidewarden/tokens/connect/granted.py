"""Judges what a provider gave for a code, before it is put. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountReading
from tidewarden.tokens.accounts.names import EXTRAS_CHARS_MAX, UNIX_MS_END, extras_size
from tidewarden.tokens.provider.token_response import (
    HttpAnswer,
    Outcome,
    RequestNotSent,
    TokenPair,
    Verdict,
    text_of_member,
)

from .id_token import fault_of, read_id_token
from .outcomes import ConsentFailed

UNSAID = frozenset(("openid", "offline_access", "profile", "email"))
"""Scopes that answers leave out, or name otherwise, although they were granted."""
AWAY = ("unavailable", "rate_limited")
"""Classes of answers by which a provider says that it did not look at the code."""


class Asked(NamedTuple):
    """Holds what a consent was asked for."""

    scope: str
    parameters: Mapping[str, str]
    """Of the account, for its provider's placeholders."""
    issuer: str
    """Whom an ID token has to be of; empty: nobody knows."""
    nonce: str | None
    """Has to stand in the ID token; None: none was asked for."""


def fields_of(
    provider: Provider,
    outcome: Outcome,
    verdict: Verdict,
    asked: Asked,
    reading: AccountReading,
    now_s: float,
) -> dict[str, Any]:
    """
    Return the fields of the put of what a provider gave.

    ``reading``: the account as it was before the code was sent. Raises: ConsentFailed: nothing was
    given, or not what was asked for.
    """
    pair, subject = pair_of(outcome, verdict), ""
    check_scope(provider, asked.scope, pair.scope)
    if asked.nonce is not None:
        known = reading.row.details.subject if reading.row is not None else ""
        subject = subject_of(provider, outcome, asked.issuer, asked.nonce, known, now_s)
    return put_fields(pair, asked.scope, asked.parameters, subject, reading.now_ms)


def pair_of(outcome: Outcome, verdict: Verdict) -> TokenPair:
    """
    Return the pair of an answer.

    Raises: ConsentFailed: there is none, or no refresh token in it.
    """
    if verdict.pair is None:
        word = "outcome_unknown" if verdict.outcome == "unknown" else "refused"
        if isinstance(outcome, RequestNotSent) or verdict.outcome in AWAY:
            word = "unavailable"
        raise ConsentFailed(word, verdict.message)
    if not verdict.pair.refresh_token:
        raise ConsentFailed("no_refresh_token", verdict.message)
    return verdict.pair


def check_scope(provider: Provider, asked: str, granted: str | None) -> None:
    """
    Check that all was granted that was asked for; no scope in an answer means that (RFC 6749, 5.1).

    Raises: ConsentFailed.
    """
    given = _words(granted or "")
    lacking = sorted(_words(asked) - given - UNSAID) if given else []
    if lacking and provider.narrower_scope == "refuse":
        many = f"{len(lacking)} of the scopes that were asked for"
        raise ConsentFailed("scope_missing", f"{many} were not granted")


def subject_of(
    provider: Provider, outcome: Outcome, issuer: str, nonce: str, known: str, now_s: float
) -> str:
    """
    Return who consented, by the ID token that was asked for with ``nonce``.

    ``issuer``: whom it has to be of; empty: nobody knows. ``known``: whose the grant before is;
    empty: that is not known. Raises: ConsentFailed.
    """
    text = text_of_member(outcome, "id_token") if isinstance(outcome, HttpAnswer) else ""
    if not text:
        raise ConsentFailed("wrong_id_token", "there is none, which the scope openid asks for")
    try:
        token = read_id_token(text)
    except ValueError as error:
        raise ConsentFailed("wrong_id_token", str(error)) from None
    if fault := fault_of(token, provider.client_id, issuer, nonce, now_s):
        raise ConsentFailed("wrong_id_token", fault)
    if known and token.sub != known:
        raise ConsentFailed("other_subject")
    return token.sub


def put_fields(
    pair: TokenPair, scope: str, parameters: Mapping[str, str], subject: str, begun_ms: int
) -> dict[str, Any]:
    """
    Return the fields of the put (see :class:`GrantFields`).

    ``scope`` was asked for. ``begun_ms``: the store's time before the code was sent, from which
    lives count: the safe side.
    """
    fields: dict[str, Any] = {
        "refresh_token": pair.refresh_token,
        "access_token": pair.access_token,
        "token_type": pair.token_type,
        "scope": pair.scope or scope,
        "subject": subject,
        "parameters": dict(parameters),
        "extras": pair.extras if extras_size(pair.extras) <= EXTRAS_CHARS_MAX else {},
    }
    if pair.life_s:
        end_ms = begun_ms + int(pair.life_s * 1000)
        fields["expires_at_ms"] = min(end_ms, UNIX_MS_END - 1)  # a token that never ends
    if pair.consent_s:
        fields["consent_expires_ms"] = begun_ms + int(pair.consent_s * 1000)
        fields["consent_end"] = "unknown"
    return {name: value for name, value in fields.items() if value}


def _words(scope: str) -> set[str]:
    """Return the scopes of a text; some providers have commas between them."""
    return {word for word in re.split(r"[ ,]+", scope) if word}

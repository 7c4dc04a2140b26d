"""
The classes of failed refreshes: one row says all that is particular to a class.

A provider's ``errors`` may name the classes that are configurable; what is told of them to users is
in docs/providers.md ("What an answer means").
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

Scope = Literal["ok", "account", "client", "provider", "unknown", "ours"]
"""Whose matter a failure seems to be: its account's, our client's, the provider's, this node's."""
Kind = Literal["ok", "limited", "erring", "client", "refused", "silent", "other"]
"""What an outcome says of the client's other accounts; ``other``: nothing."""
Standing = Literal["silent", "erring", "limiting", "refusing", "blocked"]
"""How a provider stands with us that does such a thing; ``blocked``: it is not asked."""
Retry = Literal["backoff", "half_life", "untouched"]
"""
``backoff``: after growing pauses. ``half_life``: when half of the token's life is over, and nothing
is noted. ``untouched``: after seconds, and nothing is noted: nothing could be sent.
"""
Story = Literal["answered", "limited", "unsealable", "unsent", "misconfigured"]
"""How ``token why`` tells of it."""

ALONE = (
    "Other accounts of {name} are refreshed well: if it lasts, ask whoever runs {host} what is the"
    " matter with this one; it is tried again by itself"
)
AGAIN = (
    "It is asked again, minutes to an hour apart, before it is given up (now: `token refresh`); if"
    " it was revoked, {consent}"
)
ASK_HOST = "Ask whoever runs {host}, if it lasts"
REACH = "See whether {host} is up, and whether this host reaches it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """
    Describes one class of failed refreshes.

    The texts may name ``{name} {host} {grant} {consent}``.
    """

    name: str
    scope: Scope = "provider"
    kind: Kind = "silent"
    answered: bool = True
    """Whether it is a class of answers; False: nothing was sent."""
    codes: tuple[str, ...] = ()
    """The error codes of RFC 6749 (5.2), and of its departures, that mean this class."""
    configurable: bool = False
    """A provider's ``errors`` may map its own codes to this class."""
    ends_grant: bool = False
    """It says, or may say, that the grant is no good: if confirmed, it ends an account."""
    token_spent: bool = False
    """It says that the refresh token was used or revoked: after a doubt, that the pair is lost."""
    retry: Retry = "backoff"
    least_wait_s: float = 0.0
    """Until the next try, where the answer names no time."""
    mended_here: bool = False
    """It is mended on this node: asked again within ten minutes, and never given up for it."""
    standing: Standing = "erring"
    story: Story = "answered"
    log_level: int = 0
    """At which the log says that an account has begun to fail so; 0: it does not."""
    provider_advice: str = f"{ASK_HOST}; its accounts are tried again by themselves"
    """What an operator can do while a provider stands so."""
    account_advice: str = ""
    """What can be done about an account that fails so; empty: what the provider's advice says."""
    alone_advice: str = ""
    """The same, while other accounts are refreshed well; empty: it makes no difference."""


def _unsent(name: str, advice: str, scope: Scope = "provider") -> ErrorClass:
    """Make a class of requests that met with no connection."""
    return ErrorClass(
        name=name,
        scope=scope,
        answered=False,
        standing="silent",
        story="unsent",
        provider_advice=f"{advice}; its accounts are tried again by themselves",
    )


def _our_client(name: str, advice: str, **particular: object) -> ErrorClass:
    """Make a class of answers, or of faults here, that all accounts of a client have in common."""
    return ErrorClass(
        name=name,
        scope="client",
        standing="refusing",
        provider_advice=f"{advice}; no account is harmed, all wait",
        alone_advice=ALONE if particular.get("answered", True) else "",
        **particular,  # type: ignore[arg-type]
    )


ROWS = (
    ErrorClass(
        name="invalid_grant",
        scope="account",
        kind="refused",
        codes=(
            "invalid_grant",
            "bad_refresh_token",
            "invalid_refresh_token",
            "invalid_code",
            "token_revoked",
            "account_inactive",
            "bad_hub",
            "invalid_token",
            "refresh_token_expired",
            "refresh_token:invalid",
            # OpenID Connect Core 3.1.2.6: nobody but the account's owner can do that.
            "interaction_required",
            "login_required",
            "consent_required",
        ),
        configurable=True,
        ends_grant=True,
        token_spent=True,
        account_advice=AGAIN,
    ),
    ErrorClass(
        name="invalid_scope",
        scope="account",
        kind="refused",
        codes=("invalid_scope",),
        configurable=True,
        ends_grant=True,
        account_advice=AGAIN,
    ),
    ErrorClass(
        name="rejected",
        scope="account",
        kind="refused",
        codes=("invalid_request",),  # Said for want of a better word, often beside one.
        configurable=True,
        ends_grant=True,
        account_advice=(
            "The provider names no known cause: if it means a refused token, say so in"
            " [providers.{name}.errors]"
        ),
    ),
    _our_client(
        "invalid_client",
        "Look at client_id, its secret and auth of [providers.{name}]; then have each node read"
        " them (SIGHUP; `up`: restart it)",
        kind="client",
        codes=(
            "invalid_client",
            "incorrect_client_credentials",
            "bad_client_secret",
            "invalid_client_id",
            "client_id:invalid",
            "client_secret:invalid",
            "application:invalid",
        ),
        configurable=True,
    ),
    _our_client(
        "unauthorized_client",
        "Have the provider allow this client the grant type {grant}",
        kind="client",
        codes=("unauthorized_client",),
        configurable=True,
        ends_grant=True,
    ),
    _our_client(
        "unsupported_grant_type",
        "Have the provider allow the grant type {grant}, or look at token_url of"
        " [providers.{name}]",
        kind="client",
        codes=("unsupported_grant_type",),
    ),
    _our_client(
        "misdirected",
        "Look at token_url of [providers.{name}]: there is no token endpoint",
        kind="client",
        configurable=True,
    ),
    ErrorClass(
        name="rate_limited",
        kind="limited",
        codes=("ratelimited", "rate_limited", "slow_down"),
        configurable=True,
        least_wait_s=4.0,
        standing="limiting",
        story="limited",
        provider_advice=(
            "If it lasts: client_rate of [providers.{name}], or a higher limit there; its accounts"
            " are tried again by themselves"
        ),
        alone_advice="Nothing: it alone is to wait, other accounts go on",
    ),
    ErrorClass(
        name="account_limited",
        scope="account",
        kind="other",
        configurable=True,
        least_wait_s=30.0,
        story="limited",
        log_level=logging.WARNING,
        account_advice="Nothing: it was asked for too often",
    ),
    ErrorClass(
        name="too_early",
        scope="account",
        kind="other",
        configurable=True,
        retry="half_life",
        account_advice="Nothing: it is asked again later",
    ),
    ErrorClass(
        name="unavailable",
        kind="erring",
        codes=("temporarily_unavailable", "server_error"),
        configurable=True,
        alone_advice=ALONE,
    ),
    ErrorClass(
        name="unknown",
        scope="unknown",
        kind="erring",
        configurable=True,
        provider_advice=(
            "Ask whoever runs {host}, if it lasts; see timeout_s of [providers.{name}] if it is"
            " slow; its accounts are tried again by themselves"
        ),
        alone_advice=ALONE,
    ),
    # What was never sent.
    _unsent("refused", REACH),
    _unsent("connect_timeout", REACH),
    _unsent(
        "tls",
        "Its certificate is not trusted here: see tls_ca of [providers.{name}], and the date of"
        " {host}'s certificate",
    ),
    _unsent("dns", "See whether this host resolves the name of {host}", "ours"),
    _unsent(
        "proxy",
        "See whether the proxy of [providers.{name}] is up, and whether it lets this host ask"
        " {host}",
        "ours",
    ),
    _unsent(
        "discovery",
        "See whether the metadata of {host} can be had, or write token_url of [providers.{name}]",
    ),
    ErrorClass(
        name="journal",
        scope="ours",
        kind="other",
        answered=False,
        standing="blocked",
        provider_advice=(
            "Let that node write its tokens.journal again (its rights, the disk): single-use"
            " refresh tokens wait for it, and go on by themselves"
        ),
    ),
    ErrorClass(name="late", scope="ours", kind="other", answered=False, alone_advice=ALONE),
    _our_client(
        "bad_url",
        "Look at token_url of [providers.{name}]: it is no address",
        answered=False,
        retry="untouched",
        story="misconfigured",
    ),
    _our_client(
        "misconfigured",
        "Look at [providers.{name}]: no request can be made of it",
        answered=False,
        retry="untouched",
        story="misconfigured",
    ),
    ErrorClass(
        name="unfit",
        scope="account",
        answered=False,
        log_level=logging.WARNING,
        account_advice=(
            "Put it anew (token import, T.PUT): grant of [providers.{name}] has changed since it"
            " was put"
        ),
    ),
    ErrorClass(
        name="no_parameters",
        scope="account",
        answered=False,
        log_level=logging.WARNING,
        account_advice=(
            "Put it with its parameters (token import, T.PUT): see account_parameters of"
            " [providers.{name}]"
        ),
    ),
    ErrorClass(
        name="unsealable",
        scope="account",
        answered=False,
        kind="other",
        mended_here=True,
        story="unsealable",
        log_level=logging.ERROR,
        account_advice=(
            "The key that sealed it is not here: bring it back (docs/operations.md), or put the"
            " grant anew"
        ),
    ),
)
ERROR_CLASSES = {row.name: row for row in ROWS}
BY_CODE = {code: row for row in ROWS for code in row.codes}
CONFIGURABLE = tuple(row.name for row in ROWS if row.configurable)


def class_of(name: str) -> ErrorClass:
    """Return the row of a class; a plain one of that name for what another version has written."""
    return ERROR_CLASSES.get(name) or ErrorClass(name=name, alone_advice=ALONE)

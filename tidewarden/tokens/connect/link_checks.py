"""Checks whether, and for what, a person can be asked to consent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tidewarden import errors
from tidewarden.config import placeholders
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_store import AccountStore

SCOPE_CHARS_MAX = 1_500


def check_connectable(provider: Provider) -> None:
    """Check that accounts of the provider come from consents. Raises: BadArg."""
    if not provider.renews:
        raise errors.BadArg(
            f"accounts of {provider.name} need nobody's consent: its grant is {provider.grant}"
        )
    if provider.account_secret:
        raise errors.BadArg(
            f"accounts of {provider.name} have clients of their own (account_secret): put them"
        )


def settings_digest(provider: Provider) -> str:
    """Return a digest of who the provider is: its addresses, our client there, who set them."""
    told = (
        provider.client_id,
        provider.token_url,
        provider.issuer,
        provider.consent_issuer,
        provider.authorization_url,
        provider.par_url,
        provider.reach is not None,
    )
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]


def check_scope_text(scope: str) -> str:
    """Return the scope, if it can be asked for. Raises: BadArg."""
    if len(scope) > SCOPE_CHARS_MAX or not scope.isascii() or not scope.isprintable():
        raise errors.BadArg(f"scope must be printable ASCII of {SCOPE_CHARS_MAX} characters")
    return scope


async def check_parameters(
    accounts: AccountStore,
    provider: Provider,
    queue: str,
    name: str,
    given: Mapping[str, Any] | None,
) -> dict[str, str]:
    """
    Return an account's parameters: those that are given, else those that it has.

    Raises: BadArg: one is missing or does not fit. What the store raises.
    """
    if given is None and provider.account_parameters:
        row = (await accounts.get(queue, name)).row
        known = row.details.parameters if row is not None else {}
        given = {key: text for key, text in known.items() if key in provider.account_parameters}
    found = placeholders.check(provider, given or {})
    placeholders.filled(provider, found)
    return found

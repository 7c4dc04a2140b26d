"""Decides how a put and a refresh change what is known of an account beside its tokens. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from tidewarden.config.load import Provider
from tidewarden.tokens.provider.token_response import TokenPair

from .account_record import NO_DETAILS, AccountDetails, AccountRow, ConsentEnd
from .names import EXTRAS_CHARS_MAX, Grant, extras_size

TELLING_MS = 600_000
"""Two answers that lie closer together do not tell whether the end of a consent moves with each."""
NEAR_SHARE = 0.01
"""A time is the same where it is off by less than that share of what is left."""
STEP_SHARE = 0.05
"""Likewise of a time that moves: that of thirty days is put off once a day by some."""


def put(
    provider: Provider, old: AccountDetails, grant: Grant, now_ms: int, *, renewed: bool
) -> AccountDetails:
    """
    Return the details of an account after a put of ``grant``.

    ``renewed``: as another grant, else it has that one.

    Parameters are the account's, and stay until others are given; all else belongs to the grant.
    """
    parameters = old.parameters if grant.parameters is None else grant.parameters
    base = replace(NO_DETAILS if renewed else old, parameters=parameters)
    if grant.extras is not None:
        base = replace(base, extras=grant.extras)
    if grant.consent_expires_ms:
        return _ends(base, grant.consent_expires_ms, grant.consent_end, now_ms)
    if not renewed:
        return base
    if grant.consent_s:
        return _ends(base, now_ms + int(grant.consent_s * 1000), "unknown", now_ms)
    if provider.consent_fixed_s:
        return _ends(base, now_ms + int(provider.consent_fixed_s * 1000), "fixed", now_ms)
    return base


def refreshed(
    provider: Provider, old: AccountDetails, pair: TokenPair, sent_ms: int
) -> AccountDetails:
    """
    Return the details after a refresh that was sent then; ``old`` itself where nothing has changed.
    """
    extras = old.extras | pair.extras
    if extras != old.extras and extras_size(extras) <= EXTRAS_CHARS_MAX:
        old = replace(old, extras=extras)
    if pair.consent_s is not None:
        return _told(old, sent_ms + int(pair.consent_s * 1000), sent_ms)
    if pair.refresh_token and old.consent_end == "unknown" and old.consent_expires_ms:
        return _ends(old, 0, "unknown", 0)  # That was about another refresh token.
    return old


def consent_of(provider: Provider, row: AccountRow) -> tuple[int, bool]:
    """
    Return when the refresh token ends by itself, unix milliseconds (0: not known).

    Also whether each refresh puts that off.
    """
    known = row.details
    if known.consent_end == "moves":
        return row.stored_ms + known.consent_expires_ms - known.consent_noted_ms, True
    if known.consent_expires_ms or not provider.consent_life_s:
        return known.consent_expires_ms, False
    return row.stored_ms + int(provider.consent_life_s * 1000), True


def _told(old: AccountDetails, end_ms: int, now_ms: int) -> AccountDetails:
    """
    Return the details after an answer that says when the refresh token ends.

    Two of them, some time apart, tell whether that moves; whatever does not go on so is looked at
    anew.
    """
    if not old.consent_expires_ms:
        return _ends(old, end_ms, "unknown", now_ms)
    passed_ms, moved_ms = now_ms - old.consent_noted_ms, end_ms - old.consent_expires_ms
    life_ms = end_ms - now_ms
    if old.consent_end == "moves":
        # It lives as long from now as it did from then; some put it off once a day.
        same = abs(moved_ms - passed_ms) <= max(TELLING_MS, life_ms * STEP_SHARE)
        return old if same else _ends(old, end_ms, "unknown", now_ms)
    if old.consent_end == "fixed" or passed_ms < TELLING_MS:
        if abs(moved_ms) <= max(TELLING_MS, life_ms * NEAR_SHARE):
            return old
        if old.consent_end == "unknown" or moved_ms <= passed_ms / 2:
            return _ends(old, end_ms, "unknown", now_ms)
    return _ends(old, end_ms, "moves" if moved_ms > passed_ms / 2 else "fixed", now_ms)


def _ends(old: AccountDetails, end_ms: int, end: ConsentEnd, now_ms: int) -> AccountDetails:
    return replace(old, consent_expires_ms=end_ms, consent_end=end, consent_noted_ms=now_ms)

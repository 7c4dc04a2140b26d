"""Decides how a put and a refresh change what is known of an account beside its tokens. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from tidewarden.config.load import Provider
from tidewarden.tokens.provider.token_response import TokenPair

from .account_record import NO_DETAILS, AccountDetails, AccountRow, ConsentEnd
from .names import EXTRAS_CHARS_MAX, Grant, extras_size

TELLING_MS = 600_000
"""Two answers that lie closer together do not show whether the end of a consent moves."""
NEAR_SHARE = 0.01
"""Two times count as the same if they differ by less than this share of the time left."""
STEP_SHARE = 0.05
"""The same share for a time that moves: some providers put thirty days off once a day."""


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
    if grant.subject:
        base = replace(base, subject=grant.subject)
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
    Return the details after a refresh sent at ``sent_ms``; ``old`` itself if nothing has changed.
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
    Return when the refresh token ends by itself, and whether each refresh puts that off.

    The time is in unix milliseconds; 0: it is not known.
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

    Two such answers, some time apart, show whether the end moves; an end that behaves otherwise
    later is examined anew.
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

"""
What is known of an account beside its tokens, and how a put and a refresh change it: decisions, as plain functions.
"""

from __future__ import annotations

from msgspec.structs import replace

from tidewarden.config import Provider

from .accounts import EXTRAS_CHARS_MAX, Grant, extras_size
from .answers import Pair
from .rows import NO_DETAILS, ConsentEnd, Details

TELLING_MS = 600_000
"""Two answers that lie closer together do not tell whether the end of a consent moves with each."""
NEAR_SHARE = 0.01
"""A time is noted anew where it is off by that much of what is left: not with each refresh."""


def put(provider: Provider, old: Details, grant: Grant, now_ms: int, *, renewed: bool) -> Details:
    """
    The details of an account of which ``grant`` is put; ``renewed``: as another grant, else it has that one.

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
    if provider.consent_life_s:
        return _ends(base, now_ms + int(provider.consent_life_s * 1000), "moves", now_ms)
    return base


def refreshed(provider: Provider, old: Details, pair: Pair, sent_ms: int) -> Details:
    """The details after a refresh that was sent then; ``old`` itself where nothing has changed."""
    extras = old.extras | pair.extras
    if extras != old.extras and extras_size(extras) <= EXTRAS_CHARS_MAX:
        old = replace(old, extras=extras)
    if pair.consent_s is not None:
        return _told(old, sent_ms + int(pair.consent_s * 1000), sent_ms)
    if provider.consent_life_s and old.consent_end != "fixed":
        return _near(old, sent_ms + int(provider.consent_life_s * 1000), "moves", sent_ms)
    if pair.refresh_token and old.consent_end == "unknown" and old.consent_expires_ms:
        return _ends(old, 0, "unknown", 0)  # That was about another refresh token.
    return old


def _told(old: Details, end_ms: int, now_ms: int) -> Details:
    """After an answer that says when the refresh token ends: two of them, some time apart, tell whether that moves."""
    if not old.consent_expires_ms:
        return _ends(old, end_ms, "unknown", now_ms)
    passed_ms, moved_ms = now_ms - old.consent_noted_ms, end_ms - old.consent_expires_ms
    if passed_ms < TELLING_MS:
        return old if abs(moved_ms) <= 2 * TELLING_MS else _ends(old, end_ms, "unknown", now_ms)
    return _near(old, end_ms, "moves" if moved_ms > passed_ms / 2 else "fixed", now_ms)


def _near(old: Details, end_ms: int, end: ConsentEnd, now_ms: int) -> Details:
    slack_ms = max(TELLING_MS, (end_ms - now_ms) * NEAR_SHARE)
    if old.consent_end == end and abs(end_ms - old.consent_expires_ms) <= slack_ms:
        return old
    return _ends(old, end_ms, end, now_ms)


def _ends(old: Details, end_ms: int, end: ConsentEnd, now_ms: int) -> Details:
    return replace(old, consent_expires_ms=end_ms, consent_end=end, consent_noted_ms=now_ms)

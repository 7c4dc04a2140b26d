"""Decides when an account is refreshed next. Pure."""

from __future__ import annotations

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountRow

LIFE_S_MIN = 10.0
"""A token that lives shorter than that is not renewed earlier: there would be no pause."""
JITTER_SHARE = 0.1  # Of the margin; spreads the accounts that were imported together.


def due_after(
    sent_ms: int, life_s: float | None, provider: Provider, dice: float
) -> tuple[int, int]:
    """
    Return when a new token expires and when it is refreshed next: ``(expires_at_ms, due_ms)``.

    Its life counts from ``sent_ms``, when the request was sent: the provider counts from later, so
    that is the safe side.
    """
    life = min(life_s if life_s is not None else provider.default_life_s, provider.life_s_max)
    expires_at_ms = sent_ms + int(life * 1000)
    if life < LIFE_S_MIN:
        return expires_at_ms, sent_ms + int(LIFE_S_MIN * 1000)
    return expires_at_ms, due_before(expires_at_ms, life, provider, dice)


def due_before(expires_at_ms: int, life_s: float, provider: Provider, dice: float) -> int:
    """
    Return when to refresh a token that expires then and has ``life_s`` left.

    The margin takes at most a third of the life, else a margin of five minutes would refresh a
    token of one minute without pause. ``dice`` (0 to 1) moves the refresh up to a tenth of the
    margin ahead, never behind. A refresh token that dies when idle is used in time, and nothing is
    refreshed before the provider allows it.
    """
    life = max(0.0, life_s)
    margin = min(provider.margin_of(life), life / 3)
    margin += min(margin, life / 3) * JITTER_SHARE * dice
    if provider.keep_alive_s:
        margin = max(margin, life - provider.keep_alive_s)
    if provider.not_before_s:
        margin = min(margin, provider.not_before_s)
    return expires_at_ms - int(margin * 1000)


def is_short(row: AccountRow) -> bool:
    """
    Return whether a refreshed token lives for less than ``LIFE_S_MIN``, too short to keep fresh.
    """
    told = row.refreshed and bool(row.access)
    return told and row.expires_at_ms - row.stored_ms < LIFE_S_MIN * 1000


def too_soon(provider: Provider, row: AccountRow, now_ms: int) -> float:
    """Return the seconds until the provider allows to refresh this account; 0: it does now."""
    wait_ms = 0.0
    if provider.not_before_s and row.access:
        wait_ms = row.expires_at_ms - provider.not_before_s * 1000 - now_ms
    interval_ms = 1000 * max(provider.account_interval_s, LIFE_S_MIN if is_short(row) else 0.0)
    if interval_ms and row.refreshed:
        # Never longer than that: the clock may have been stepped back since.
        wait_ms = max(wait_ms, min(interval_ms, row.stored_ms + interval_ms - now_ms))
    return max(0.0, wait_ms / 1000)

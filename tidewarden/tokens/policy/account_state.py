"""Names the state of an account in one word. Pure."""

from __future__ import annotations

from typing import Literal

from tidewarden.tokens.accounts.account_record import AccountRow, RefreshTroubles

State = Literal["fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation", "stale"]
"""``stale`` marks a token that was served while the store was away; no account is in that state."""
STATES: tuple[State, ...] = (
    "fresh",
    "expiring",
    "late",
    "failing",
    "stopped",
    "dead",
    "lost_rotation",
)


def state(row: AccountRow, troubles: RefreshTroubles | None, now_ms: int) -> State:
    """
    Return the one word for the state of an account.

    The first that fits counts of: dead, failing, late, expiring, fresh.
    """
    if troubles is not None:
        if troubles.stopped:
            return "stopped"
        if not troubles.dead:
            return "failing"
        return "lost_rotation" if troubles.outcome == "lost_rotation" else "dead"
    if row.expires_at_ms and row.expires_at_ms <= now_ms:
        return "late"
    return "expiring" if row.due_ms <= now_ms else "fresh"


def since_ms(row: AccountRow, troubles: RefreshTroubles | None, state: State) -> int:
    """Return since when the account is as :func:`state` says, unix milliseconds."""
    if troubles is not None:
        return troubles.last_ms if troubles.given_up else troubles.first_ms
    return {"late": row.expires_at_ms, "expiring": row.due_ms}.get(state, row.stored_ms)

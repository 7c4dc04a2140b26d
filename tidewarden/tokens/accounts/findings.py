"""What the scripts of ``tokens/lua`` answer, as types."""

from __future__ import annotations

from dataclasses import dataclass, field

from .account_record import AccountRow, Intent, RefreshTroubles


@dataclass(frozen=True, slots=True)
class AccountReading:
    """An account as it was at ``now_ms`` of the store's clock."""

    now_ms: int
    floor: int
    """
    Highest grant of any account deleted from its shard; a new account's first grant is one more.
    """
    row: AccountRow | None
    troubles: RefreshTroubles | None
    began: int = 0
    """
    The grant that the account began with: what has a lesser one was another's, of the same name. 0:
    there is no account.
    """


@dataclass(frozen=True, slots=True)
class Opened:
    """An intent that was written: what is to be refreshed, and what was found."""

    now_ms: int
    row: AccountRow
    troubles: RefreshTroubles
    spare: AccountRow | None = field(repr=False)
    found: Intent | None
    """An intent that somebody had left open."""


@dataclass(frozen=True, slots=True)
class RefusedAccount:
    """
    No intent was written. ``why``: ``NOTHELD``, ``GONE``, or ``OPEN`` with the end of another's
    intent.
    """

    why: str
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One account of a page; its row has no tokens."""

    account: str
    row: AccountRow
    troubles: RefreshTroubles | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is sealed of one account, as it lies in the store."""

    account: str
    row: bytes = field(repr=False)
    spare: bytes = field(repr=False)
    """Empty: there is none."""
    troubles: RefreshTroubles | None
    details: bytes = b""
    """Empty: there are none."""

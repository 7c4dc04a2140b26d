"""
Keeps the access tokens that this node last read or refreshed, for times without the store.

They stay sealed, and without their refresh tokens, except for accounts that may be refreshed
without the store (:mod:`tidewarden.tokens.refresh.offline_refresh`). Nothing is served from here
while the store answers.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from tidewarden.clock import Clock

from .account_record import AccountRow

# a longer one is not kept: the bound is on entries, and is to bound the memory, too
TOKEN_BYTES_MAX = 16_384


class CachedToken(msgspec.Struct, frozen=True):
    """Holds a row, and when the store's clock gave its token ``left_ms`` to live."""

    row: AccountRow
    left_ms: int
    read_s: float
    read_unix_ms: int
    base: tuple[int, int]
    """
    Grant and generation of the row in the store, as far as is known. It differs from the row's own
    if that came from :mod:`tidewarden.tokens.refresh.offline_refresh`.
    """


class Cache:
    """
    Keeps at most ``entries_max`` tokens by ``provider/name``.

    The token that was least recently asked for makes room. Two clocks tell how long a token lives
    on, and the one that went further counts: the steady one stands still while the machine sleeps,
    the other may be set.
    """

    def __init__(self, entries_max: int, clock: Clock, whole: Collection[str] = ()) -> None:
        """
        Keep whole rows for the providers in ``whole``.

        Their refresh tokens are kept, too, and their rows stay when the access tokens have expired.
        """
        self._whole = whole
        self._entries_max = entries_max
        self._clock = clock
        self._kept: OrderedDict[str, CachedToken] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, account: str, row: AccountRow, now_ms: int, *, read: bool) -> None:
        """
        Remember the token of ``row`` as of ``now_ms`` of the store's clock, unless it is outdated.

        ``read``: a reader asked for it; a token that was only refreshed takes no other's place.
        """
        left_ms = row.expires_at_ms - now_ms
        whole = self._is_whole(account)
        useless = not row.refresh if whole else left_ms <= 0 or not row.access
        if useless or len(row.access) + whole * len(row.refresh) > TOKEN_BYTES_MAX:
            self.drop(account)
            return
        former = self._kept.get(account)
        if former is not None and _age(former.row) > _age(row):
            return
        if former is None and len(self._kept) >= self._entries_max:
            if not read or self._entries_max == 0:
                return
            self._kept.popitem(last=False)
        self._kept[account] = self._now(
            row if whole else _bare(row), left_ms, (row.grant, row.generation)
        )
        if read or former is None:
            self._kept.move_to_end(account, last=read)

    def left_ms(self, account: str) -> int:
        """Return how many milliseconds the account's cached token still lives; 0: none is alive."""
        kept = self._kept.get(account)
        if kept is None:
            return 0
        left_ms = kept.row.expires_at_ms - self.now_ms(kept)
        if left_ms <= 0 and not self._is_whole(account):
            self.drop(account)
        return max(0, left_ms) if kept.row.access else 0

    def now_ms(self, kept: CachedToken) -> int:
        """
        Return the store's time now in unix milliseconds, reckoned from when the token was read.
        """
        passed_ms = max(
            (self._clock.monotonic() - kept.read_s) * 1000,
            self._clock.unix_ms() - kept.read_unix_ms,
        )
        return kept.row.expires_at_ms - kept.left_ms + int(passed_ms)

    def whole(self, account: str) -> CachedToken | None:
        """
        Return a row that is kept with its refresh token, although its access token may be dead.
        """
        kept = self._kept.get(account)
        return kept if kept is not None and kept.row.refresh else None

    def renew(self, account: str, former: CachedToken, row: AccountRow) -> None:
        """
        Replace ``former`` by a pair that the store does not know.

        Nothing happens if another row has come since.
        """
        if self._kept.get(account) is former:
            self._kept[account] = self._now(
                row, row.expires_at_ms - self.now_ms(former), former.base
            )

    def find(self, account: str) -> AccountRow | None:
        """Return the row of a living token, and count it as asked for."""
        if self.left_ms(account) == 0:
            return None
        self._kept.move_to_end(account)
        return self._kept[account].row

    def outdate(self, account: str, generation: int) -> None:
        """Drop the account's token if it is older than ``generation``: it may not work any more."""
        kept = self._kept.get(account)
        if kept is not None and kept.row.generation < generation:
            self.drop(account)

    def drop(self, account: str) -> None:
        """Forget the account's token."""
        self._kept.pop(account, None)

    def _is_whole(self, account: str) -> bool:
        return bool(self._whole) and account.partition("/")[0] in self._whole

    def _now(self, row: AccountRow, left_ms: int, base: tuple[int, int]) -> CachedToken:
        return CachedToken(row, left_ms, self._clock.monotonic(), self._clock.unix_ms(), base)


def _bare(row: AccountRow) -> AccountRow:
    """Return the row without the fields that only refreshes need."""
    kind = sys.intern(row.token_type)
    return replace(row, origin=b"", current=b"", token_type=kind, refresh=b"")


def _age(row: AccountRow) -> tuple[int, int]:
    return row.grant, row.generation

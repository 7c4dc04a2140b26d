"""
The access tokens that this node read or refreshed last, for readers who come while the store is away.

They stay sealed in here, without their refresh tokens. Nothing is served from here while the store answers.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, replace

from tidewarden.clock import Clock

from .rows import Row

TOKEN_BYTES_MAX = 16_384  # a longer one is not kept: the bound is on entries, and is to bound the memory, too


@dataclass(frozen=True, slots=True)
class Kept:
    """A row as it was when the store's clock gave its token ``left_ms`` to live."""

    row: Row
    left_ms: int
    read_s: float
    read_unix_ms: int


class Cache:
    """
    At most ``entries_max`` tokens, by ``provider/name``; the one that was longest not asked for makes room.

    How long one lives on is told by two clocks, whichever went further: the steady one stands still while the machine
    sleeps, the other may be set.
    """

    def __init__(self, entries_max: int, clock: Clock) -> None:
        self._entries_max = entries_max
        self._clock = clock
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, account: str, row: Row, now_ms: int, *, read: bool) -> None:
        """
        Remember the token of ``row`` as of ``now_ms`` of the store's clock, and nothing older.

        ``read``: somebody asked for it; one that was only refreshed takes nobody's place.
        """
        left_ms = row.expires_at_ms - now_ms
        if left_ms <= 0 or not row.access or len(row.access) > TOKEN_BYTES_MAX:
            self.drop(account)
            return
        former = self._kept.get(account)
        if former is not None and _age(former.row) > _age(row):
            return
        if former is None and len(self._kept) >= self._entries_max:
            if not read or self._entries_max == 0:
                return
            self._kept.popitem(last=False)
        bare = replace(row, refresh=b"", origin=b"", current=b"", token_type=sys.intern(row.token_type))
        self._kept[account] = Kept(bare, left_ms, self._clock.monotonic(), self._clock.unix_ms())
        if read or former is None:
            self._kept.move_to_end(account, last=read)

    def left_ms(self, account: str) -> int:
        """How long the token that is kept still lives, milliseconds; 0: there is none that does."""
        kept = self._kept.get(account)
        if kept is None:
            return 0
        passed_ms = max((self._clock.monotonic() - kept.read_s) * 1000, self._clock.unix_ms() - kept.read_unix_ms)
        left_ms = kept.left_ms - int(passed_ms)
        if left_ms <= 0:
            self.drop(account)
        return max(0, left_ms)

    def find(self, account: str) -> Row | None:
        """The row of a token that lives, for somebody who asks for it."""
        if self.left_ms(account) == 0:
            return None
        self._kept.move_to_end(account)
        return self._kept[account].row

    def outdate(self, account: str, generation: int) -> None:
        """The account has this generation now: an older token may not work any more."""
        kept = self._kept.get(account)
        if kept is not None and kept.row.generation < generation:
            self.drop(account)

    def drop(self, account: str) -> None:
        """The account is gone, or its token is no good any more."""
        self._kept.pop(account, None)


def _age(row: Row) -> tuple[int, int]:
    return row.grant, row.generation

"""Keeps the entries of the audit log that the store has not taken yet, each user's apart."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WAITING_MAX = 5_000


class Waiting(NamedTuple):
    """Holds one encoded entry of one user, for one stream."""

    stream: str
    user: str
    body: bytes


class EntryQueue:
    """
    Hands out entries, one of each user in turn.

    If there are too many, the oldest of the user with the most is given up.
    """

    def __init__(self) -> None:
        self._by_user: dict[str, deque[Waiting]] = {}
        # Users by how many entries they have, so that nobody need look for who has the most.
        self._having: dict[int, dict[str, None]] = {}
        self._most = 0
        self._count = 0
        self.lost_total = 0

    def __len__(self) -> int:
        return self._count

    def put(self, entry: Waiting) -> None:
        """Add an entry."""
        if self._count >= WAITING_MAX:
            self._pop(next(iter(self._having[self._most])))
            self.lost_total += 1
        self._waiting_of(entry.user).append(entry)
        self._changed(entry.user, 1)

    def take(self, most: int) -> list[Waiting]:
        """Take out so many, the oldest of each user first."""
        taken: list[Waiting] = []
        while self._count and len(taken) < most:
            for user in list(self._by_user)[: most - len(taken)]:
                taken.append(self._pop(user))
                if waiting := self._by_user.pop(user, None):
                    self._by_user[user] = waiting  # behind the others
        return taken

    def put_back(self, entries: list[Waiting]) -> None:
        """Put entries that were taken back in front."""
        for entry in reversed(entries):
            self._waiting_of(entry.user).appendleft(entry)
            self._changed(entry.user, 1)

    def _waiting_of(self, user: str) -> deque[Waiting]:
        return self._by_user.setdefault(user, deque())

    def _pop(self, user: str) -> Waiting:
        waiting = self._by_user[user]
        entry = waiting.popleft()
        self._changed(user, -1)
        if not waiting:
            del self._by_user[user]
        return entry

    def _changed(self, user: str, by: int) -> None:
        """Note that a user has one entry more, or one less, than before."""
        now = len(self._by_user[user])
        self._count += by
        if before := now - by:
            del self._having[before][user]
            if not self._having[before]:
                del self._having[before]
        if now:
            self._having.setdefault(now, {})[user] = None
        if now > self._most or self._most not in self._having:
            self._most = now

"""Counts the sessions that a node knows, by user, from their first connection to their end."""

from __future__ import annotations

import asyncio

from tidewarden.user_limits import SharedLimit


class SessionCounts:
    """
    Counts a session while it has a connection at this node, and while its grace runs after that.

    Args:
        limit: of sessions, which all users share.
    """

    def __init__(self, limit: SharedLimit) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._users: dict[str, str] = {}  # by uuid
        self._ends: dict[str, asyncio.TimerHandle] = {}  # of those without a connection here

    def check(self, user: str, uuid: str = "") -> None:
        """Check the limit. Raises: Full: the user may have no further session at this node."""
        if uuid not in self._users:
            self._limit.check(user)

    def attached(self, uuid: str, user: str) -> None:
        """Count the session for the user: a connection of this node is in it."""
        if (end := self._ends.pop(uuid, None)) is not None:
            end.cancel()
        if uuid not in self._users:
            self._users[uuid] = user
            self._limit.add(user)

    def left(self, uuid: str, grace_ms: int) -> None:
        """Count the session for so long yet: no connection of this node is in it."""
        if uuid in self._users:
            if (end := self._ends.pop(uuid, None)) is not None:
                end.cancel()
            self._ends[uuid] = self._loop.call_later(grace_ms / 1000, self.ended, uuid)

    def ended(self, uuid: str) -> None:
        """Count the session no more: it has ended, or is another node's."""
        if (end := self._ends.pop(uuid, None)) is not None:
            end.cancel()
        if (user := self._users.pop(uuid, None)) is not None:
            self._limit.give_back(user)

"""
Writes that are on disk before they are believed, also where the store brings its log to disk once a second.

WAITAOF speaks of what its own connection wrote, so the scripts in question run on a connection of their own, and one
WAITAOF serves all whose replies came before it was sent: it costs a round trip and an fsync a group, not a write.
"""

from __future__ import annotations

import asyncio
import contextlib

from tidewarden.errors import NoQuorum, StoreDown
from tidewarden.store.link import Link

TIMEOUT_MS = 5000


class Firm:
    """
    Group commit on ``link``. ``possible``: the server knows WAITAOF and needs it (Valkey or Redis 7.2 and later with an
    append-only file that is not synced on every write). Elsewhere :meth:`sync` returns at once: the server's own
    setting is the strongest there is.
    """

    def __init__(self, link: Link, *, possible: bool) -> None:
        self._link = link
        self._possible = possible
        self._lock = asyncio.Lock()
        self._gathering: asyncio.Task[None] | None = None
        self.groups = 0

    async def sync(self) -> None:
        """
        Return when everything whose reply this connection has had is on disk.

        Raises: NoQuorum: not within five seconds; StoreDown: the connection was lost. What was written may or may not last.
        """
        if not self._possible:
            return
        group = self._gathering
        if group is None:
            group = self._gathering = asyncio.ensure_future(self._commit())
            group.add_done_callback(_seen)
        await asyncio.shield(group)

    async def _commit(self) -> None:
        async with self._lock:
            self._gathering = None  # who comes from now on needs the next one
            self.groups += 1
            local, _ = await self._link.call("WAITAOF", 1, 0, TIMEOUT_MS)
            if local < 1:
                raise NoQuorum(f"the store did not bring its log to disk within {TIMEOUT_MS} ms")


def _seen(group: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError, NoQuorum, StoreDown):
        group.result()
